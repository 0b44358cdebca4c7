"""`lsvit track sync`: fill an MLflow store from what finished stages left."""

from pathlib import Path

from pipeline.config.paper import Paper
from pipeline.declared import PRESET, check_preset, declared_stages
from pipeline.errors import UserError
from pipeline.files import read_json
from pipeline.tracking.runs import STAGES, Tracker, experiment_name, paper_of
from pipeline.tracking.store import store_uri, without_password


def sync(papers: tuple[Paper, ...]) -> int:
    """Log what finished stages left in outs/ and results/. What the store has stays as it is.

    Returns:
        How many runs were added.

    Raises:
        UserError: there is nothing to log, it is of an interrupted run of another model or scale,
            or the store cannot be reached.
    """
    trainings = sorted({path.parent.parent for path in Path("outs").glob("**/seed_*/config.json")})
    if not trainings or not PRESET.is_file():
        raise UserError(
            "outs/: no finished training found, or no outs/params/; "
            "`dvc repro` or `dvc checkout` brings them, or run in the repository's root"
        )
    for folder in trainings:
        check_preset(folder)
    scale = read_json(PRESET, list)[1]
    trackers: dict[str, Tracker] = {}

    def tracker_of(of: str, *cell: str) -> Tracker:
        name = experiment_name(of, cell)
        return trackers.setdefault(name, Tracker(name, Path(), live=False))

    for folder in trainings:
        config = read_json(next(folder.glob("seed_*/config.json")))
        paper = paper_of(folder, papers)
        tracker_of(paper, config["dataset"], config["model_name"], scale).training(folder)
    about = Path("results/cell.json")
    if about.is_file():
        cell = read_json(about)
        tracker = tracker_of(STAGES, cell["dataset"], cell["model"], cell["scale"])
        for stage in declared_stages():
            tracker.results(stage)
    if any(tracker.failed for tracker in trackers.values()):
        raise UserError(f"MLflow at {without_password(store_uri(Path()))} cannot be filled")
    return sum(tracker.recorded for tracker in trackers.values())
