"""The whole pipeline on tiny presets, in a temporary copy of the repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pipeline.errors import UserError
from pipeline.git import git

PRESETS = ("dataset=fashion_mnist_tiny", "model=vit_pico", "scale=smoke", "seeds=[0]")
NAME = "lsvit"
EMAIL = "lsvit@localhost"


def copy_repository(target: Path) -> None:
    """Copy what git tracks or does not ignore to `target`, a git repository with one commit.

    Raises:
        UserError: the current folder is not the root of a git checkout of the project.
    """
    if not Path("dvc.yaml").is_file():
        raise UserError(f"{Path.cwd()}: not the root of a clone of the repository")
    listed = git("ls-files", "-coz", "--exclude-standard") or ""
    target.mkdir(parents=True, exist_ok=True)
    for name in listed.split("\0"):
        if Path(name).is_file():  # git lists a deleted file too
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name, target / name)
    for words in ("init -q", "add -A", "-c commit.gpgsign=false commit -qm smoke"):
        subprocess.run(["git", *words.split()], cwd=target, env=environment(), check=True)


def environment() -> dict[str, str]:
    """Return the copy's environment: this interpreter, no other code, repository or store."""
    others = ("DVC_", "GIT_", "MLFLOW_", "PYTHONSAFEPATH")
    env = {name: os.environ[name] for name in os.environ if not name.startswith(others)}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    for who in ("AUTHOR", "COMMITTER"):  # `dvc exp run` commits
        env[f"GIT_{who}_NAME"] = NAME
        env[f"GIT_{who}_EMAIL"] = EMAIL
    return env


def run(target: Path) -> None:
    """Run every stage in a copy of the repository.

    Args:
        target: an empty or new folder for the copy.

    Raises:
        UserError: the folder is not empty, or a stage fails.
    """
    if target.exists() and any(target.iterdir()):
        raise UserError(f"{target}: not empty, accepted: a new folder")
    copy_repository(target)
    overrides = [f"-S{preset}" for preset in PRESETS]
    command = [sys.executable, "-m", "dvc", "exp", "run", "--pull", *overrides]
    if subprocess.run(command, cwd=target, env=environment(), check=False).returncode:
        raise UserError("the smoke run failed")
