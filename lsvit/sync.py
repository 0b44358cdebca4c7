"""`lsvit track sync`: an MLflow store filled again from what finished stages left."""

import json
from pathlib import Path

from lsvit.errors import UserError
from lsvit.tracking import Tracker, declared_stages, store_uri


def sync(root: Path = Path()) -> int:
    """Log what finished stages left in outs/ and results/; what the store has stays as it is. Returns the runs added.

    Raises:
        UserError: there is nothing to log, or the store cannot be reached.
    """
    trainings = sorted({path.parent.parent for path in Path("outs").glob("**/seed_*/config.json")})
    preset = Path("outs/params/model.json")  # what the stages ran with: the model's name, the scale, the preset
    if not trainings or not preset.is_file():
        raise UserError("outs/: no finished training found, or no outs/params/; `dvc repro` or `dvc checkout` brings them")
    scale = json.loads(preset.read_text())[1]
    logged: dict[str, list[Path]] = {}  # experiment -> folders of trainings
    for folder in trainings:
        config = json.loads(next(folder.glob("seed_*/config.json")).read_text())
        logged.setdefault(f"{config['dataset']}/{config['model_name']}/{scale}", []).append(folder)
    cell = Path("results/cell.json")
    about = json.loads(cell.read_text()) if cell.is_file() else {}
    added = 0
    for experiment, folders in logged.items():
        tracker = Tracker(experiment, root, retries=3)
        for folder in folders:
            tracker.training(folder)
        for stage in declared_stages() if about and experiment == f"{about['dataset']}/{about['model']}/{about['scale']}" else ():
            tracker.results(stage)
        if tracker.failed:
            raise UserError(f"MLflow at {store_uri(root)} cannot be filled")
        added += tracker.recorded
    return added
