"""The rows that come of inversions and class images. No torch here."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from papers.inversion.compute.plan import Plan, Task
from papers.inversion.section import Inversion
from pipeline.config.params import Params
from pipeline.jobs.files import ARRAYS, RESULTS, ROWS
from pipeline.jobs.job import Job
from pipeline.jobs.rows import read_rows
from pipeline.training.gather import gather_trainings

OUT = Path("outs/inversion")
KEYS = ["dataset", "model", "family", "weights", "edit", "order", "optimiser", "seed"]
COLUMNS = [
    *KEYS,
    "point",
    "depth",
    "image",
    "lr",
    "embedding_distance",
    "yardstick",
    "input_distance",
    "input_yardstick",
    "token_distance",
    "token_yardstick",
    "pixel_correlation",
    "num_layers",
    "overcomplete",
    "verdict",
]
CLASS_KEYS = ["dataset", "model", "family", "weights", "seed"]
CLASS_COLUMNS = [*CLASS_KEYS, "class", "probability", "judge_probability", "judge_sees"]


def inversion_rows(tasks: Sequence[Task]) -> pd.DataFrame:
    """A row a model, point and image; columns as :data:`COLUMNS`."""
    tables = []
    for task in tasks:
        rows = read_rows(task.job.folder / ROWS)
        tables.append(rows.assign(**dict(zip(KEYS, task.keys, strict=True))))
    return pd.concat(tables)[COLUMNS]


def class_rows(tasks: Sequence[Task]) -> pd.DataFrame:
    """A row a model and class: the probability that the model, and another training of it, gives the class, and which one that sees."""
    tables = []
    for task in tasks:
        own = dict(zip(KEYS, task.keys, strict=True))
        rows = read_rows(task.job.folder / ROWS)
        tables.append(rows.assign(**{key: own[key] for key in CLASS_KEYS}))
    return pd.concat(tables)[CLASS_COLUMNS] if tables else pd.DataFrame(columns=CLASS_COLUMNS)


def gather_arrays(inversions: Sequence[Task], class_images: Sequence[Task], out: Path) -> None:
    """Copy the images and curves that figures show to `out`, and write which file is whose."""
    out.mkdir(parents=True, exist_ok=True)
    index = []
    for i, task in enumerate([*inversions, *class_images]):
        file = f"{i:03}.npz"
        shutil.copyfile(task.job.folder / ARRAYS, out / file)
        kind = "inversion" if i < len(inversions) else "class_images"
        index.append({"file": file, "kind": kind} | dict(zip(KEYS, task.keys, strict=True)))
    (out / "index.json").write_text(json.dumps(index, indent=1) + "\n")


def about(params: Params) -> dict[str, Any]:
    """What inversion.csv does not say, for captions."""
    options, training = params.resolve(Inversion), params.scratch_training(Inversion)
    return {
        "sigma": options.sigma,
        "shifts": options.shifts,
        "met": options.met,
        "epochs": training.epochs,
        "training_images": training.images,
        "optimisers": {name: descent.model_dump() for name, descent in options.optimisers.items()},
        "class_images": options.class_images.model_dump(),
        "families": list(options.families),
        "trained_here": [
            name for name, family in options.families.items() if family.timm is not None
        ],
    }


def keep(
    plan: Plan,
    trainings: dict[tuple[str, int], Job],
    inversions: Sequence[Task],
    class_images: Sequence[Task],
) -> list[Path]:
    """Write results/inversion.csv, class_images.csv and inversion.json, arrays and trainings to outs/inversion/.

    Returns:
        The trainings' folders, one a family.
    """
    inversion_rows(inversions).to_csv(RESULTS / "inversion.csv", index=False, lineterminator="\n")
    class_rows(class_images).to_csv(RESULTS / "class_images.csv", index=False, lineterminator="\n")
    (RESULTS / "inversion.json").write_text(json.dumps(about(plan.params)) + "\n")
    gather_arrays(inversions, class_images, OUT / "arrays")
    titles = []
    for family in dict.fromkeys(family for family, _ in trainings):
        jobs = {seed: job for (name, seed), job in trainings.items() if name == family}
        titles.append(OUT / f"inversion_{family}")
        gather_trainings(jobs, titles[-1], plan.judge)
    return titles
