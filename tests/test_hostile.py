"""Files and names that somebody made to do harm."""

import os
import pickle
import re
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file

from lsvit.predict import read_image
from papers import PAPERS
from pipeline.config.load import load
from pipeline.deploy.predict import show
from pipeline.errors import RIGHTS, ROOM, UserError, one_line_errors
from pipeline.files import reading, replace_text
from pipeline.jobs.job import call
from pipeline.models.weights import read_tensors
from pipeline.training.loop import CHECKPOINT, _resume
from tests.conftest import ROOT, Printed, TrainJobs, refused
from tests.models import CPU


def test_files_that_are_no_safetensors(tmp_path: Path) -> None:
    """A header of 2 GB, and a pickle."""
    file = tmp_path / "a.safetensors"
    file.write_bytes(struct.pack("<Q", 2 << 30) + b"{}")
    with refused("a.safetensors: not a safetensors file"):
        read_tensors(file)
    torch.save({"w": torch.ones(1)}, file)
    with refused("a.safetensors: not a safetensors file"):
        read_tensors(file)


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
    texts = {"image": f"{name}.png", "weights": "ls_micro", "order": "sequential"}
    show(texts | {"keep": 4, "top": top, "agree": 1, "orders": 1})
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
        *((OSError(number, "a reason", "a file"), ROOM) for number in (28, 122, 27, 12)),
        (OSError(28, "a reason"), ROOM),
        (MemoryError(), ROOM),
        (caused_by(MemoryError()), ROOM),
        *((OSError(number, "a reason", "a file"), RIGHTS) for number in (30, 13, 1)),
        (caused_by(OSError(13, "a reason", "a file")), RIGHTS),
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


def test_a_file_that_may_not_be_read_is_not_brought_back() -> None:
    with refused(f"^a file: cannot be read .*; {RIGHTS}$"), reading("a file"):
        raise PermissionError(13, "Permission denied")


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No file may have more than 100 bytes."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # else Python keeps what it cut off
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_where_there_is_no_room_a_file_stays_what_it_was(tmp_path: Path, small_files: None) -> None:
    replace_text(file := tmp_path / "config.json", "old")
    with pytest.raises(OSError, match="File too large"):
        replace_text(file, "new" * 100)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_safetensors_without_room_is_understood(
    tmp_path: Path, small_files: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit), one_line_errors():
        save_file({"w": torch.ones(100)}, tmp_path / "w")
    assert capsys.readouterr().err.endswith(f"{ROOM}\n")


def test_a_jobs_error_is_explained_where_its_cause_is_known(
    train_jobs: TrainJobs, own_root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its way from a worker to the stage it loses that."""
    train = Mock(side_effect=caused_by(OSError(28, "No space left on device")))
    monkeypatch.setattr("pipeline.training.loop.train", train)
    with refused(f"^test seed 0: cannot write; .*{ROOM}$"):
        call(train_jobs(0)[0], print)


@pytest.mark.parametrize(("number", "kind"), [(5, "Input/output"), (32, "Broken pipe")])
def test_other_errors_keep_their_traceback(number: int, kind: str) -> None:
    """Also a broken pipe that is not the output, such as one to a worker."""
    with pytest.raises(OSError, match=kind), one_line_errors():
        raise OSError(number, f"{kind} error")


PRINTS = {
    "at the end": "print('a')",
    "at once": "print('a', flush=True)",
    "much": "print('a' * 100_000)",
    "rich": "from rich.console import Console\n    Console().print('a')",
    "typer": "import typer\n    typer.run(lambda: print('a', flush=True))",
    "a mistake": "print('a')\n    raise UserError('b')",
}


def end_of(prints: str, output: int) -> tuple[int, str]:
    """Exit code and errors of a process that prints to an output."""
    code = f"from pipeline.errors import *\nwith one_line_errors():\n    {PRINTS[prints]}"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": ""},
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
    )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("prints", PRINTS)
def test_an_output_that_nobody_reads_or_without_room(prints: str) -> None:
    """The first ends it without a word, the second in one line."""
    reader, pipe = os.pipe()
    os.close(reader)
    assert end_of(prints, pipe) == (141, "error: b\n" if prints == "a mistake" else "")
    os.close(pipe)
    with open("/dev/full", "wb") as output:
        code, errors = end_of(prints, output.fileno())
    assert (code, errors.splitlines()[-1].endswith(ROOM)) == (2, True)
    assert errors.count("\n") == errors.count("error: ")


def test_other_code_than_that_of_the_working_folder_is_refused(tmp_path: Path) -> None:
    """PYTHONSAFEPATH=1 hides a copy's own code, such as that of `dvc exp run --temp`."""
    other_code = f"found the code of {ROOT}, .*unset PYTHONSAFEPATH"
    for name, said in (
        ("stages/__init__.py", "params.yaml: not found"),  # of another project
        ("lsvit/cli.py", other_code),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
        ended = subprocess.run(
            [sys.executable, "-m", "stages.check_params"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert (ended.returncode, ended.stdout) == (2, "")
        assert re.fullmatch(f"error: {said}.*\n", ended.stderr)
