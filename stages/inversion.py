"""Stage inversion: what layers represent. Inputs found for the states along routes, of models as they are and edited; class images."""

import json
from pathlib import Path

from lsvit import launch
from lsvit.errors import one_line_errors
from lsvit.inversion_jobs import Plan, about, class_rows, gather_arrays, inversion_metrics, inversion_rows
from lsvit.inversion_sections import Inversion
from lsvit.jobs import gather_trainings, show_values
from lsvit.params import load
from lsvit.processes import root
from lsvit.tracking import Tracker

DATA, PRETRAINED, FINETUNED = Path("outs/prepare_data"), Path("outs/pretrain"), Path("outs/finetune")
OUT, RESULTS = Path("outs/inversion"), Path("results")


@one_line_errors()
def main() -> None:
    """outs/prepare_data/, outs/pretrain/, outs/finetune/ -> outs/inversion/, results/inversion*.csv (a row a point, image), .json"""
    launch.warm_up("lsvit.training")
    params = load()
    plan = Plan(params, DATA, FINETUNED, PRETRAINED)
    show_values("inversion", params.values(Inversion))
    tracker, trainings = Tracker(f"{params.dataset}/{params.model}", root()), plan.trainings()
    training = params.scratch_training(Inversion)
    if trainings:
        show_values("inversion, trainings", params.scratch_values(Inversion))
        launch.run(list(trainings.values()), params.device, lambda job, row: tracker.epoch(job.record(), row), training.threads,
                   params.distributed)  # fmt: skip
    models = plan.models(trainings)
    inversions, class_images = plan.inversions(models), plan.class_images(models)
    launch.run([task.job for task in (*inversions, *class_images)], params.device)
    rows = inversion_rows(inversions)
    rows.to_csv(RESULTS / "inversion.csv", index=False, lineterminator="\n")
    class_rows(class_images).to_csv(RESULTS / "class_images.csv", index=False, lineterminator="\n")
    (RESULTS / "inversion.json").write_text(json.dumps(about(params)) + "\n")
    main_optimiser = next(iter(plan.options.optimisers))
    (RESULTS / "inversion_metrics.json").write_text(json.dumps(inversion_metrics(rows, main_optimiser), indent=1) + "\n")
    gather_arrays(inversions, class_images, OUT / "arrays")
    for family in dict.fromkeys(family for family, _ in trainings):
        folders = {seed: job.folder for (name, seed), job in trainings.items() if name == family}
        title = f"inversion_{family}"
        gather_trainings(folders, OUT / title, OUT / title / "history.csv", plan.judge)
        tracker.training(OUT / title)
    tracker.results("inversion")


if __name__ == "__main__":
    main()
