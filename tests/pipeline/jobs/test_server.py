"""Stages as forks of a warm process: what the client is, the stage is, and one does not outlive the other."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.jobs import server
from tests.conftest import ROOT

STAGES = {
    "show": "import os, sys\nprint(sys.argv[1:], sys.stdin.read(), os.environ['DVC_STAGE'], os.getppid())\nprint('said', file=sys.stderr)",
    "mistake": "from pipeline.errors import UserError, one_line_errors\nwith one_line_errors():\n    raise UserError('no such thing')",
    "broken": "1 / 0",
    "lingers": "import atexit, builtins, time\nclass Library:\n    def __del__(self, sleep=time.sleep):\n        sleep(60)\n"
    "builtins.library = Library()\natexit.register(print, 'left')",
    # In short naps: a signal that comes just before one is seen after it.
    "wait": "import os, time\nif os.fork():\n    print(os.getpid(), flush=True)\nopen(str(os.getpid()), 'w').close()\n"
    + "time.sleep(0.1)\n" * 600,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of stages, in which one server serves all tests of this file. It cannot import torch and the like, which none needs."""
    folder = tmp_path_factory.mktemp("project")
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # jobs in the background of a shell ignore it
    for name in (*server.COMPUTE[1:4], *server.LATER):
        if "." not in name:
            (folder / f"{name}.py").write_text("raise ImportError")
    (folder / "stages").mkdir()
    shutil.copy(ROOT / "stages" / "__main__.py", folder / "stages")
    for name, code in STAGES.items():
        (folder / "stages" / f"{name}.py").write_text(code)
    yield folder
    signal.signal(signal.SIGINT, before)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (
                b"pipeline.jobs.server" in (process / "cmdline").read_bytes()
                and (process / "cwd").readlink() == folder
            ):
                os.kill(int(process.name), signal.SIGTERM)


def command(*arguments: str, **environment: str) -> dict:
    return {
        "args": [sys.executable, "-m", "stages", *arguments],
        "env": {name: value for name, value in os.environ.items() if name != "DVC_STAGE"}
        | {"PYTHONPATH": str(ROOT)}
        | environment,
        "text": True,
    }


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        **command(*arguments, **environment),
        cwd=folder,
        capture_output=True,
        input="typed",
        check=False,
    )


@pytest.mark.slow
def test_a_stage_has_what_its_client_has(folder: Path) -> None:
    """Arguments, standard files, environment; the second one comes from the same process."""
    shown = [run(folder, "show", "a", "b c", DVC_STAGE=name) for name in ("one", "two")]
    parents = []
    for done, stage in zip(shown, ("one", "two"), strict=True):
        assert (done.returncode, done.stderr) == (0, "said\n")
        assert done.stdout.startswith(f"['a', 'b c'] typed {stage} ")
        parents.append(int(done.stdout.split()[-1]))
    assert parents[0] == parents[1] != os.getpid()
    assert "pipeline.jobs.server" in Path(f"/proc/{parents[0]}/cmdline").read_text()


@pytest.mark.slow
def test_a_stage_ends_as_a_process_does(folder: Path) -> None:
    mistake, broken, unknown = (run(folder, name) for name in ("mistake", "broken", "nothing"))
    assert (mistake.returncode, mistake.stderr) == (2, "error: no such thing\n")
    assert broken.returncode == 1
    assert "ZeroDivisionError" in broken.stderr
    assert unknown.returncode == 2
    assert "accepted: broken, lingers, mistake, show, wait" in unknown.stderr


@pytest.mark.slow
def test_a_stage_does_not_wait_for_libraries_to_end(folder: Path) -> None:
    """What was registered for its end is done, and no object is taken apart after that."""
    done = subprocess.run(
        **command("lingers"), cwd=folder, capture_output=True, check=False, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_ends_the_stage_and_its_children(folder: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        **command("wait"), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        while len(list(folder.glob("[0-9]*"))) < 2:
            time.sleep(0.01)
        client.send_signal(number)
    processes = [int(path.name) for path in folder.glob("[0-9]*")]
    for path in folder.glob("[0-9]*"):
        path.unlink()
    assert pid in processes
    deadline = time.monotonic() + 10
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, processes))
    assert client.returncode == (-number if number != signal.SIGINT else client.returncode) != 0


