"""Stage exits: early exits on frozen backbones and trained with them, and a counting task."""

from papers import PAPERS
from pipeline.jobs.processes import stage_process
from pipeline.jobs.stage import Stage


@stage_process()
def main() -> None:
    """outs/pretrain/, outs/finetune/ -> outs/exits/, results/exits*.csv (a row an exit), .json"""
    stage = Stage("papers.exits.compute.frozen", PAPERS, of="exits", section="exits")
    from papers.exits.compute.plan import Plan
    from papers.exits.compute.rounds import train
    from papers.exits.compute.rows import OUT, keep
    from papers.exits.section import Exits
    from pipeline.config.sections import Finetune
    from pipeline.jobs.display import show_values

    plan = Plan(stage.params)
    show_values("exits", stage.params.values(Exits))
    OUT.mkdir(parents=True, exist_ok=True)
    threads = stage.params.resolve(Finetune).threads
    frozen, trained = train(plan, OUT, lambda jobs, then: stage.train(jobs, threads, then))
    for folder, task in keep(plan, frozen, trained).items():
        stage.tracker_of(task).training(folder)
    stage.results("exits")


if __name__ == "__main__":
    main()
