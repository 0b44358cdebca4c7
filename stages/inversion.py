"""Stage inversion: inputs found for what layers put out, class-maximising inputs, filters."""

from papers import PAPERS
from pipeline.jobs.processes import stage_process
from pipeline.jobs.stage import Stage


@stage_process()
def main() -> None:
    """outs/pretrain/, outs/finetune/ -> outs/inversion/, results/inversion*.csv (a row a point)"""
    stage = Stage("pipeline.training.loop", PAPERS, of="inversion", section="inversion")
    from papers.inversion.compute.plan import Plan
    from papers.inversion.compute.rows import keep
    from papers.inversion.section import Inversion
    from pipeline.jobs.display import show_values

    plan = Plan(stage.params)
    show_values("inversion", stage.params.values(Inversion))
    trainings = plan.trainings()
    if trainings:
        show_values("inversion, trainings", stage.params.scratch_values(Inversion))
        threads = stage.params.scratch_training(Inversion).threads
        jobs = [job for seeds in trainings.values() for job in seeds.values()]
        stage.train(jobs, threads, then="inversions of the models")
    models = plan.subjects()
    inversions, class_images = plan.inversions(models), plan.class_images(models)
    stage.run([*inversions.values(), *class_images.values()])
    for folder in keep(plan, trainings, inversions, class_images):
        stage.tracker.training(folder)
    stage.results("inversion")


if __name__ == "__main__":
    main()
