"""What the processes of a run share: their repository and their end."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from pathlib import Path

import psutil

from pipeline.errors import one_line_errors

LOOK_SECONDS = 0.5  # between two looks whether this process is still needed
LAST_SECONDS = 6.0  # that it has to end in order, from SIGTERM to SIGKILL


def root() -> Path:
    """The real repository: DVC says where it is, also from a queued experiment's temporary copy."""
    return Path(os.environ.get("DVC_ROOT", "."))


@contextmanager
def stage_process() -> Iterator[None]:
    """The process of a stage: a user's mistake ends it in one line, and the end of DVC ends it."""
    if "DVC_STAGE" not in os.environ:
        with one_line_errors():
            yield
        return
    code = 0
    try:
        with one_line_errors(), ends_unless(find_dvc()):
            yield
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    if "ray" in sys.modules:
        _leave(code)
    if code:
        sys.exit(code)


def _leave(code: int) -> None:
    """End this process at once: the end of the interpreter may wait for ever for Ray's driver.

    It did after the driver's node had been killed.
    """
    import ray

    ray.shutdown()  # ends a cluster that this process started, and leaves another
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def start_workers(*modules: str) -> None:
    """Start the process that all workers are forked from. It imports these modules, and torch.

    The stage itself never does, and plans its jobs in the meantime.
    """
    multiprocessing.set_forkserver_preload(list(modules))
    forkserver.ensure_running()


def die_with_parent() -> None:
    """In a worker of multiprocessing: end when the parent does, whatever ended it.

    The thread may outlive the main one: such a worker ends by `os._exit`.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def ends_unless(needed: Callable[[], bool]) -> Iterator[None]:
    """Within the block, send this process SIGTERM once it is no longer `needed`, later SIGKILL.

    The thread that looks is joined before the block ends: one that still runs while the interpreter
    ends can crash it.
    """
    left = threading.Event()

    def watch() -> None:
        while not left.wait(LOOK_SECONDS):
            if not needed():
                os.kill(os.getpid(), signal.SIGTERM)
                if not left.wait(LAST_SECONDS):
                    os.kill(os.getpid(), signal.SIGKILL)
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs; one that has ended and waits to be asked for its end does not."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def find_dvc() -> Callable[[], bool]:
    """Find the DVC that runs this stage. Returns a function that says whether it still does.

    A stage that outlived a killed DVC would write where the next run does.
    """
    child = psutil.Process()
    try:
        parent = psutil.Process(child.ppid())
        while _belongs_to_a_stage(parent):  # a shell may stay between DVC and its command
            child = parent
            parent = psutil.Process(child.ppid())
        other_session = os.getsid(parent.pid) != os.getsid(0)
        is_shell = not parent.name().startswith(("dvc", "python"))
    except (psutil.NoSuchProcess, ProcessLookupError):
        return lambda: False
    # Where DVC was killed before this look, the parent is whoever adopts orphans: a process of
    # another session, or the first of a container, which may be DVC itself, but then is no shell.
    if other_session or (parent.pid == 1 and is_shell):
        return lambda: False

    def runs() -> bool:
        with suppress(psutil.NoSuchProcess):
            return child.ppid() == parent.pid
        return False

    return runs


def _belongs_to_a_stage(process: psutil.Process) -> bool:
    with suppress(psutil.AccessDenied):
        return "DVC_STAGE" in process.environ()
    return False
