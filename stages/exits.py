"""Stage exits: early exits on frozen backbones and trained with them, dynamic inference, and a counting task."""

from papers import PAPERS
from papers.exits.compute.plan import Plan
from papers.exits.compute.rounds import train
from papers.exits.compute.rows import OUT, keep
from papers.exits.section import Exits
from pipeline.errors import one_line_errors
from pipeline.jobs.display import show_values
from pipeline.jobs.stage import Stage


@one_line_errors()
def main() -> None:
    """outs/pretrain/, outs/finetune/ -> outs/exits/, results/exits.csv (a row an exit), exits_dynamic.csv, exits.json (hardware)"""
    stage = Stage("papers.exits.compute.frozen", PAPERS, of="exits")
    plan = Plan(stage.params)
    show_values("exits", stage.params.values(Exits))
    OUT.mkdir(parents=True, exist_ok=True)
    folders = keep(plan, train(plan, OUT))
    for task in dict.fromkeys(folders.values()):
        tracker = stage.tracker_of(task)
        for folder in (folder for folder, name in folders.items() if name == task):
            tracker.training(folder)
    stage.results("exits")


if __name__ == "__main__":
    main()
