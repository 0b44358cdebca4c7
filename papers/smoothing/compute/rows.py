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
COLUMNS = [
    "dataset",
    "model",
    "training",
    "losses",
    "changed",
    "talking_heads",
    "num_layers",
    "order",
    "seed",
    "layer",
    "patch_cosine",
    "attention_std",
    "accuracy",
]


def profile_rows(profiles: Sequence[Profiled]) -> pd.DataFrame:
    """A row a model, order and number of layers executed; columns as :data:`COLUMNS`."""
    rows = []
    for model, order, job, accuracy in profiles:
        profile = read_json(job.folder / PROFILE)
        cosine = profile["patch_cosine"]
        attention = [None, *profile["attention_std"]]  # none of the embedding
        model_columns = (
            job.config.dataset,
            job.config.model_name,
            model.training,
            str(model.variant.losses),
            model.changed,
            model.variant.talking_heads,
            len(cosine) - 1,
            order,
            model.seed,
        )
        for layer, measures in enumerate(zip(cosine, attention, strict=True)):
            rows.append((*model_columns, layer, *measures, accuracy))
    return pd.DataFrame(rows, columns=COLUMNS).round(dict.fromkeys(COLUMNS[-3:], 6))


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
