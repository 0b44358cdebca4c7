"""Stage smoothing: models trained from scratch with and without the losses against over-smoothing; profiles of them and of variants."""

import json
from pathlib import Path

from lsvit import launch
from lsvit.errors import one_line_errors
from lsvit.jobs import gather_trainings, show_values
from lsvit.params import load
from lsvit.processes import root
from lsvit.sections import Smoothing
from lsvit.smoothing_jobs import Plan, about, profile_rows, smoothing_metrics
from lsvit.tracking import Tracker

DATA, FINETUNED, OUT, RESULTS = Path("outs/prepare_data"), Path("outs/finetune"), Path("outs/smoothing"), Path("results")


@one_line_errors()
def main() -> None:
    """outs/prepare_data/, outs/finetune/ -> outs/smoothing/, results/smoothing.csv (a row a model, order, layer), smoothing*.json"""
    launch.warm_up("lsvit.training")
    params = load()
    plan = Plan(params, DATA, FINETUNED, RESULTS / "prune_eval.csv")
    show_values("smoothing", params.values(Smoothing))
    training = params.scratch_training(Smoothing)
    show_values("smoothing, trainings", params.scratch_values(Smoothing))
    tracker = Tracker(f"{params.dataset}/{params.model}", root())
    models = [plan.trained(model) for model in plan.models()]
    launch.run([model.job for model in models if model.job], params.device, lambda job, row: tracker.epoch(job.record(), row),
               training.threads, params.distributed)  # fmt: skip
    profiles = plan.profiles([*models, *plan.references(), *plan.refined()])
    launch.run([profile.job for profile in profiles], params.device)
    (RESULTS / "smoothing.json").write_text(json.dumps(about(params)) + "\n")
    rows = profile_rows(profiles)
    rows.to_csv(RESULTS / "smoothing.csv", index=False, lineterminator="\n")
    (RESULTS / "smoothing_metrics.json").write_text(json.dumps(smoothing_metrics(rows), indent=1) + "\n")
    OUT.mkdir(parents=True, exist_ok=True)
    for title in dict.fromkeys(model.title for model in models):
        folders = {model.seed: model.job.folder for model in models if model.title == title and model.job}
        gather_trainings(folders, OUT / title, OUT / title / "history.csv", plan.judge)
        tracker.training(OUT / title)
    tracker.results("smoothing")


if __name__ == "__main__":
    main()
