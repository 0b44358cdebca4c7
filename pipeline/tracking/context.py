"""Tags of a run of MLflow: who made it, from which commit, in which stage."""

import os
import sys
from functools import cache

from pipeline.errors import UserError
from pipeline.git import git
from pipeline.jobs.portable import cpu_name

NOT_CODE = (":!results", ":!dvc.lock", ":!params.yaml")  # what DVC writes
VARIABLES = {"stage": "DVC_STAGE", "dvc.exp": "DVC_EXP_NAME", "dvc.rev": "DVC_EXP_BASELINE_REV"}
UNKNOWN = "unknown"


def context_tags() -> dict[str, str]:
    """Return MLflow's own tags, the commit, whether code differs from it, and what DVC says."""
    from mlflow.tracking.context.registry import resolve_tags

    tags = {**git_tags(), "processor": cpu_name()}
    for tag, variable in VARIABLES.items():
        if value := os.environ.get(variable):
            tags[tag] = value
    return resolve_tags(tags)


@cache  # several experiments of a stage ask, and a warning is given once
def git_tags() -> dict[str, str]:
    """Return the commit, the branch and whether code differs; "unknown" where git does not say."""
    try:
        commit = git("rev-parse", "HEAD")
        branch = git("rev-parse", "--abbrev-ref", "HEAD")  # HEAD itself where it is detached
        changes = git("status", "--porcelain", "-uno", "--", ".", *NOT_CODE)
    except UserError as error:
        print(f"warning: runs are tagged without a commit; {error}", file=sys.stderr, flush=True)
        commit = branch = changes = None
    dirty = UNKNOWN if changes is None else str(bool(changes)).lower()
    return {
        "mlflow.source.git.commit": (commit or UNKNOWN).strip(),
        "mlflow.source.git.branch": (branch or UNKNOWN).strip(),
        "git.dirty": dirty,
    }
