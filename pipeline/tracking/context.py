"""Where and by whom a run of MLflow is made, and what its machine does meanwhile."""

import os
import subprocess
from collections.abc import Callable


def context_tags() -> dict[str, str]:
    """Who ran what: MLflow's own tags, the commit, whether code differed from it (what DVC writes is left out), the DVC stage."""
    from mlflow.tracking.context.registry import resolve_tags

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", *args], capture_output=True, text=True, check=False
        ).stdout.strip()

    dirty = git(
        "status",
        "--porcelain",
        "-uno",
        "--",
        ".",
        *(f":!{path}" for path in ("results", "dvc.lock", "params.yaml")),
    )
    named = {"stage": "DVC_STAGE", "dvc.exp": "DVC_EXP_NAME", "dvc.rev": "DVC_EXP_BASELINE_REV"}
    return resolve_tags(
        {
            "mlflow.source.git.commit": git("rev-parse", "HEAD"),
            "mlflow.source.git.branch": git("branch", "--show-current"),
            "git.dirty": str(bool(dirty)).lower(),
            **{tag: os.environ[name] for tag, name in named.items() if os.environ.get(name)},
        }
    )


def watch(run_id: str, uri: str) -> Callable[[], None]:
    """Log what this machine does to a run, from a thread, where MLflow's own variable asks for it. Returns what ends that."""
    from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING

    if not MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING.get():
        return lambda: None
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    monitor = SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=uri)
    monitor.start()
    return monitor.finish
