"""What the processes of a run share: the repository they belong to, and their end."""

import multiprocessing
import os
import threading
from pathlib import Path


def root() -> Path:
    """The real repository: DVC says where it is, also from a queued experiment's temporary copy."""
    return Path(os.environ.get("DVC_ROOT", "."))


def die_with_parent() -> None:
    """In a worker process: end when the parent does, whatever ended it."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
