"""MLflow, write-only: DVC is the record, and the store can be filled from the files at any time.

Every run carries a key, a hash of what it is. Logging the same thing twice changes nothing. A store
that cannot be reached is warned about once and never stops a stage.
"""

import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from pipeline.config.paper import Paper
from pipeline.declared import stage_of, stage_results
from pipeline.files import read_json
from pipeline.jobs.files import EXECUTION, sha256
from pipeline.tracking.store import (
    ARTIFACTS,
    connect,
    describe,
    is_sqlite,
    store_uri,
    without_password,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

KEY = "lsvit.key"
LOCK_SECONDS = 60.0  # to wait for another stage that logs
STAGES = "stages"  # the experiment with what stages left in results/
Row = dict[str, float]


def paper_of(training: Path, papers: Iterable[Paper]) -> str:
    """The name of the paper that a training in outs/<folder>/ belongs to."""
    folder = training.parts[1]
    return next((paper.name for paper in papers if folder in paper.trained), folder)


def experiment_name(of: str, cell: Sequence[str]) -> str:
    """Name the experiment of a paper's trainings (or "pretrain", or STAGES).

    Args:
        of: the paper.
        cell: data set, model and scale.
    """
    return "/".join((of, *cell))


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


def _never_raises(action: Callable[..., None]) -> Callable[..., None]:
    """Warn about the first failure of a tracker, and do nothing after it."""

    @wraps(action)
    def run(tracker: "Tracker", *args: Any) -> None:
        if tracker.failed:
            return
        try:
            with tracker.lock:
                action(tracker, *args)
        except Exception as error:  # a store may raise anything
            tracker.failed = True
            problem = (
                f"MLflow at {without_password(tracker.uri)} is not logging ({describe(error)})"
            )
            if isinstance(error, ModuleNotFoundError) and error.name == "mlflow":
                problem = "MLflow is not installed, so nothing is tracked"
            if tracker.live:  # else it is `lsvit track sync` that fails
                problem += "; the work goes on, `lsvit track sync` fills the store later"
            _warn(problem)

    return run


class Tracker:
    """Logs to one MLflow experiment, see :func:`experiment_name`.

    Args:
        experiment: the experiment's name.
        root: the real repository, where the default store lies.
        live: of a stage at work. It tags runs with the commit and the stage of now, which a replay
            does not know, and asks a server again less often: an outage must not hold it up.
    """

    def __init__(self, experiment: str, root: Path, live: bool = True) -> None:
        self.experiment = experiment
        self.root = root
        self.uri = store_uri(root)
        self.live = live
        self.failed = False
        self.recorded = 0  # runs finished by this tracker
        # Two stages may look for a run and make it at once.
        self.lock = FileLock(root / ".mlflow.lock", timeout=LOCK_SECONDS)
        self._experiment_id = ""
        self._runs: dict[str, str] = {}  # key -> run id
        self._running: set[str] = set()  # run ids of trainings under way

    # ---- what stages call ----

    @_never_raises
    def epoch(self, title: str, record: dict[str, Any], row: Row) -> None:
        """Log one epoch of a running training.

        Args:
            title: the variant's name.
            record: what the training is made with, :meth:`pipeline.jobs.job.Job.record`.
            row: the epoch's metrics.
        """
        run_id = self._training_run(title, record)
        if run_id not in self._running and not self._is_finished(run_id):
            self.client.update_run(run_id, "RUNNING")  # it may have been killed before
            self._running.add(run_id)
        self._log_rows(run_id, [{name: row[name] for name in row if name != "seconds"}])

    @_never_raises
    def stopped(self, error: BaseException | None = None) -> None:
        """Mark the trainings under way as failed, or as killed if no exception ended them.

        Without an error they have finished: those of which a stage kept nothing.
        """
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        for run_id in self._running:
            self.client.set_terminated(run_id, status if error else "FINISHED")

    @_never_raises
    def training(self, folder: Path) -> None:
        """Log a finished variant and its mean and standard deviation over the seeds.

        Args:
            folder: named as the variant, with `seed_*/{config.json, history.json, final.json}`.
        """
        stage = stage_of(folder)
        finals: list[Row] = []
        for config in sorted(folder.glob("seed_*/config.json")):
            place = config.parent
            run_id = self._training_run(folder.name, read_json(config))
            self._log_rows(run_id, read_json(place / "history.json", list))
            final = read_json(place / "final.json")
            finals.append(final)
            self.client.set_tag(run_id, "stage", stage)
            execution = place / EXECUTION
            if execution.is_file():
                self.client.set_tag(run_id, "execution", execution.read_text("utf-8").strip())
            self._finish(run_id, sorted(place.iterdir()), flatten({"final": final}, separator="/"))
        parent = self.client.get_run(run_id).data.tags["mlflow.parentRunId"]
        self.client.set_tag(parent, "stage", stage)
        self._log_metrics(parent, summarise(finals))
        self.client.set_terminated(parent)

    @_never_raises
    def results(self, stage: str) -> None:
        """Log a stage's files below results/ as artifacts of one run, and its metrics."""
        files, metrics = stage_results(stage)
        empty = len("{}\n")  # what the stage of a paper that is left out leaves
        if all(file.stat().st_size <= empty for file in files):
            return
        numbers: Row = {}
        for file in metrics:
            for name, value in flatten(read_json(file), separator="/").items():
                if isinstance(value, int | float):
                    numbers[name] = float(value)
        digests = {str(file): sha256(file) for file in files}
        tags = {"variant": stage, "kind": "stage", "stage": stage}
        self._finish(self._run(_key(stage, digests), stage, tags, {}), files, numbers)

    def find(self, folder: Path) -> "Run | None":
        """Return the run of the training in `<variant>/seed_<n>`, if it is tracked.

        Raises:
            Exception: what MLflow raises.
        """
        options = _options(read_json(folder / "config.json"))
        return self._search(_key(folder.parent.name, options))

    # ---- runs ----

    @cached_property
    def client(self) -> "MlflowClient":
        """The connected client. The first use imports MLflow and creates the experiment.

        Raises:
            Exception: what MLflow raises.
        """
        with self.lock:
            client = connect(self.root, retries=1 if self.live else 3)
            known = client.get_experiment_by_name(self.experiment)
            if known is None:
                location = None
                if is_sqlite(self.uri):
                    folder = self.experiment.replace("/", "-")
                    location = (self.root.resolve() / ARTIFACTS / folder).as_uri()
                self._experiment_id = client.create_experiment(self.experiment, location)
            else:
                self._experiment_id = known.experiment_id
                if known.lifecycle_stage == "deleted":
                    client.restore_experiment(known.experiment_id)
                    _warn(f"the deleted experiment {self.experiment} is restored in MLflow")
        return client

    @cached_property
    def _context(self) -> dict[str, str]:
        if not self.live:
            return {"synced": "true"}
        from pipeline.tracking.context import context_tags

        return context_tags()

    def _search(self, key: str) -> "Run | None":
        """Return the run with this key. A deleted one is restored: its key stays taken."""
        from mlflow.entities import ViewType

        client = self.client  # sets the experiment's id
        runs = client.search_runs([self._experiment_id], f"tags.`{KEY}` = '{key}'", ViewType.ALL)
        if not runs:
            return None
        run = min(runs, key=lambda run: run.info.lifecycle_stage)  # "active" before "deleted"
        if run.info.lifecycle_stage == "deleted":
            client.restore_run(run.info.run_id)
            _warn(f"the deleted run {run.info.run_name} of {self.experiment} is restored in MLflow")
        return run

    def _is_finished(self, run_id: str) -> bool:
        return self.client.get_run(run_id).info.status == "FINISHED"

    def _run(self, key: str, name: str, tags: dict[str, str], params: dict[str, Any]) -> str:
        """Return the id of the run with this key. Create it with tags and parameters if needed."""
        if key in self._runs:
            return self._runs[key]
        run = self._search(key)
        if run is None:
            tags = {KEY: key} | self._context | tags
            run = self.client.create_run(self._experiment_id, tags=tags, run_name=name)
        if params and not run.data.params:  # an outage may have come before the parameters
            from mlflow.entities import Param

            entries = [Param(param, str(value)) for param, value in flatten(params).items()]
            self.client.log_batch(run.info.run_id, params=entries)
        self._runs[key] = run.info.run_id
        return run.info.run_id

    def _training_run(self, title: str, record: dict[str, Any]) -> str:
        """Return the id of a training's run, a child of its variant's run."""
        options = _options(record)
        key = _key(title, options)
        if key in self._runs:
            return self._runs[key]
        shared = {name: value for name, value in options.items() if name not in record["apart"]}
        tags = {"variant": title, "paper": self.experiment.partition("/")[0]}
        parent = self._run(_key(title, shared), title, tags | {"kind": "variant"}, shared)
        seed = str(record["seed"])
        tags |= {"kind": "training", "seed": seed, "mlflow.parentRunId": parent}
        run_id = self._run(key, f"{title} seed {seed}", tags, options)
        self._log_dataset(run_id, record["dataset"], record["data_sha256"])
        return run_id

    def _log_dataset(self, run_id: str, name: str, sha256: str) -> None:
        """Fill MLflow's column Dataset, by the digest of the prepared images."""
        inputs = self.client.get_run(run_id).inputs
        if inputs is None or inputs.dataset_inputs:
            return
        from mlflow.entities import Dataset, DatasetInput, InputTag

        source = json.dumps({"uri": "outs/prepare_data"})
        dataset = Dataset(name, sha256[:32], "local", source)
        tags = [InputTag("mlflow.data.context", "training")]
        self.client.log_inputs(run_id, [DatasetInput(dataset, tags)])

    # ---- what a run has ----

    def _log_rows(self, run_id: str, rows: Sequence[Row]) -> None:
        """Log the epochs that the run does not have. Another process may log the same training."""
        known = {metric.step for metric in self.client.get_metric_history(run_id, "epoch")}
        for row in rows:
            step = int(row["epoch"])
            if step not in known:
                self._log_metrics(run_id, row, step)

    def _log_metrics(self, run_id: str, values: Row, step: int = 0) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self.client.log_batch(run_id, metrics=metrics)

    def _finish(self, run_id: str, files: Sequence[Path], metrics: Row) -> None:
        """Upload files, log final metrics and mark the run finished, once.

        A run whose files are gone is completed again.
        """
        if self._is_finished(run_id) and self.client.list_artifacts(run_id):
            return
        for file in files:
            self.client.log_artifact(run_id, str(file))
        self._log_metrics(run_id, metrics)
        self.client.set_terminated(run_id)
        self._running.discard(run_id)
        self.recorded += 1


def summarise(finals: Sequence[Row]) -> Row:
    """Return "n" and, of every metric, the mean and the standard deviation over the seeds."""
    summary = {"n": float(len(finals))}
    for name in finals[0]:
        values = [final[name] for final in finals]
        summary[f"mean/{name}"] = statistics.fmean(values)
        summary[f"std/{name}"] = statistics.stdev(values) if len(values) > 1 else 0.0
    return summary


def _options(record: dict[str, Any]) -> dict[str, Any]:
    return flatten({key: value for key, value in record.items() if key != "apart"})


def _key(title: str, options: dict[str, Any]) -> str:
    """Hash what a run is found again by."""
    return hashlib.sha256(json.dumps([title, options], sort_keys=True).encode()).hexdigest()[:20]


def flatten(values: dict[str, Any], prefix: str = "", separator: str = ".") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat |= flatten(value, f"{name}{separator}", separator)
        else:
            flat[name] = value
    return flat