@pytest.mark.slow
def test_a_stage_that_is_stopped_ends_with_its_client(folder: Path) -> None:
    with subprocess.Popen(
        **command("wait"), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        os.kill(pid, signal.SIGSTOP)
        client.kill()
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    ended = not alive(pid)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for path in folder.glob("[0-9]*"):
        path.unlink()
    assert ended


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stage_does_not_wait_for_a_busy_server(
    folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """Which imports something for a minute when the client is killed."""
    shutil.copytree(
        folder, busy := tmp_path / "busy", ignore=shutil.ignore_patterns("[0-9]*", "__pycache__")
    )
    (busy / "timm.py").write_text(
        "import os, time\nopen('server', 'w').write(str(os.getpid()))\ntime.sleep(60)"
    )
    with subprocess.Popen(
        **command("wait"), cwd=busy, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        while not (busy / "server").exists() or not (busy / "server").read_text():
            time.sleep(0.05)
        client.send_signal(number)
        deadline = time.monotonic() + 10
        while alive(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        ended = not alive(pid)
        os.kill(int((busy / "server").read_text()), signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    assert ended


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere no process learns of its parent's end"
)
def test_a_stage_ends_with_its_server(folder: Path) -> None:
    with subprocess.Popen(
        **command("wait"), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        os.kill(
            int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL
        )
        deadline = time.monotonic() + 10
        while alive(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        ended = not alive(pid)
        with suppress(ProcessLookupError):
            os.killpg(
                pid, signal.SIGKILL
            )  # what a stage forks looks after itself, see die_with_parent
    assert ended
    assert client.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_a_stage_ends_with_dvc(folder: Path, shell: str) -> None:
    """Killed alone, without its stage. Not every shell that runs a command gives it its own process."""
    (folder / "dvc.yaml").write_text(
        f"stages:\n  wait:\n    cmd: {sys.executable} -m stages wait\n"
    )
    (folder / ".dvc").mkdir(exist_ok=True)
    (folder / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    how = command(SHELL=shell) | {"args": [sys.executable, "-m", "dvc", "repro"]}
    with subprocess.Popen(
        **how, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as dvc:
        while len(found := list(folder.glob("[0-9]*"))) < 2:
            assert dvc.poll() is None
            time.sleep(0.05)
        dvc.kill()
    processes = [int(path.name) for path in found]
    for path in found:
        path.unlink()
    deadline = time.monotonic() + 10
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, processes))


@pytest.mark.slow
def test_a_stage_ends_with_a_dvc_that_it_never_saw(folder: Path) -> None:
    """Killed while the stage's interpreter was starting."""
    how = command("wait", DVC_STAGE="wait")
    start = f"import subprocess; print(subprocess.Popen({how['args']}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
    how |= {
        "args": [sys.executable, "-c", start],
        "cwd": folder,
        "capture_output": True,
        "start_new_session": True,
    }
    gone = subprocess.run(**how, check=True)
    deadline = time.monotonic() + 10
    while alive(int(gone.stdout)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(int(gone.stdout))
    while any(alive(int(path.name)) for path in folder.glob("[0-9]*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for path in folder.glob("[0-9]*"):
        path.unlink()


def alive(pid: int) -> bool:
    """Whether a process runs; one whose end nobody has asked for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_other_code_or_another_environment_is_another_server(folder: Path) -> None:
    def parent(**environment: str) -> str:
        return run(folder, "show", DVC_STAGE="x", **environment).stdout.split()[-1]

    before, others = parent(), [parent(CUDA_VISIBLE_DEVICES="0")]
    (folder / "stages" / "more.py").write_text("")
    try:
        others.append(parent())
    finally:
        (folder / "stages" / "more.py").unlink()
    assert len({before, *others}) == 3
    for pid in others:  # nobody asks them again
        os.kill(int(pid), signal.SIGTERM)


def test_without_a_safe_place_a_stage_is_a_process_of_its_own(folder: Path, tmp_path: Path) -> None:
    """A folder that others may write to is not trusted: who answers there gets the environment."""
    place = tmp_path / f"lsvit-{os.getuid()}"
    place.mkdir()
    place.chmod(0o777)
    done = run(folder, "show", DVC_STAGE="x", TMPDIR=str(tmp_path))
    assert done.returncode == 0
    assert int(done.stdout.split()[-1]) == os.getpid()
    assert not list(place.iterdir())


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        yield listener


def test_a_server_that_nobody_asks_ends(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(server, "COMPUTE", ("json", "no_such_module"))
    monkeypatch.setattr(server, "LATER", ())
    path = Path(listener.getsockname())
    try:
        assert server.serve(listener) is None
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    assert not path.exists()
