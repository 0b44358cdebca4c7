"""The rows that come of profiles. No torch here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from papers.smoothing.compute.plan import Model, Plan, Profiled
from papers.smoothing.section import PROFILE, Smoothing
from pipeline.config.params import Params
from pipeline.files import read_json, write_json
from pipeline.jobs.files import RESULTS
from pipeline.jobs.rows import write_results
from pipeline.training.gather import gather_trainings

OUT = Path("outs/smoothing")
MEASURES = {"patch_cosine": 6, "attention_std": 6, "accuracy": 6}  # decimals kept


def profile_rows(profiles: Sequence[Profiled]) -> pd.DataFrame:
    """A row a model, order and number of layers executed."""
    tables = []
    for model, order, job, accuracy in profiles:
        profile = read_json(job.folder / PROFILE)
        keys = {
            "dataset": job.config.dataset,
            "model": job.config.model_name,
            "training": model.training,
            "losses": str(model.variant.losses),
            "changed": model.changed,
            "talking_heads": model.variant.talking_heads,
            "num_layers": len(profile["attention_std"]),
            "order": order,
            "seed": model.seed,
        }
        measures = {
            "layer": range(len(profile["patch_cosine"])),
            "patch_cosine": profile["patch_cosine"],
            "attention_std": [None, *profile["attention_std"]],  # none of the embedding
            "accuracy": accuracy,
        }
        tables.append(pd.DataFrame(keys | measures))
    return pd.concat(tables).round(MEASURES)


def about(params: Params) -> dict[str, Any]:
    """What captions say beyond smoothing.csv."""
    options = params.resolve(Smoothing)
    training = params.scratch_training(Smoothing)
    return {
        "images": options.images,
        "epochs": training.epochs,
        "training_images": training.images,
        "kwargs": options.kwargs,
        "recipe": options.recipe.model_dump(),
    }


def keep(plan: Plan, models: Sequence[Model], profiles: Sequence[Profiled]) -> list[Path]:
    """Write results/smoothing.csv and smoothing.json, and the trainings to outs/smoothing/.

    Returns:
        The trainings' folders, one a title.
    """
    write_results(profile_rows(profiles), RESULTS / "smoothing.csv")
    write_json(RESULTS / "smoothing.json", about(plan.params), indent=None)
    OUT.mkdir(parents=True, exist_ok=True)  # also where nothing is trained
    titles = dict.fromkeys(model.title for model in models)
    for title in titles:
        jobs = {model.seed: model.job for model in models if model.title == title and model.job}
        gather_trainings(jobs, OUT / title, plan.judge)
    return [OUT / title for title in titles]
