"""How the micro model is refined: `python benchmarks/refinement.py` -> refinement.json, with scale
hours refinement_hours.json.

Epochs, batch size, learning rate, what an order is drawn for, the weight of the position losses,
and the position encoding's size and initial scale (at hours the rate alone), tried on held-out
images, which nothing else reports: accuracy in both orders, and how often a position is named.
"""

from pathlib import Path
from typing import Any

import numpy as np
from machine import machine, show, write
from settings import SEEDS, pretrain, refine, try_settings

from lsvit.latin import latin
from lsvit.routes import OneRoute, generator
from papers import PAPERS
from pipeline.config.load import load
from pipeline.config.sections import Finetune
from pipeline.config.variant import Encode, Position
from pipeline.jobs.files import HELDOUT, weights_file
from pipeline.training.scoring import InTurn, open_model, open_split, score

HOURS = load(papers=PAPERS).cell.scale == "hours"
FILE = Path(__file__).with_name("refinement_hours.json" if HOURS else "refinement.json")
BATCHES = 10  # each with twelve orders
COLUMNS = ("sequential", "arbitrary", "position")
PUBLISHED_SIZE = {
    "encode.dim": 32,
    "encode.std": 0.072,
}  # torch's own initial scale at a width of 32 and 32 more
TRIED: list[tuple[str, dict[str, Any]]] = [
    ("ls", {"per": "batch", "epochs": 3, "batch_size": 128, "lr": 0.0015}),  # before
    ("ls", {"per": "batch", "epochs": 4, "batch_size": 60, "lr": 0.0015}),
    ("ls", {"per": "latin", "epochs": 3, "batch_size": 128, "lr": 0.0015}),
    ("ls", {"per": "latin", "epochs": 3, "batch_size": 60, "lr": 0.0015}),
    ("ls", {"per": "latin", "epochs": 4, "batch_size": 60, "lr": 0.0015}),
    ("ls", {"per": "latin", "epochs": 4, "batch_size": 60, "lr": 0.003}),
    ("ls", {"per": "latin", "epochs": 6, "batch_size": 60, "lr": 0.0015}),
    ("ls", {"per": "batch", "epochs": 3, "batch_size": 60, "lr": 0.003}),
    ("ls", {"per": "latin", "epochs": 3, "batch_size": 60, "lr": 0.003}),
    ("ls", {"per": "batch", "epochs": 3, "batch_size": 60, "lr": 0.005}),
    ("ls", {"per": "latin", "epochs": 3, "batch_size": 60, "lr": 0.005}),
    ("ls", {"per": "latin", "epochs": 3, "batch_size": 60, "lr": 0.008}),
    ("ls", {"per": "latin", "epochs": 3, "batch_size": 120, "lr": 0.005}),
    ("ls", {"per": "latin", "epochs": 3, "batch_size": 120, "lr": 0.008}),
    ("ls", {"per": "latin", "epochs": 3, "batch_size": 120, "lr": 0.012}),
    ("baseline", {"epochs": 3, "batch_size": 60, "lr": 0.0015}),
    ("baseline", {"epochs": 3, "batch_size": 60, "lr": 0.003}),
    ("baseline", {"epochs": 3, "batch_size": 60, "lr": 0.005}),
    ("baseline", {"epochs": 3, "batch_size": 120, "lr": 0.008}),
    ("ls_pos", {"per": "latin", "epochs": 3, "batch_size": 120, "lr": 0.008}),
    ("ls_pos", {"per": "latin", "epochs": 4, "batch_size": 60, "lr": 0.0015}),
    ("ls_pos", {"per": "latin", "epochs": 4, "batch_size": 60, "lr": 0.0015} | PUBLISHED_SIZE),
    ("ls_pos", {"per": "latin", "epochs": 4, "batch_size": 60, "lr": 0.003}),
    ("ls_pos", {"per": "latin", "epochs": 3, "batch_size": 60, "lr": 0.003}),
    ("ls_pos", {"per": "latin", "epochs": 3, "batch_size": 60, "lr": 0.005}),
    ("ls_pred", {"per": "latin", "epochs": 3, "batch_size": 60, "lr": 0.003}),
    ("ls_pred", {"per": "latin", "epochs": 3, "batch_size": 60, "lr": 0.005}),
    (
        "ls_pred",
        {"per": "latin", "epochs": 3, "batch_size": 60, "lr": 0.005, "position_weight": 0.25},
    ),
    ("ls_pred", {"per": "latin", "epochs": 3, "batch_size": 120, "lr": 0.008}),
    ("ls_pred", {"per": "latin", "epochs": 3, "batch_size": 120, "lr": 0.012}),
    ("ls_pred", {"per": "batch", "epochs": 4, "batch_size": 60, "lr": 0.0015}),
    ("ls_pred", {"per": "latin", "epochs": 4, "batch_size": 60, "lr": 0.0015}),
    (
        "ls_pred",
        {"per": "latin", "epochs": 4, "batch_size": 60, "position_weight": 0.25, "lr": 0.0015},
    ),
    (
        "ls_pred",
        {"per": "latin", "epochs": 4, "batch_size": 60, "position_weight": 1.0, "lr": 0.0015},
    ),
    ("ls_pred", {"per": "latin", "epochs": 4, "batch_size": 60, "lr": 0.003}),
    (
        "ls_pred",
        {"per": "latin", "epochs": 4, "batch_size": 60, "lr": 0.003, "position_weight": 0.25},
    ),
]

