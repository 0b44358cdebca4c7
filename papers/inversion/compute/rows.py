"""The rows of inversions and class images. No torch here."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from papers.inversion.compute.plan import Plan, Subject
from papers.inversion.section import KEYS, Inversion
from pipeline.config.params import Params
from pipeline.files import read_json, write_json
from pipeline.jobs.files import ARRAYS, FINAL, RESULTS
from pipeline.jobs.job import Job
from pipeline.jobs.rows import write_results
from pipeline.training.gather import gather_trainings

OUT = Path("outs/inversion")
CLASS_KEYS = ["family", "weights", "seed"]
CLASS_COLUMNS = ["class", "probability", "judge_probability", "judge_sees"]
TRAINING_COLUMNS = ["dataset", "model", "family", "seed", "accuracy"]


def gather_class_images(plan: Plan, jobs: Mapping[Subject, Job]) -> pd.DataFrame:
    """The rows of finished class images, a row a class; none where no head knows the classes."""
    if not jobs:
        return pd.DataFrame(columns=["dataset", "model", *CLASS_KEYS, *CLASS_COLUMNS])
    own_jobs = {(family, weights, seed): job for (family, weights, *_, seed), job in jobs.items()}
    return plan.gather(own_jobs, keys=CLASS_KEYS)


def gather_arrays(
    inversions: Mapping[Subject, Job], class_images: Mapping[Subject, Job], out: Path
) -> None:
    """Copy the arrays of finished jobs to `out`, and write which file is whose."""
    out.mkdir(parents=True, exist_ok=True)
    index: list[dict[str, Any]] = []
    for kind, jobs in (("inversion", inversions), ("class_images", class_images)):
        for subject, job in jobs.items():
            file = f"{len(index):03}.npz"
            shutil.copyfile(job.folder / ARRAYS, out / file)
            cell = {"dataset": job.config.dataset, "model": job.config.model_name}
            index.append({"file": file, "kind": kind} | cell | subject._asdict())
    write_json(out / "index.json", index)


def about(params: Params) -> dict[str, Any]:
    """What figures and captions say beyond inversion.csv."""
    options = params.resolve(Inversion)
    training = params.scratch_training(Inversion)
    families = list(options.families)
    trained = [name for name, family in options.families.items() if family.timm]
    scratch = trained  # whose training began with the untrained weights
    if params.model_preset.weights == "scratch":
        scratch = [*trained, params.model, *families]
    told = {"sigma", "shifts", "met", "optimisers", "class_images"}
    return options.model_dump(include=told) | {
        "epochs": training.epochs,
        "training_images": training.images,
        "families": families,
        "trained_here": trained,
        "scratch": scratch,
    }


def keep(
    plan: Plan,
    trainings: Mapping[str, Mapping[int, Job]],
    inversions: Mapping[Subject, Job],
    class_images: Mapping[Subject, Job],
) -> list[Path]:
    """Write results/ (inversion.csv, class_images.csv, inversion.json) and outs/inversion/.

    Besides inversion_trainings.csv: validation accuracy of every training, of the kept epoch.

    Returns:
        The folders of the trainings, one a family.
    """
    write_results(plan.gather(inversions, keys=KEYS), RESULTS / "inversion.csv")
    write_results(gather_class_images(plan, class_images), RESULTS / "class_images.csv")
    write_json(RESULTS / "inversion.json", about(plan.params), indent=None)
    gather_arrays(inversions, class_images, OUT / "arrays")
    folders = []
    accuracies = []
    for family, jobs in trainings.items():
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
