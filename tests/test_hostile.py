"""Files and names that somebody made to do harm."""

import pickle
import resource
import struct
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import yaml
from PIL import Image

from lsvit.predict import read_image
from papers import PAPERS
from pipeline.config.load import load
from pipeline.deploy.predict import show
from pipeline.errors import RIGHTS, ROOM, UserError, one_line_errors
from pipeline.files import replace_text
from pipeline.models.weights import read_tensors
from pipeline.training.loop import CHECKPOINT, _resume
from tests.conftest import ROOT, Printed, refused
from tests.models import CPU


def test_files_that_are_no_safetensors(tmp_path: Path) -> None:
    """A header of 2 GB, and a pickle."""
    header, pickled = tmp_path / "header.safetensors", tmp_path / "pickled.safetensors"
    header.write_bytes(struct.pack("<Q", 2 << 30) + b"{}")
    torch.save({"w": torch.ones(1)}, pickled)
    for path in (header, pickled):
        with refused(f"{path.name}: not a safetensors file"):
            read_tensors(path)


def test_an_image_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("1", (300, 300)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    with refused(r"a\.png: not an image that can be read", ValueError):
        read_image(tmp_path / "a.png", {"input_size": (1, 28, 28)})


def test_pickles_are_no_checkpoints(tmp_path: Path) -> None:
    """Nothing in one is called, also where the file is whole."""

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"model": Evil(), "history": []}, tmp_path / CHECKPOINT)
    with pytest.raises(pickle.UnpicklingError):
        _resume(tmp_path, Mock(execution=CPU))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name", ["[/]", "[red]", "a\x1b[2J", "a\nb", "<script>alert(1)</script>", "=1+1"]
)
def test_names_of_files_and_classes_are_words(printed: Printed, name: str) -> None:
    top = [{"class": name, "probability": 1.0, "std": None}]
    show(
        {
            "image": f"{name}.png",
            "weights": "ls_micro",
            "order": "sequential",
            "keep": 4,
            "top": top,
            "agree": 1,
            "orders": 1,
        }
    )
    said = printed()
    assert name.encode("unicode_escape").decode() in said
    assert "\x1b" not in said


def test_names_are_such_that_tables_and_paths_can_bear_them(tmp_path: Path) -> None:
    """They stand in exported tables, in paths and in the report."""
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    expected = []
    for key in ("variants", "models", "datasets", "scales"):
        for name in ("=1+1", "@cmd", "a,b", "<b>", "../up", "a\nb", ""):
            params[key][name] = next(iter(params[key].values()))
            expected.append(f"params.yaml: {key}: found the name {name!r}, accepted: ")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    with pytest.raises(UserError) as error:
        load(tmp_path / "params.yaml", papers=PAPERS)
    lines = str(error.value).splitlines()
    assert not [start for start in expected if not any(line.startswith(start) for line in lines)]


def caused_by(cause: Exception) -> Exception:
    """A library's error about another one."""
    error = RuntimeError("cannot write")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (OSError(28, "No space left on device", "results/table1.csv"), ROOM),
        (OSError(122, "Disk quota exceeded"), ROOM),
        (OSError(27, "File too large"), ROOM),
        (OSError(12, "Cannot allocate memory"), ROOM),
        (MemoryError(), ROOM),
        (caused_by(MemoryError()), ROOM),
        (OSError(30, "Read-only file system", ".lsvit/jobs"), RIGHTS),
        (OSError(13, "Permission denied", "outs"), RIGHTS),
        (OSError(1, "Operation not permitted", "outs"), RIGHTS),
        (caused_by(OSError(13, "Permission denied", ".dvc/tmp/lock")), RIGHTS),
        (UserError("a\x1b[2Jb.png: not an image"), "error: a\\x1b[2Jb.png: not an image"),
        (KeyboardInterrupt(), "what has finished is kept: the same command goes on"),
    ],
)
def test_what_ends_a_command_is_one_line(
    capsys: pytest.CaptureFixture[str], error: BaseException, end: str
) -> None:
    """What cannot be written, no memory, a name with terminal escapes, Ctrl-C."""
    with pytest.raises(SystemExit) as ended, one_line_errors():
        raise error
    said = capsys.readouterr().err
    is_interrupted = isinstance(error, KeyboardInterrupt)
    assert ended.value.code == (130 if is_interrupted else 2)
    assert said.startswith("interrupted; " if is_interrupted else "error: ")
    assert said.endswith(f"{end}\n")
    assert said.count("\n") == 1


def test_where_there_is_no_room_a_file_stays_what_it_was(tmp_path: Path) -> None:
    replace_text(file := tmp_path / "config.json", "old")
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        with pytest.raises(OSError, match="File too large"):
            replace_text(file, "new" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_other_errors_keep_their_traceback() -> None:
    with pytest.raises(OSError, match="Input/output"), one_line_errors():
        raise OSError(5, "Input/output error")
