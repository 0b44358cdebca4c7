"""A warm process for the stages of a run: it has imported torch, timm and mlflow, and every stage is a fork of it.

`python -m stages NAME` is a client: it sends its arguments, environment and open files, passes signals on, and ends as the stage does,
which ends with it.
The first client starts the server, which ends by itself when nobody has asked for a while. A server stands for one user, folder,
interpreter, environment, limits and source code; it never touches a GPU. Where none can be had, and with `python -m stages.NAME`, a
stage is a process like any other.
"""

import atexit
import ctypes
import fcntl
import gc
import hashlib
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

IDLE_SECONDS = 30.0
LAST_SECONDS = 6.0  # that a stage has to end in order when DVC is gone
# Imported one after another while nobody asks, in small parts: who asks meanwhile waits for one.
COMPUTE = (
    "pipeline.jobs.stage",
    "torch",
    "torchvision",
    "timm",
    "pipeline.training.loop",
    "papers.exits.compute.frozen",
)
LATER = (
    "sqlalchemy",
    "mlflow",
    "mlflow.store.tracking.sqlalchemy_store",
    "matplotlib.pyplot",
    "sklearn.neighbors",
    "numba",
    "umap",
)
ANY = (
    "DVC_",
    "PYTEST_",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "COLUMNS",
    "LINES",
    "_",
)  # beginnings of variables that may differ
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STARTED = b"+"
PR_SET_PDEATHSIG = 1  # of prctl(2)

warm = False  # in a stage's process: a fork of a server that had imported what jobs need


# ---- the client -------------------------------------------------------------------------------------------------------


