"""Rate and batch size of every variant: `python benchmarks/refinement.py` -> refinement.json, with
scale hours refinement_hours.json.

Every variant has the same trials: the same learning rates and batch sizes, for the same number of
epochs, from the same starting weights. What counts is the accuracy on held-out images, which
nothing else reports, in the orders that the variant is trained for: arbitrary ones for those that
shuffle (the first layer in place for `ls_first`), its own route otherwise, all layers for
LayerDrop. The epoch is the one with the lowest loss on the same images. Chosen is the setting with
the highest mean, of equal ones the first; settings that not every variant has had do not count.
The file has five settings and one seed; the rest of the list was not run, and the order of the list
was changed once while it ran. Some variants chose the highest or the lowest rate tried.
Trials are written one by one, and a run goes on where the last one stopped. `ls_pred_mean` takes
what `ls_pred` has.
"""

import json
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from machine import machine, show, write
from settings import pretrain, refine

from lsvit.latin import latin
from lsvit.routes import OneRoute, Routes, generator
from papers import PAPERS
from pipeline.config.load import load
from pipeline.config.params import Params
from pipeline.config.samplers import Spec, latin_ends, make_sampler, training_order
from pipeline.config.sections import Finetune
from pipeline.data.prepare import prepare
from pipeline.jobs.files import HELDOUT, WEIGHTS, weights_file
from pipeline.training.scoring import InTurn, open_model, open_split, score

SEEDS = (0, 1)
# (rate, batch size), the likely ones first: a run may be stopped
SETTINGS = (
    (0.002, 40),
    (0.004, 40),
    (0.008, 40),
    (0.001, 40),
    (0.004, 120),
    (0.008, 120),
    (0.002, 120),
    (0.001, 120),
)
SETTINGS_AT_HOURS = ((0.002, 120), (0.004, 120), (0.008, 120))
EPOCHS = 4
LATIN_BATCHES = 10  # of the held-out images, each with as many orders as layers
VARIANTS = (
    "baseline",
    "ls",
    "ls_pos",
    "ls_pred",
    "layerdrop",
    "refit_1",
    "refit_3",
    "refit_6",
    "refit_9",
    "ls_latin",
    "shared",
    "parallel",
    "ls_first",
)


Settings = tuple[tuple[float, int], ...]


class Trial(NamedTuple):
    """One training."""

    seed: int
    lr: float
    batch_size: int
    variant: str


def list_trials(settings: Settings) -> list[Trial]:
    """All trials, setting by setting and seed by seed, all variants side by side."""
    return [
        Trial(seed, lr, batch_size, variant)
        for seed in SEEDS
        for lr, batch_size in settings
        for variant in VARIANTS
    ]


def own_routes(spec: Spec, num_layers: int) -> list[Routes]:
    """The orders that a variant is trained for, by batch."""
    ends = latin_ends(spec)
    if ends:
        return [latin(generator("refinement", i), num_layers, *ends) for i in range(LATIN_BATCHES)]
    sampler = make_sampler("sequential" if training_order(spec) == "sequential" else spec)
    return [OneRoute(sampler(generator("refinement"), num_layers))]


def measure(params: Params, trial: Trial, data: Path, start: Path, folder: Path) -> float:
    """Train, and return the accuracy on the held-out images in the variant's own orders."""
    options = params.resolve(Finetune, trial.variant).model_copy(
        update={
            "lr": trial.lr,
            "batch_size": trial.batch_size,
            "epochs": EPOCHS,
            "validation_orders": "trained",
        }
    )
    config = refine(params, trial.variant, options, trial.seed, data, start, folder)
    model, execution = open_model(config, data, folder / weights_file(HELDOUT))
    split = open_split(config, data, HELDOUT, model)
    routes = own_routes(config.variant.route, model.num_layers)
    batch_size = len(split) // len(routes)
    return score(model, split, InTurn(routes, batch_size), batch_size, execution).accuracy


def choose(trials: dict[Trial, float]) -> list[dict[str, Any]]:
    """A row a variant: the chosen setting, its accuracy, and that of every setting.

    What only some variants have does not count, nor what a setting has for one seed more.
    """
    accuracies: dict[tuple[float, int], dict[str, list[float]]] = {}
    for trial, accuracy in trials.items():
        of_variants = accuracies.setdefault((trial.lr, trial.batch_size), {})
        of_variants.setdefault(trial.variant, []).append(accuracy)
    complete = {
        setting: of_variants
        for setting, of_variants in accuracies.items()
        if of_variants.keys() >= set(VARIANTS)
    }
    if not complete:
        return []
    seeds = min(len(values) for found in complete.values() for values in found.values())
    rows = []
    for variant in VARIANTS:
        means = {setting: fmean(found[variant][:seeds]) for setting, found in complete.items()}
        lr, batch_size = max(means, key=lambda setting: means[setting])
        row = {"variant": variant, "lr": lr, "batch_size": batch_size, "seeds": seeds}
        all_means = {f"{lr} x {size}": round(mean, 4) for (lr, size), mean in means.items()}
        rows.append(row | {"accuracy": means[lr, batch_size], "settings": all_means})
    return rows


def main() -> None:
    """Measure what is missing, write and print."""
    params = load(papers=PAPERS)
    hours = params.cell.scale == "hours"
    settings = SETTINGS_AT_HOURS if hours else SETTINGS
    file = Path(__file__).with_name("refinement_hours.json" if hours else "refinement.json")
    known = json.loads(file.read_text("utf-8")).get("trials", []) if file.exists() else []
    trials = {Trial(*row[:-1]): row[-1] for row in known}
    torch.set_num_threads(1)
    work = Path(tempfile.gettempdir()) / file.stem  # data and starting weights stay there
    if not (work / "data").exists():
        prepare(params.dataset, params.dataset_preset, Path("data") / params.dataset, work / "data")
    for trial in list_trials(settings):
        if trial in trials:
            continue
        start = work / f"start_{trial.seed}"
        if not start.exists():
            pretrain(params, work / "data", start, trial.seed)
        with tempfile.TemporaryDirectory() as folder:
            weights = start / WEIGHTS
            trials[trial] = measure(params, trial, work / "data", weights, Path(folder) / "run")
        rows = [[*key, accuracy] for key, accuracy in trials.items()]
        content = {"machine": machine(), "epochs": EPOCHS, "chosen": choose(trials)}
        write(file, content | {"trials": rows})
    show("held-out images", [row | {"settings": ""} for row in choose(trials)])


if __name__ == "__main__":
    main()
