"""Where and by whom a run of MLflow is made, and what its machine does meanwhile."""

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor


def context_tags() -> dict[str, str]:
    """Who ran what: MLflow's own tags, the commit, whether code differed from it (what DVC writes is left out), the DVC stage."""
    from mlflow.tracking.context.registry import resolve_tags

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], capture_output=True, text=True, check=False).stdout.strip()

    dirty = git("status", "--porcelain", "-uno", "--", ".", *(f":!{path}" for path in ("results", "dvc.lock", "params.yaml")))
    named = {"stage": "DVC_STAGE", "dvc.exp": "DVC_EXP_NAME", "dvc.rev": "DVC_EXP_BASELINE_REV"}
    return resolve_tags({
        "mlflow.source.git.commit": git("rev-parse", "HEAD"), "mlflow.source.git.branch": git("branch", "--show-current"),
        "git.dirty": str(bool(dirty)).lower(), **{tag: os.environ[name] for tag, name in named.items() if os.environ.get(name)},
    })  # fmt: skip


def watch(run_id: str, uri: str) -> "SystemMetricsMonitor | None":
    """Log what the machine does to a run, from a thread and until `finish` is called, where MLflow's own variable asks for it."""
    from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING

    if not MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING.get():
        return None
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    monitor = SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=uri)
    monitor.start()
    return monitor
