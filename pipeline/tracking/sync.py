"""`lsvit track sync`: an MLflow store filled again from what finished stages left."""

from pathlib import Path

from pipeline.declared import declared_stages
from pipeline.errors import UserError
from pipeline.files import read_json, reading
from pipeline.tracking.runs import STAGES, Tracker, experiment_name, store_uri

OF = {
    "baseline": "layershuffle",
    "finetune": "layershuffle",
}  # folder of outs/ -> whose trainings, where that is not its name


def sync(root: Path = Path()) -> int:
    """Log what finished stages left in outs/ and results/; what the store has stays as it is. Returns the runs added.

    Raises:
        UserError: there is nothing to log, or the store cannot be reached.
    """
    trainings = sorted({path.parent.parent for path in Path("outs").glob("**/seed_*/config.json")})
    preset = Path(
        "outs/params/model.json"
    )  # what the stages ran with: the model's name, the scale, the preset
    if not trainings or not preset.is_file():
        raise UserError(
            "outs/: no finished training found, or no outs/params/; `dvc repro` or `dvc checkout` brings them"
        )
    with reading(preset):
        scale = read_json(preset, list)[1]
    logged: dict[str, list[Path]] = {}  # experiment -> folders of trainings
    for folder in trainings:
        of = OF.get(folder.parts[1], folder.parts[1])
        with reading(file := next(folder.glob("seed_*/config.json"))):
            config = read_json(file)
            logged.setdefault(
                experiment_name(of, (config["dataset"], config["model_name"], scale)), []
            ).append(folder)
    trackers = {experiment: Tracker(experiment, root, retries=3) for experiment in logged}
    for experiment, folders in logged.items():
        for folder in folders:
            trackers[experiment].training(folder)
    if (cell := Path("results/cell.json")).is_file():
        with reading(cell):
            about = read_json(cell)
            experiment = experiment_name(STAGES, (about["dataset"], about["model"], about["scale"]))
        trackers[experiment] = Tracker(experiment, root, retries=3)
        for stage in declared_stages():
            trackers[experiment].results(stage)
    if any(tracker.failed for tracker in trackers.values()):
        raise UserError(f"MLflow at {store_uri(root)} cannot be filled")
    return sum(tracker.recorded for tracker in trackers.values())
