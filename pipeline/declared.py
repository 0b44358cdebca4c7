"""What dvc.yaml declares and dvc.lock has: stages, whose file is whose, checksums."""

import hashlib
import shutil
from collections import ChainMap
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.files import read_json, reading

PRESET = Path("outs/params/model.json")  # the model, the scale, and what the preset says


@lru_cache(maxsize=4)  # asked for stage by stage; a tenth of a second each
def _stages(text: str) -> dict[str, Any]:
    import yaml

    if not text.endswith("\n"):  # a file that is cut off is often YAML too
        raise ValueError("its last line is torn")
    try:
        return yaml.safe_load(text)["stages"]
    except yaml.YAMLError as error:
        raise ValueError(error) from None


def declared_stages() -> dict[str, Any]:
    """The stages of dvc.yaml. Raises UserError if it cannot be read."""
    file = Path("dvc.yaml")
    with reading(file, "run in the repository's root"):
        return _stages(file.read_text("utf-8"))


def checksums(stage: str, what: str = "outs") -> dict[str, str]:
    """The md5 of what a stage left, or of its "deps", by path, as dvc.lock has it.

    That of a folder ends in `.dir`. Raises UserError if dvc.lock cannot be read.
    """
    return _checksums(what).get(stage, {})


def _checksums(what: str) -> dict[str, dict[str, str]]:
    file = Path("dvc.lock")
    if not file.exists():
        return {}
    with reading(file, "`git checkout HEAD dvc.lock` brings it back"):  # DVC needs a sound one
        stages = _stages(file.read_text("utf-8"))
        return {
            name: {entry["path"]: entry["md5"] for entry in stage.get(what, ())}
            for name, stage in stages.items()
        }


def ran_with(stage: str, path: str) -> bool:
    """True if a file or folder is that which a stage ran with, as far as DVC recorded both.

    Raises UserError if dvc.lock cannot be read.
    """
    used = checksums(stage, "deps").get(path)
    now = ChainMap(*_checksums("outs").values()).get(path)
    if Path(path).is_file():
        now = _md5(Path(path))
    return used is None or now is None or used == now


def changed(file: Path) -> bool:
    """True if a file in a folder that a stage left has another md5 than DVC recorded then.

    False if DVC recorded none. Raises UserError if its record cannot be read.
    """
    place = file.absolute()
    for path, md5 in ChainMap(*_checksums("outs").values()).items():
        folder = Path(path).absolute()
        record = Path(".dvc", "cache", "files", "md5", md5[:2], md5[2:])
        inside = md5.endswith(".dir") and place.is_relative_to(folder)
        if inside and record.is_file():
            listed = {entry["relpath"]: entry["md5"] for entry in read_json(record, list)}
            return listed.get(place.relative_to(folder).as_posix()) != _md5(file)
    return False


def _md5(file: Path) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "md5").hexdigest()


def check_preset(folder: Path) -> None:
    """Raise UserError if trainings in a folder of `outs/` ran with another model or scale."""
    for stage, left in _checksums("outs").items():
        if any(folder.is_relative_to(out) for out in left) and not ran_with(stage, str(PRESET)):
            raise UserError(
                f"{folder}: stage {stage} ran with another model or scale than {PRESET} has; "
                "`dvc repro` or `dvc checkout` brings them together"
            )


def paths(outs: list[Any]) -> list[Path]:
    """Outputs, as dvc.yaml lists them, without their options."""
    return [Path(next(iter(out)) if isinstance(out, dict) else out) for out in outs]


def remove(path: Path) -> None:
    """Remove a file, a folder with all that it holds, or a link, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def clear(stage: str) -> list[Path]:
    """Remove all that dvc.yaml says a stage leaves, as DVC does before it. Returns their paths."""
    declared = declared_stages()[stage]
    outs = paths(declared["outs"] + declared.get("metrics", []))
    for out in outs:
        remove(out)
    return outs


def leave_empty(outs: Iterable[Path], note: str) -> None:
    """Write those outputs that are not there: tables without columns, {}, and the note elsewhere.

    DVC warns of a folder that is empty.
    """
    for out in outs:
        if out.exists():
            continue
        out.parent.mkdir(parents=True, exist_ok=True)
        texts = {".csv": "\n", ".json": "{}\n", ".md": f"{note}\n", ".tex": f"% {note}\n"}
        if out.suffix in texts:
            out.write_text(texts[out.suffix], encoding="utf-8")
        else:
            out.mkdir()
            (out / "not_run.txt").write_text(f"{note}\n", encoding="utf-8")


def stage_of(folder: Path) -> str:
    """The stage of dvc.yaml that leaves a folder of `outs/`."""
    for name, stage in declared_stages().items():
        if any(folder.is_relative_to(out) for out in paths(stage["outs"])):
            return name
    raise ValueError(f"no stage of dvc.yaml leaves {folder}")


def stage_results(stage: str) -> tuple[list[Path], list[Path]]:
    """The files below results/ that dvc.yaml says a stage writes, as far as they are there.

    Returns:
        All of them, and those that are metrics.
    """
    declared = declared_stages()[stage]
    outs = _result_files(declared.get("outs", ()))
    metrics = _result_files(declared.get("metrics", ()))
    return outs + metrics, metrics


def _result_files(declared: list[Any]) -> list[Path]:
    files: list[Path] = []
    for path in paths(declared):
        if path.parts[0] == "results":
            files += sorted(path.iterdir()) if path.is_dir() else [path]
    return [file for file in files if file.is_file()]
