"""The whole pipeline on tiny presets, in a temporary copy of the repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pipeline.errors import UserError

PRESETS = ("dataset=fashion_mnist_tiny", "model=vit_pico", "scale=smoke", "seeds=[0]")


def copy_repository(target: Path) -> None:
    """Copy the working tree (what git tracks or does not ignore) to `target`, as a git repository with one commit.

    Raises:
        UserError: the current folder is not the root of a git checkout of the project.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode or not Path("dvc.yaml").is_file():
        raise UserError(f"{Path.cwd()}: not the root of a clone of the repository")
    target.mkdir(parents=True, exist_ok=True)
    for name in filter(None, listed.stdout.split("\0")):
        if Path(name).is_file():  # a deleted file is still listed
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name, target / name)
    identity = [
        "-c",
        "user.name=lsvit",
        "-c",
        "user.email=lsvit@localhost",
        "-c",
        "commit.gpgsign=false",
    ]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "smoke"]):
        subprocess.run(["git", *command], cwd=target, check=True)


def environment() -> dict[str, str]:
    """The environment in which the copy runs: this interpreter, and nothing that points at another repository or store."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DVC_", "GIT_", "MLFLOW_"))}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    identity = {"NAME": "lsvit", "EMAIL": "lsvit@localhost"}  # dvc exp commits
    return env | {
        f"GIT_{who}_{key}": value
        for who in ("AUTHOR", "COMMITTER")
        for key, value in identity.items()
    }


def run(target: Path) -> None:
    """Run every stage in a copy of the repository in `target`, an empty or new folder. Raises UserError if a stage fails."""
    if target.exists() and any(target.iterdir()):
        raise UserError(f"{target}: not empty, accepted: a new folder")
    copy_repository(target)
    command = [
        sys.executable,
        "-m",
        "dvc",
        "exp",
        "run",
        "--pull",
        *(f"-S{preset}" for preset in PRESETS),
    ]
    if subprocess.run(command, cwd=target, env=environment(), check=False).returncode:
        raise UserError("the smoke run failed")
