"""Stages as processes: they end in order, and with the DVC that started them."""

import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from pipeline.jobs import processes
from pipeline.jobs.processes import ends_unless, is_alive
from tests.conftest import ROOT

STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text("utf-8"))["stages"]
SHORT = """
from pipeline.jobs.processes import ends_unless, find_dvc
with ends_unless(find_dvc()):
    print("done")
"""
# Notes the process and a child that multiprocessing made, and then has much to do.
LONG = """
import multiprocessing, os, time
from pathlib import Path
from pipeline.jobs.processes import die_with_parent, ends_unless, find_dvc

def wait():
    die_with_parent()
    Path(f"{os.getpid()}.pid").touch()
    time.sleep(60)

if __name__ == "__main__":
    with ends_unless(find_dvc()):
        multiprocessing.get_context("forkserver").Process(target=wait).start()
        Path(f"{os.getpid()}.pid").touch()
        time.sleep(60)
"""


def command(script: Path | str, **environment: str) -> dict[str, Any]:
    """Arguments of subprocess for a stage."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "DVC_STAGE": "stage"} | environment
    return {"args": [sys.executable, script], "env": env, "text": True}


def assert_end_soon(*numbers: int) -> None:
    """Check that the processes of these numbers do."""
    deadline = time.monotonic() + 20
    while any(psutil.pid_exists(n) and is_alive(psutil.Process(n)) for n in numbers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_short_stages_end_in_order_under_load(tmp_path: Path) -> None:
    """No thread of theirs still runs while the interpreter ends."""
    script = tmp_path / "short.py"
    script.write_text(SHORT)
    for _ in range(6):
        stages = [
            subprocess.Popen(**command(script), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(10)
        ]
        for stage in stages:
            assert stage.communicate() == ("done\n", "")
            assert stage.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(("shell", "wrapped"), [("/bin/bash", False), ("/bin/sh", True)])
def test_a_stage_ends_with_dvc(tmp_path: Path, shell: str, wrapped: bool) -> None:
    """DVC is killed alone, without its stage and the shell that stays between them if `wrapped`."""
    (tmp_path / "long.py").write_text(LONG)
    line = f"{sys.executable} long.py{'; true' if wrapped else ''}"
    (tmp_path / "dvc.yaml").write_text(f"stages:\n  wait:\n    cmd: {line}\n")
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    how = command("", SHELL=shell) | {"args": [sys.executable, "-m", "dvc", "repro"]}
    del how["env"]["DVC_STAGE"]
    with subprocess.Popen(
        **how, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as dvc:
        while len(noted := list(tmp_path.glob("*.pid"))) < 2:
            assert dvc.poll() is None
            time.sleep(0.05)
        dvc.kill()
    assert_end_soon(*(int(path.stem) for path in noted))


@pytest.mark.slow
def test_a_stage_ends_with_a_dvc_that_it_never_saw(tmp_path: Path) -> None:
    """Killed while the stage's interpreter was starting."""
    (tmp_path / "long.py").write_text(LONG)
    how = command(tmp_path / "long.py")
    start = (
        "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], "
        "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
    )
    how["args"] = [sys.executable, "-c", start, *how["args"]]
    done = subprocess.run(
        **how, cwd=tmp_path, start_new_session=True, check=True, capture_output=True
    )
    assert_end_soon(int(done.stdout))


@pytest.mark.parametrize("module", sorted({each["cmd"].split()[2] for each in STAGES.values()}))
def test_every_stage_ends_with_dvc(module: str) -> None:
    """Each has the decorator; the tests above try what it does."""
    assert inspect.getsource(import_module(module).main).startswith("@stage_process()")


@pytest.mark.parametrize("needed", [True, False])
def test_no_thread_is_left(monkeypatch: pytest.MonkeyPatch, needed: bool) -> None:
    """This process gets none of the signals that it sends itself."""
    signals: list[int] = []
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(processes, "LAST_SECONDS", 0.01)
    monkeypatch.setattr(processes.os, "kill", lambda pid, number: signals.append(number))
    before = threading.active_count()
    with ends_unless(lambda: needed):
        assert threading.active_count() == before + 1
        deadline = time.monotonic() + 5
        while not needed and len(signals) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert threading.active_count() == before
    assert signals == ([] if needed else [signal.SIGTERM, signal.SIGKILL])


def test_a_process_that_nobody_has_asked_for_its_end_is_not_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        known = psutil.Process(process.pid)
        while known.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert not is_alive(known)
    assert not is_alive(known)
    assert is_alive(psutil.Process())


def test_the_process_of_a_stage_imports_no_torch() -> None:
    """Nor does it start one: no stage has `torch` or `timm` when its script has been imported. The
    training loop has no Ray.
    """
    names = [path.stem for path in (ROOT / "stages").glob("*.py") if path.stem != "commands"]
    code = (
        f"import sys, importlib\nfor name in {names}:\n"
        "    importlib.import_module('stages.' + name)\n"
        "assert not {'torch', 'timm', 'ray', 'mlflow', 'matplotlib'} & set(sys.modules)\n"
        "import pipeline.training.loop\n"
        "assert 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
