"""What dvc.yaml declares and dvc.lock has: stages, whose file is whose, checksums."""

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.files import read_json, reading


@lru_cache(maxsize=4)  # asked for stage by stage, training by training; a tenth of a second each
def _stages(text: str) -> dict[str, Any]:
    import yaml

    if not text.endswith("\n"):  # what is cut off is often YAML too
        raise ValueError("its last line is torn")
    try:
        return yaml.safe_load(text)["stages"]
    except yaml.YAMLError as error:
        raise ValueError(error) from None


def declared_stages() -> dict[str, Any]:
    """The stages of dvc.yaml. Raises UserError if it cannot be read."""
    with reading(file := Path("dvc.yaml"), "run in the repository's root"):
        return _stages(file.read_text())


def checksums(stage: str, what: str = "outs") -> dict[str, str]:
    """The md5 of what a stage left, or of its "deps", by path, as dvc.lock has it; that of a folder ends in `.dir`.

    Raises UserError if it cannot be read."""
    return _checksums(what).get(stage, {})


def changed(file: Path) -> bool:
    """Whether a file in a folder that a stage left is another than DVC noted then; not where it noted none. Raises UserError if what it
    noted cannot be read."""
    for outs in _checksums("outs").values():
        for folder, md5 in outs.items():
            listed = Path(".dvc", "cache", "files", "md5", md5[:2], md5[2:])
            if (
                file.absolute().is_relative_to(Path(folder).absolute())
                and md5.endswith(".dir")
                and listed.is_file()
            ):
                own = file.absolute().relative_to(Path(folder).absolute()).as_posix()
                with open(file, "rb") as content:
                    found = hashlib.file_digest(content, "md5").hexdigest()
                return not any(
                    (each["relpath"], each["md5"]) == (own, found)
                    for each in read_json(listed, list)
                )
    return False


def _checksums(what: str) -> dict[str, dict[str, str]]:
    if not (file := Path("dvc.lock")).exists():
        return {}
    with reading(file, "`dvc repro` or `git checkout` brings it back"):
        known = _stages(file.read_text())
        return {
            stage: {out["path"]: out["md5"] for out in noted.get(what, ())}
            for stage, noted in known.items()
        }


def paths(outs: list[Any]) -> list[Path]:
    """Outputs, as dvc.yaml lists them, without their options."""
    return [Path(name) for out in outs for name in (out if isinstance(out, dict) else [out])]


def stage_of(folder: Path) -> str:
    """The stage of dvc.yaml that leaves a folder of `outs/`."""
    return next(
        name
        for name, stage in declared_stages().items()
        if any(folder.is_relative_to(out) for out in paths(stage["outs"]))
    )


def stage_results(stage: str) -> tuple[list[Path], list[Path]]:
    """The files below results/ that dvc.yaml says a stage writes, as far as they are there, and those of them that are metrics."""
    declared = declared_stages()[stage]
    kinds = [paths(declared.get(kind, ())) for kind in ("outs", "metrics")]
    found = [
        [
            file
            for path in kind
            if path.parts[0] == "results"
            for file in (sorted(path.iterdir()) if path.is_dir() else [path])
        ]
        for kind in kinds
    ]
    outs, metrics = ([file for file in files if file.is_file()] for files in found)
    return outs + metrics, metrics