def run(stage: str, arguments: list[str]) -> int:
    """Run a stage's script as a fork of the warm server, else in this process. Returns its exit code."""
    request = {"stage": stage, "arguments": arguments, "environment": dict(os.environ)}
    if "DVC_STAGE" in os.environ:
        threading.Thread(target=end_with_dvc, args=(threading.get_ident(),), daemon=True).start()
    life = -1
    try:
        for file in range(3):
            os.fstat(file)  # one that is closed would be taken for the pipe's
        ours, life = os.pipe()
        server = connect()
        socket.send_fds(server, [STARTED], [0, 1, 2, ours])
        os.close(ours)
        server.sendall(json.dumps(request).encode() + b"\n")
        started = server.recv(1) == STARTED
    except OSError:
        started = False
    if not started:  # no such sockets here, or the server could not import something, which this process will say
        with suppress(OSError):
            os.close(life)  # should there be a stage all the same, it ends
        return execute(stage, arguments)

    def pass_on(number: int, _: object) -> None:
        try:
            os.write(life, bytes([number]))
        except BrokenPipeError:  # the stage has ended, which the server has not said yet
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, pass_on)
    code = int(b"".join(iter(lambda: server.recv(16), b"")) or -signal.SIGKILL)
    if code < 0:  # the stage was killed
        if -code in PASSED_ON:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def end_with_dvc(thread: int) -> None:
    """Terminate a thread when DVC is gone, and this process if that was not enough: a stage that outlived a killed DVC would write where
    the next run does."""
    import psutil

    child = psutil.Process()
    with suppress(
        psutil.NoSuchProcess, ProcessLookupError
    ):  # also a shell between may be killed alone
        with suppress(psutil.AccessDenied):
            while (
                "DVC_STAGE" in (parent := psutil.Process(child.ppid())).environ()
            ):  # some shells stay between DVC and the command
                child = parent
        # Where DVC was killed before this process could look, that is who adopts orphans: of another session than DVC and its stages,
        # or a container's first process, which may be DVC itself, but then no shell or init.
        adopted = os.getsid(parent.pid) != os.getsid(0) or (
            parent.pid == 1 and not parent.name().startswith(("dvc", "python"))
        )
        while not adopted and child.ppid() == parent.pid:
            time.sleep(0.5)
    signal.pthread_kill(thread, signal.SIGTERM)
    time.sleep(LAST_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def connect() -> socket.socket:
    """A connection to the server, started if there is none. Raises OSError: it cannot be had."""
    folder = Path(tempfile.gettempdir(), f"lsvit-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if (
        found.st_uid != os.getuid()
        or stat.S_IMODE(found.st_mode) != 0o700
        or not stat.S_ISDIR(found.st_mode)
    ):
        raise PermissionError(f"{folder} is somebody else's")
    path = folder / identity()
    client = socket.socket(socket.AF_UNIX)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            client.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            path.unlink(missing_ok=True)
            start(path)
            client.connect(str(path))
    return client


def start(path: Path) -> None:
    """Start a server that listens at a path."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        code = f"from pipeline.jobs.server import main; main({listener.fileno()})"
        nothing = subprocess.DEVNULL
        subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[listener.fileno()],
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            start_new_session=True,
        )


def identity() -> str:
    """What a server stands for, as a hash: it is never asked from elsewhere."""
    os.umask(umask := os.umask(0o077))
    environment = sorted(
        (name, value) for name, value in os.environ.items() if not name.startswith(ANY)
    )
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    installed = Path(sysconfig.get_path("purelib")).stat().st_mtime_ns
    about = [
        sys.executable,
        str(Path.cwd()),
        environment,
        cores,
        umask,
        os.getpriority(os.PRIO_PROCESS, 0),
        installed,
    ]
    digest = hashlib.sha256(json.dumps(about).encode())
    for file in sorted(
        file
        for room in ("lsvit", "pipeline", "papers", "stages")
        for file in Path(room).rglob("*.py")
    ):
        digest.update(f"{file}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:20]


# ---- the server -------------------------------------------------------------------------------------------------------


def main(listener: int) -> None:
    """Serve; in a fork, run the stage that was asked for."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # mlflow reads it when it is imported
    if request := serve(socket.socket(fileno=listener)):
        try:
            code = execute(request["stage"], request["arguments"])
        except SystemExit as ended:
            if isinstance(ended.code, str):
                raise
            code = ended.code or 0
        except Exception:
            traceback.print_exc()
            code = 1
        leave(code)


def leave(code: int) -> NoReturn:
    """End a fork as multiprocessing ends its own, without taking the interpreter apart: native libraries may wait for ever then (Ray's
    driver did, after its node had been killed)."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = 120  # as the interpreter does
    os._exit(code)


def serve(listener: socket.socket) -> dict[str, Any] | None:
    """Fork a process for every request until none has come for a while. Returns None then, and in a fork its request."""
    wake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # the end of a stage wakes the loop
    clients: dict[int, socket.socket] = {}  # by the stage's process
    missing = [*COMPUTE, *LATER]
    with selectors.DefaultSelector() as selector, wake, waker:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while True:
            ready = [
                key
                for key, _ in selector.select(0 if missing else None if clients else IDLE_SECONDS)
            ]
            if not ready and missing:  # nobody waits: get ready for what comes
                with suppress(ImportError):
                    importlib.import_module(missing.pop(0))
                gc.freeze()  # forks leave these objects' memory shared
            elif not ready:
                Path(listener.getsockname()).unlink(missing_ok=True)
                return None
            for key in ready:
                if key.fileobj is listener:
                    client = listener.accept()[0]
                    request, files = receive(client)
                    if request and not (pid := os.fork()):
                        become(request, files, is_warm=len(missing) <= len(LATER))
                        for other in (listener, client, *clients.values()):
                            other.close()
                        return request
                    if request:
                        clients[pid] = client
                        selector.register(client, selectors.EVENT_READ, pid)
                        with suppress(OSError):
                            client.send(STARTED)
                    for file in files:
                        os.close(file)
                elif key.fileobj is wake:
                    wake.recv(4096)
                    for pid in list(clients):
                        ended, status = os.waitpid(pid, os.WNOHANG)
                        if ended:
                            client = clients.pop(pid)
                            with suppress(KeyError):
                                selector.unregister(client)
                            with suppress(OSError):
                                client.send(str(os.waitstatus_to_exitcode(status)).encode())
                            client.close()
                elif (
                    key.data in clients
                ):  # the client is gone; a stage that is stopped does not hear of it
                    selector.unregister(clients[key.data])
                    with suppress(ProcessLookupError):
                        os.killpg(key.data, signal.SIGKILL)


def receive(client: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """A client's request, None if it is gone, its standard files, and the pipe by which it lives on."""
    try:
        _, files, _, _ = socket.recv_fds(client, 1, 4)
        with client.makefile("rb") as lines:
            return json.loads(lines.readline() or b"null"), files
    except OSError:
        return None, []


def become(request: dict[str, Any], files: list[int], is_warm: bool) -> None:
    """Make this fork what the client is: its environment, its standard files, a process group for signals."""
    global warm
    warm = is_warm
    os.setpgid(0, 0)
    if (
        sys.platform == "linux"
    ):  # where the server is killed alone, its stages would go on unseen beside those of the next run
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # who started the server may have ignored some
    for passed in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(passed, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"])
    *files, life = files
    threading.Thread(target=obey, args=(life,), daemon=True).start()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)


def obey(life: int) -> None:
    """Get the signals that the client passes on; be killed when it is gone. The server may be importing something for long."""
    while number := os.read(life, 1):
        os.killpg(0, number[0])
    os.killpg(0, signal.SIGKILL)


def execute(stage: str, arguments: list[str]) -> int:
    """Run a stage's script in this process, as `python -m stages.NAME` does. Returns 0, or ends otherwise."""
    sys.argv = [f"stages/{stage}.py", *arguments]
    runpy.run_module(f"stages.{stage}", run_name="__main__", alter_sys=True)
    return 0
