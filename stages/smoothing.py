"""Stage smoothing: models trained from scratch with and without the losses against over-smoothing; profiles of them and of variants."""

from papers import PAPERS
from papers.smoothing.compute.plan import Plan
from papers.smoothing.compute.rows import keep
from papers.smoothing.section import Smoothing
from pipeline.errors import one_line_errors
from pipeline.jobs.display import show_values
from pipeline.jobs.stage import Stage


@one_line_errors()
def main() -> None:
    """outs/prepare_data/, outs/finetune/ -> outs/smoothing/, results/smoothing.csv (a row a model, order, layer), smoothing.json"""
    stage = Stage("pipeline.training.loop", PAPERS, of="smoothing")
    plan = Plan(stage.params)
    show_values("smoothing", stage.params.values(Smoothing))
    show_values("smoothing, trainings", stage.params.scratch_values(Smoothing))
    models = [plan.trained(model) for model in plan.models()]
    stage.train(
        [model.job for model in models if model.job],
        stage.params.scratch_training(Smoothing).threads,
    )
    profiles = plan.profiles([*models, *plan.references(), *plan.refined()])
    stage.run([profile.job for profile in profiles])
    for folder in keep(plan, models, profiles):
        stage.tracker.training(folder)
    stage.results("smoothing")


if __name__ == "__main__":
    main()
