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
from pipeline.config.load import load, parse
from pipeline.deploy.predict import open_weights, show
from pipeline.errors import RIGHTS, ROOM, UserError, one_line_errors
from pipeline.files import replace_text, write_json
from pipeline.models.weights import read_tensors
from pipeline.training.loop import CHECKPOINT, _resume
from tests.conftest import ROOT, Printed, refused
from tests.models import CPU


def test_a_safetensors_header_of_2_gb(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(struct.pack("<Q", 2 << 30) + b"{}")
    with refused(r"weights\.safetensors: not a safetensors file"):
        read_tensors(path)


def test_pickles_are_no_weights(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "model.safetensors")
    with refused("not a safetensors file"):
        read_tensors(tmp_path / "model.safetensors")


def test_an_image_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("1", (300, 300)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    with refused(r"a\.png: not an image that can be read", ValueError):
        read_image(tmp_path / "a.png", {"input_size": (1, 28, 28)})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scale: a\nscale: b\n", "key 'scale' stands twice"),
        ("x: !!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
    ],
)
def test_hostile_yaml(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(UserError) as error:
        parse(tmp_path / "params.yaml", papers=PAPERS)
    assert said in str(error.value)
    assert len(str(error.value)) < 10_000


@pytest.mark.parametrize("config", [[], {"architecture": "__import__"}, {"architecture": None}])
def test_a_hub_folder_with_a_hostile_config(tmp_path: Path, config: object) -> None:
    write_json(tmp_path / "config.json", config)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with refused(r"config\.json"):
        open_weights(str(tmp_path))


def test_pickles_are_no_checkpoints(tmp_path: Path) -> None:
    """Nothing in one is called, also where the file is whole."""

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"model": Evil(), "history": []}, tmp_path / CHECKPOINT)
    with pytest.raises(pickle.UnpicklingError):
        _resume(tmp_path, Mock(execution=CPU))
    assert not (tmp_path / "ran").exists()


def test_terminal_escapes_of_a_file_name_are_shown_not_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit), one_line_errors():
        raise UserError("a\x1b[2Jb.png: not an image")
    assert capsys.readouterr().err == "error: a\\x1b[2Jb.png: not an image\n"


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


@pytest.mark.parametrize("key", ["variants", "models", "datasets", "scales"])
@pytest.mark.parametrize("name", ["=1+1", "@cmd", "a,b", "<b>", "../up", "a\nb", ""])
def test_names_are_such_that_tables_and_paths_can_bear_them(
    tmp_path: Path, key: str, name: str
) -> None:
    """They stand in exported tables, in paths and in the report."""
    path = tmp_path / "params.yaml"
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params[key][name] = next(iter(params[key].values()))
    path.write_text(yaml.safe_dump(params))
    with refused(f"{key}: found the name"):
        load(path, papers=PAPERS)


def caused_by(cause: Exception) -> Exception:
    """A library's error about another one."""
    error = RuntimeError("cannot write")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "remedy"),
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
    ],
)
def test_what_cannot_be_written_and_no_memory_are_one_line(
    capsys: pytest.CaptureFixture[str], error: Exception, remedy: str
) -> None:
    with pytest.raises(SystemExit) as ended, one_line_errors():
        raise error
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("error: ")
    assert said.endswith(f"{remedy}\n")
    assert said.count("\n") == 1


def test_an_interruption_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, one_line_errors():
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert (
        capsys.readouterr().err
        == "interrupted; what has finished is kept: the same command goes on\n"
    )


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
