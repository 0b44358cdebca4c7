"""Which micro model behaves like a pre-trained one: `python benchmarks/stand_in.py` ->
stand_in.json.

A model with published weights needs its order all the way down, a briefly pre-trained micro model
only in its first layers. Each setting is pre-trained and refined in original and (with Latin
routes) in arbitrary order, as `minutes` does it; then accuracy with the first k layers in place and
the others shuffled is measured on held-out images, which nothing else reports. The distance to the
pre-trained ViT-S is the root mean square, over k, of the difference between the shares of what is
above chance that are left.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine, show, write
from settings import SEEDS, pretrain, refine, try_settings

from lsvit.latin import latin
from lsvit.routes import generator
from papers import PAPERS
from pipeline.config.load import load
from pipeline.config.sections import Finetune
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import HELDOUT, weights_file
from pipeline.training.scoring import InTurn, open_model, open_split, score

FILE = Path(__file__).with_suffix(".json")
KS = (0, 1, 2, 3, 4, 6, 8, 12)
# A pre-trained ViT-S/14 of DINOv2's architecture, refined for 5 epochs in original order on 4,000
# images of Fashion-MNIST at 56 pixels; one seed, 500 images
PRE_TRAINED = (0.24, 0.26, 0.33, 0.44, 0.46, 0.63, 0.74, 0.80)
CHANCE, ORDERS = 0.1, 200
# What differs from vit_micro: of the preset (kwargs too) and, with a dot, of its pre-training.
SETTINGS: list[dict[str, Any]] = [
    {"init_growth": 0.0},  # vit_micro before
    {"init_growth": 0.0, "init_std": 0.3},
    {"init_growth": 0.0, "init_std": 0.3, "embed_dim": 24},
    {"init_growth": 0.0, "init_values": 0.1},
    {"init_growth": 0.5},
    {"init_growth": 0.75},
    {"init_growth": 1.0},
    {"init_growth": 1.5},
    {"init_growth": 0.5, "init_std": 0.2},
    {"init_growth": 0.75, "init_std": 0.15},
    {"init_growth": 0.35, "init_std": 0.3},
    {"init_growth": 1.0, "pretrain.epochs": 3},
    {"init_growth": 1.0, "embed_dim": 64, "num_heads": 4, "init_std": 0.069},
    {"init_growth": 1.0, "patch_size": 7},
]


def curve(config: TrainConfig, data: Path, weights: Path) -> list[float]:
    """Accuracy on the held-out images, by number of layers in place."""
    model, execution = open_model(config, data, weights)
    split = open_split(config, data, HELDOUT, model)
    found = []
    for k in KS:
        groups = max(model.num_layers - k, 1)
        passes, batch_size = math.ceil(ORDERS / groups / 10), math.ceil(len(split) / 10)
        drawn = [
            [latin(generator("stand-in", k, i, j), model.num_layers, k) for j in range(10)]
            for i in range(passes)
        ]
        found.append(
            float(
                np.mean(
                    [
                        score(
                            model, split, InTurn(routes, batch_size), batch_size, execution
                        ).accuracy
                        for routes in drawn
                    ]
                )
            )
        )
    return found


def measure(
    setting: dict[str, Any], seed: int, data: Path, folder: Path, _: None
) -> dict[str, Any]:
    """One setting and seed: pre-trained, refined twice, and the curves."""
    params = load(papers=PAPERS)
    own, plain = (
        params.models[params.model],
        {k: v for k, v in setting.items() if k in ("init_std", "init_growth")},
    )
    kwargs = own.kwargs | {k: v for k, v in setting.items() if "." not in k and k not in plain}
    params = params.model_copy(
        update={"models": {params.model: own.model_copy(update=plain | {"kwargs": kwargs})}}
    )
    changes = {k.partition(".")[2]: v for k, v in setting.items() if "." in k}
    start, found = pretrain(params, data, folder, seed, threads=1, **changes), {}
    for name in ("baseline", "ls"):
        trained = refine(
            params, name, params.resolve(Finetune, name), seed, data, start, folder / name
        )
        found[name] = curve(trained, data, folder / name / weights_file(HELDOUT))
    return found


def distance(accuracies: np.ndarray) -> float:
    """Of a curve to that of the pre-trained model, both as shares of what lies above chance with
    all layers in place.
    """
    shares = [(each - CHANCE) / (each[-1] - CHANCE) for each in (accuracies, np.array(PRE_TRAINED))]
    return float(np.sqrt(np.mean((shares[0] - shares[1])[:-1] ** 2)))


def main() -> None:
    """Measure, write and print."""
    rows = []
    for setting, seeds in zip(
        SETTINGS,
        try_settings("Which micro model behaves like a pre-trained one.", SETTINGS, measure),
        strict=True,
    ):
        curves = {name: np.array([each[name] for each in seeds]) for name in ("baseline", "ls")}
        distances = [distance(each) for each in curves["baseline"]]
        rows.append(
            {
                "setting": ", ".join(f"{key} {value}" for key, value in setting.items()),
                "distance": float(np.mean(distances)),
                "distance_std": float(np.std(distances, ddof=1)),
                **{
                    name: [round(float(value), 3) for value in each.mean(0)]
                    for name, each in curves.items()
                },
            }
        )
    write(
        FILE,
        {
            "machine": machine(),
            "seeds": len(SEEDS),
            "layers_in_place": KS,
            "pre_trained": PRE_TRAINED,
            "settings": rows,
        },
    )
    show("accuracy on held-out images by number of first layers in place", rows)


if __name__ == "__main__":
    main()
