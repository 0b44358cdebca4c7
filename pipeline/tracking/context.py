"""Tags of a run of MLflow: who made it, from which commit, in which stage."""

import os
import subprocess

from pipeline.jobs.portable import cpu_name

WRITTEN_BY_DVC = ("results", "dvc.lock", "params.yaml")
VARIABLES = {"stage": "DVC_STAGE", "dvc.exp": "DVC_EXP_NAME", "dvc.rev": "DVC_EXP_BASELINE_REV"}


def context_tags() -> dict[str, str]:
    """Return MLflow's own tags, the commit, whether code differs from it, and what DVC says."""
    from mlflow.tracking.context.registry import resolve_tags

    excluded = [f":!{path}" for path in WRITTEN_BY_DVC]
    changes = _git("status", "--porcelain", "-uno", "--", ".", *excluded)
    tags = {
        "mlflow.source.git.commit": _git("rev-parse", "HEAD"),
        "mlflow.source.git.branch": _git("branch", "--show-current"),
        "git.dirty": "true" if changes else "false",
        "processor": cpu_name(),
    }
    for tag, variable in VARIABLES.items():
        if os.environ.get(variable):
            tags[tag] = os.environ[variable]
    return resolve_tags(tags)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    return done.stdout.strip()
