"""The rows of inversions and class images. No torch here."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from papers.inversion.compute.plan import Plan, Task
from papers.inversion.section import Inversion
from pipeline.config.params import Params
from pipeline.files import read_json, write_json
from pipeline.jobs.files import ARRAYS, FINAL, RESULTS, ROWS
from pipeline.jobs.job import Job
from pipeline.jobs.rows import read_rows, write_results
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
    "patterned",
    "verdict",
]
CLASS_KEYS = ["dataset", "model", "family", "weights", "seed"]
TRAINING_COLUMNS = ["dataset", "model", "family", "seed", "accuracy"]
CLASS_COLUMNS = [*CLASS_KEYS, "class", "probability", "judge_probability", "judge_sees"]


def gather_rows(tasks: Sequence[Task], columns: list[str]) -> pd.DataFrame:
    """Read the rows of finished tasks, with the keys of each.

    Args:
        tasks: inversions, a row a point and image, or class images, a row a class.
        columns: COLUMNS or CLASS_COLUMNS.
    """
    tables = [pd.DataFrame(columns=columns)] if not tasks else []
    for task in tasks:
        tables.append(read_rows(task.job.folder / ROWS).assign(**task.keys))
    return pd.concat(tables)[columns]


def gather_arrays(inversions: Sequence[Task], class_images: Sequence[Task], out: Path) -> None:
    """Copy the arrays of finished tasks to `out`, and write which file is whose."""
    out.mkdir(parents=True, exist_ok=True)
    index: list[dict[str, Any]] = []
    for kind, tasks in (("inversion", inversions), ("class_images", class_images)):
        for task in tasks:
            file = f"{len(index):03}.npz"
            shutil.copyfile(task.job.folder / ARRAYS, out / file)
            index.append({"file": file, "kind": kind} | task.keys)
    write_json(out / "index.json", index)


def about(params: Params) -> dict[str, Any]:
    """What captions say beyond inversion.csv."""
    options = params.resolve(Inversion)
    training = params.scratch_training(Inversion)
    return {
        "sigma": options.sigma,
        "shifts": options.shifts,
        "met": options.met,
        "epochs": training.epochs,
        "training_images": training.images,
        "optimisers": {name: descent.model_dump() for name, descent in options.optimisers.items()},
        "class_images": options.class_images.model_dump(),
        "families": list(options.families),
        "trained_here": [name for name, family in options.families.items() if family.timm],
    }


def keep(
    plan: Plan,
    trainings: dict[tuple[str, int], Job],
    inversions: Sequence[Task],
    class_images: Sequence[Task],
) -> list[Path]:
    """Write results/ (inversion.csv, class_images.csv, inversion.json) and outs/inversion/.

    Besides inversion_trainings.csv: validation accuracy of every training, of the kept epoch.

    Returns:
        The folders of the trainings, one a family.
    """
    write_results(gather_rows(inversions, COLUMNS), RESULTS / "inversion.csv")
    write_results(gather_rows(class_images, CLASS_COLUMNS), RESULTS / "class_images.csv")
    write_json(RESULTS / "inversion.json", about(plan.params), indent=None)
    gather_arrays(inversions, class_images, OUT / "arrays")
    folders = []
    accuracies = []
    for family in dict.fromkeys(family for family, _ in trainings):
        jobs = {seed: job for (name, seed), job in trainings.items() if name == family}
        folder = OUT / f"inversion_{family}"
        gather_trainings(jobs, folder, plan.judge)
        folders.append(folder)
        for seed, job in jobs.items():
            accuracy = read_json(folder / f"seed_{seed}" / FINAL)["sequential/accuracy"]
            model = (job.config.dataset, job.config.model_name, family, seed)
            accuracies.append((*model, accuracy))
    rows = pd.DataFrame(accuracies, columns=TRAINING_COLUMNS)
    write_results(rows, RESULTS / "inversion_trainings.csv")
    return folders