TRIED_AT_HOURS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"lr": lr}) for name in ("baseline", "ls") for lr in (0.002, 0.004, 0.008)),
    ("ls_pos", {"lr": 0.004}),
    ("ls_pred", {"lr": 0.004}),
]


def start(data: Path, folder: Path) -> Path:
    """The starting weights of all."""
    params = load(papers=PAPERS)
    return pretrain(params, data, folder, params.seeds[0])


def measure(
    setting: tuple[str, dict[str, Any]], seed: int, data: Path, folder: Path, start: Path
) -> dict[str, float]:
    """One setting and seed: accuracy in both orders, position accuracy."""
    (name, changed), params = setting, load(papers=PAPERS)
    own = {key: value for key, value in changed.items() if not key.startswith("encode.")}
    if len(own) < len(changed):
        encode = Encode.model_validate(
            {key.partition(".")[2]: value for key, value in changed.items() if key not in own}
        )
        variant = params.variants[name].model_copy(update={"position": Position(encode=encode)})
        params = params.model_copy(update={"variants": params.variants | {name: variant}})
    config = refine(
        params,
        name,
        params.resolve(Finetune, name).model_copy(update=own),
        seed,
        data,
        start,
        folder,
    )
    model, execution = open_model(config, data, folder / weights_file(HELDOUT))
    split = open_split(config, data, HELDOUT, model)
    orders = [latin(generator("refinement", i), model.num_layers) for i in range(BATCHES)]
    found = {
        "sequential": score(
            model, split, OneRoute(tuple(range(model.num_layers))), len(split), execution
        ).accuracy
    }
    arbitrary = score(
        model, split, InTurn(orders, len(split) // BATCHES), len(split) // BATCHES, execution
    )
    return (
        found
        | {"arbitrary": arbitrary.accuracy}
        | ({"position": arbitrary.position_accuracy} if arbitrary.position_accuracy else {})
    )


def main() -> None:
    """Measure, write and print."""
    tried, rows = TRIED_AT_HOURS if HOURS else TRIED, []
    for (name, changed), seeds in zip(
        tried, try_settings("How the micro model is refined.", tried, measure, start), strict=True
    ):
        means = {
            key: float(np.mean([each[key] for each in seeds])) if key in seeds[0] else None
            for key in COLUMNS
        }
        rows.append(
            {
                "variant": name,
                "setting": ", ".join(f"{key} {value}" for key, value in changed.items()),
            }
            | means
        )
    write(FILE, {"machine": machine(), "seeds": len(SEEDS), "tried": rows})
    show("refinements, held-out images", rows)


if __name__ == "__main__":
    main()
