"""Rate and batch size of every variant: `python benchmarks/refinement.py` -> refinement.json, with
scale hours refinement_hours.json.

Every variant has the same trials: the same learning rates and batch sizes, for the same number of
forward and backward passes, from the same starting weights. The teacher of `ls_teacher` is a
baseline trained at the lowest rate. What counts is the accuracy on held-out images, which
nothing else reports, in the orders that the variant is trained for: arbitrary ones for those that
shuffle (the first layer in place for `ls_first`), its own route otherwise, all layers for
LayerDrop. The epoch is the one with the lowest loss on the same images. Chosen is the setting with
the highest mean, of equal ones the first; settings that not every variant has had do not count.
refinement.json has eight settings and one seed; the rest of the list was not run. The order of the
list was changed once while it ran, and the ends of the range were added last (0.016, 0.0005, then
0.00025), for all variants, because some had chosen the highest or the lowest rate.
Trials are written one by one, and a run goes on where the last one stopped. `ls_pred_mean` takes
what `ls_pred` has. For scale hours, set `scale` in params.yaml.
"""

import json
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
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
    (0.016, 40),
    (0.0005, 40),
    (0.00025, 40),
    (0.008, 120),
    (0.002, 120),
    (0.001, 120),
)
SEEDS_AT_HOURS = (0,)
SETTINGS_AT_HOURS = ((0.001, 40), (0.008, 40), (0.003, 40))
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
VARIANTS_AT_HOURS = (
    *(variant for variant in VARIANTS if variant not in ("shared", "parallel")),
    "ls_sample",
    "ls_contrastive",
    "ls_both",
    "ls_self",
    "ls_teacher",
    "ls_best",
)

Settings = tuple[tuple[float, int], ...]


class Trial(NamedTuple):
    """One training."""

    seed: int
    lr: float
    batch_size: int
    variant: str


def list_trials(seeds: Sequence[int], settings: Settings, variants: Sequence[str]) -> list[Trial]:
    """All trials, setting by setting and seed by seed, all variants side by side."""
    return [
        Trial(seed, lr, batch_size, variant)
        for seed in seeds
        for lr, batch_size in settings
        for variant in variants
    ]


def own_routes(spec: Spec, num_layers: int) -> list[Routes]:
    """The orders that a variant is trained for, by batch."""
    ends = latin_ends(spec)
    if ends:
        return [latin(generator("refinement", i), num_layers, *ends) for i in range(LATIN_BATCHES)]
    sampler = make_sampler("sequential" if training_order(spec) == "sequential" else spec)
    return [OneRoute(sampler(generator("refinement"), num_layers))]


def options_of(params: Params, trial: Trial) -> Finetune:
    """How a trial trains."""
    chosen = {"lr": trial.lr, "batch_size": trial.batch_size, "validation_orders": "trained"}
    return params.resolve(Finetune, trial.variant).model_copy(update=chosen)


def begin(params: Params, data: Path, folder: Path, seed: int, lowest: tuple[float, int]) -> None:
    """Starting weights, and the baseline that teaches."""
    weights = pretrain(params, data, folder, seed)
    trial = Trial(seed, *lowest, "baseline")
    teacher = folder / "teacher"
    refine(params, "baseline", options_of(params, trial), seed, data, weights, teacher)


def measure(work: Path, trial: Trial) -> float:
    """Train, and return the accuracy on the held-out images in the variant's own orders."""
    params = load(papers=PAPERS)
    data = work / "data"
    start = work / f"start_{trial.seed}"
    teaches = params.all_variants[trial.variant].teacher == "baseline"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        config = refine(
            params,
            trial.variant,
            options_of(params, trial),
            trial.seed,
            data,
            start / WEIGHTS,
            folder,
            start / "teacher" / WEIGHTS if teaches else None,
        )
        model, execution = open_model(config, data, folder / weights_file(HELDOUT))
    split = open_split(config, data, HELDOUT, model)
    routes = own_routes(config.variant.route, model.num_layers)
    batch_size = len(split) // len(routes)
    return score(model, split, InTurn(routes, batch_size), batch_size, execution).accuracy


def choose(trials: dict[Trial, float], variants: Sequence[str]) -> list[dict[str, Any]]:
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
        if of_variants.keys() >= set(variants)
    }
    if not complete:
        return []
    seeds = min(len(values) for found in complete.values() for values in found.values())
    rows = []
    for variant in variants:
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
    seeds = SEEDS_AT_HOURS if hours else SEEDS
    settings = SETTINGS_AT_HOURS if hours else SETTINGS
    variants = VARIANTS_AT_HOURS if hours else VARIANTS
    file = Path(__file__).with_name("refinement_hours.json" if hours else "refinement.json")
    known = json.loads(file.read_text("utf-8")).get("trials", []) if file.exists() else []
    trials = {Trial(*row[:-1]): row[-1] for row in known}
    missing = [t for t in list_trials(seeds, settings, variants) if t not in trials]
    work = Path(tempfile.gettempdir()) / file.stem  # data and starting weights stay there
    data = work / "data"
    if not data.exists():
        prepare(params.dataset, params.dataset_preset, Path("data") / params.dataset, data)
    for seed in sorted({trial.seed for trial in missing}):
        if not (folder := work / f"start_{seed}").exists():
            begin(params, data, folder, seed, min(settings))
    with ProcessPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        accuracies = pool.map(partial(measure, work), missing)
        for trial, accuracy in zip(missing, accuracies, strict=True):
            trials[trial] = accuracy
            rows = [[*key, value] for key, value in trials.items()]
            write(
                file,
                {"machine": machine(), "chosen": choose(trials, variants), "trials": rows},
            )
    show("held-out images", [row | {"settings": ""} for row in choose(trials, variants)])


if __name__ == "__main__":
    main()
