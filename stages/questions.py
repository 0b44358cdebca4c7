"""Stage questions: merged models, pruned ones, and what many passes are good for."""

from papers import PAPERS
from pipeline.jobs.processes import stage_process
from pipeline.jobs.stage import Stage


@stage_process()
def main() -> None:
    """outs/finetune/, outs/pretrain/ -> results/questions.csv (a row a number)"""
    stage = Stage("papers.questions.compute.passes", PAPERS, of="questions", section="questions")
    from papers.questions.compute.plan import Plan
    from papers.questions.compute.rows import keep
    from pipeline.config.sections import Finetune

    plan = Plan(stage.params)
    threads = stage.params.resolve(Finetune).threads
    further = plan.further()
    stage.train(list(further.values()), threads, "passes")
    jobs = plan.jobs()
    stage.run(list(jobs.values()))
    healing = plan.healing(jobs)
    stage.train(list(healing.values()), threads)
    keep(plan, jobs, healing)
    stage.results("questions")


if __name__ == "__main__":
    main()
