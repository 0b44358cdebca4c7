"""What the processes of a run share: the repository they belong to, the GPUs, and their end."""

import multiprocessing
import os
import re
import shutil
import subprocess
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


def cuda_devices() -> int:
    """How many NVIDIA GPUs there are; asks the driver, so that the parent process need not import torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name not in ("", "-1")])
    if shutil.which("nvidia-smi") is None:  # in some containers
        return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    listed = subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, check=False
    ).stdout
    return len(re.findall(r"^GPU \d+:", listed, re.M))
