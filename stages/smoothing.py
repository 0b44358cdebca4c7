"""Stage smoothing: models trained with and without losses against over-smoothing, and profiles."""

from papers import PAPERS
from pipeline.jobs.processes import stage_process
from pipeline.jobs.stage import Stage


@stage_process()
def main() -> None:
    """outs/finetune/ -> outs/smoothing/, results/smoothing.csv (a row a model, order, layer)"""
    stage = Stage("pipeline.training.loop", PAPERS, of="smoothing", section="smoothing")
    from papers.smoothing.compute.plan import Plan
    from papers.smoothing.compute.rows import keep
    from papers.smoothing.section import Smoothing
    from pipeline.jobs.display import show_values

    plan = Plan(stage.params)
    show_values("smoothing", stage.params.values(Smoothing))
    show_values("smoothing, trainings", stage.params.scratch_values(Smoothing))
    models = [plan.trained(model) for model in plan.models()]
    jobs = [model.job for model in models if model.job]
    threads = stage.params.scratch_training(Smoothing).threads
    stage.train(jobs, threads, then="profiles of the models")
    profiles = plan.profiles([*models, *plan.references(), *plan.refined()])
    stage.run([profile.job for profile in profiles])
    for folder in keep(plan, models, profiles):
        stage.tracker.training(folder)
    stage.results("smoothing")


if __name__ == "__main__":
    main()
