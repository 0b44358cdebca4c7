"""What git says of this repository, or why it says nothing."""

import subprocess

from pipeline.errors import UserError

ACCEPTED = "a clone, or in a download `git init && git add -A && git commit -m start`"


def git(*words: str) -> str | None:
    """What a git command prints here; None if it fails, as for a file that a commit lacks.

    Raises:
        UserError: there is no git, it refuses the folder, or no commit of it has the project.
    """
    _run("cat-file", "-e", "HEAD:./dvc.yaml")  # the repository may be one around an unpacked copy
    try:
        return _run(*words)
    except UserError:
        return None


def _run(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], capture_output=True, check=False)
    except OSError as error:
        raise UserError(f"git: cannot be started ({error.strerror}), accepted: git") from None
    if done.returncode:
        reason = " ".join(done.stderr.decode("utf-8", "replace").split())
        if "ownership" not in reason:  # there git says what to do
            reason += f", accepted: {ACCEPTED}"
        raise UserError(f"git: {reason.removeprefix('fatal: ')}")
    return done.stdout.decode("utf-8", "surrogateescape")
