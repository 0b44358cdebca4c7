"""MLflow, write-only: DVC is the record, and the store can be filled again from the files at any time.

Every run carries a key, a hash of what it is; logging the same thing twice changes nothing. A store that cannot be
reached is warned about once and never stops a stage.
"""

import hashlib
import json
import logging
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from pipeline.declared import stage_of, stage_results
from pipeline.files import read_json, replace_text
from pipeline.tracking.context import context_tags, watch

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

KEY = "lsvit.key"
DATABASE = "mlflow.db"
PATIENCE = 5.0  # seconds that a store which does not answer holds up the end of a stage
LOCKED = 60.0  # seconds to wait for another stage that logs
NOTE = "mlflow.note.content"
STAGES = "stages"  # of the experiment with what stages left in results/
Row = dict[str, float]


def experiment_name(of: str, cell: Sequence[str]) -> str:
    """MLflow's experiment of a paper's trainings (or "pretrain", or STAGES) for a data set, model and scale."""
    return "/".join((of, *cell))


def store_uri(root: Path) -> str:
    """`MLFLOW_TRACKING_URI`, or the sqlite store at the repository's root."""
    return os.environ.get("MLFLOW_TRACKING_URI") or _default_uri(root)


def _default_uri(root: Path) -> str:
    return f"sqlite:///{root.resolve() / DATABASE}"


def _create_store(path: Path) -> None:
    """Create the sqlite store under another name first: a kill during its migration leaves no half-made store."""
    if path.exists():
        return
    import mlflow

    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    mlflow.MlflowClient(f"sqlite:///{partial.resolve()}").search_experiments()
    partial.replace(path)


class Tracker:
    """Logs to one MLflow experiment, see :func:`experiment_name`. What fails in `epoch`, `training` and `results` is said once.

    Args:
        experiment: the experiment's name.
        root: the real repository, where the default store lies.
        retries: of a request to a server. Few, so that an outage does not hold up a training.
    """

    _lock = (
        threading.Lock()
    )  # of all trackers of a process: two threads that import mlflow at once find halves of it

    def __init__(self, experiment: str, root: Path, retries: int = 1) -> None:
        self.experiment, self.root, self.uri = experiment, root, store_uri(root)
        self.failed = False
        self.retries = retries
        self._alone = FileLock(
            root / ".mlflow.lock", timeout=LOCKED
        )  # what one stage looks for, another may be about to make
        self.recorded = 0  # runs finished by this tracker
        self._client: MlflowClient | None = None
        self._experiment_id = ""
        self._runs: dict[str, str] = {}  # key -> run id
        self._running: dict[
            str, Callable[[], None]
        ] = {}  # run ids of trainings under way -> what ends watching the machine
        if (
            "mlflow" not in sys.modules
        ):  # importing it and opening the store take seconds, which the trainings' own start hides
            threading.Thread(target=self._guarded, args=(self.client,), daemon=True).start()

    # ---- what stages call ----

    def epoch(self, title: str, record: dict[str, Any], row: Row) -> None:
        """Log one epoch of a running training: its name, what it is made with (:meth:`pipeline.jobs.job.Job.record`), its metrics."""
        epoch, ended = int(row["epoch"]), time.time()
        with (
            self._lock,
            suppress(OSError),
        ):  # also where the store is away: a replay can then tell when it was; mlflow is imported once
            times = {str(epoch - 1): ended - row.get("seconds", 0.0), str(epoch): ended}
            self._context(_key(title, _options(record)), **times)
        self._guard(lambda: self._epoch(title, record, row))

    def stopped(self, error: BaseException) -> None:
        """The stage ends before its trainings: those that run here are marked as failed, or as killed where nothing failed."""
        status = "FAILED" if isinstance(error, Exception) else "KILLED"

        def mark() -> None:
            for run_id, unwatch in self._running.items():
                unwatch()
                self.client().set_terminated(run_id, status)

        self._guard(mark, PATIENCE)

    def training(self, folder: Path) -> None:
        """Log a finished variant, named as its folder: `seed_*/{config.json, history.json, weights.safetensors}`, and its summary."""
        self._guard(lambda: self._training(folder))

    def results(self, stage: str) -> None:
        """Log a stage's tables and figures below results/ as artifacts, and the numbers of its metrics, of one run."""
        self._guard(lambda: self._results(stage))

    def note(self, folder: Path, text: str) -> None:
        """Say more on the page of a finished variant, that of `training`'s folder, in place of what this said before."""

        def add() -> None:
            seed = next((path.parent for path in sorted(folder.glob("seed_*/config.json"))), None)
            if seed and (run := self.find(seed)):
                parent = run.data.tags["mlflow.parentRunId"]
                self.client().set_tag(
                    parent, NOTE, f"{_about_variant(folder.name, stage_of(folder))}\n\n{text}"
                )

        self._guard(add)

    def find(self, folder: Path) -> "Run | None":
        """The run of a training that lies in this folder, `<variant>/seed_<n>`, if it is tracked. Raises what MLflow raises."""
        return self._search(
            _key(folder.parent.name, _options(json.loads((folder / "config.json").read_text())))
        )

    # ---- how ----

    def _guard(self, action: Callable[[], object], patience: float | None = None) -> None:
        """In a thread of its own: a signal that ends the stage is raised in the main one, and leaves no transaction half done."""
        thread = threading.Thread(target=self._guarded, args=(action,), daemon=True)
        thread.start()
        thread.join(patience)

    def _guarded(self, action: Callable[[], object]) -> None:
        with self._lock:
            if self.failed:
                return
            try:
                with self._alone:
                    action()
            except Exception as error:  # whatever a store may raise, the work goes on
                self.failed = True
                reason = " ".join(str(error).split())[:160]
                print(
                    f"warning: MLflow at {self.uri} is not logging ({type(error).__name__}: {reason}); the work goes on, "
                    f"`lsvit track sync` fills the store later",
                    file=sys.stderr,
                    flush=True,
                )

    def client(self) -> "MlflowClient":
        """The connected client; creates the experiment on first use. Raises what MLflow raises."""
        if self._client is None:
            os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", str(self.retries))
            os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(10 * self.retries))
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
            import mlflow

            for name in ("mlflow", "alembic"):
                logging.getLogger(name).setLevel(logging.ERROR)
            local = self.uri.startswith("sqlite:")
            # The first opening of a fresh sqlite store migrates it, and two processes doing so at once break it.
            with self._alone:
                if self.uri == _default_uri(self.root):
                    _create_store(self.root / DATABASE)
                client = mlflow.MlflowClient(self.uri)
                found = client.get_experiment_by_name(self.experiment)
                location = (
                    (
                        self.root.resolve() / "mlartifacts" / self.experiment.replace("/", "-")
                    ).as_uri()
                    if local
                    else None
                )
                self._experiment_id = (
                    found.experiment_id
                    if found
                    else client.create_experiment(self.experiment, location)
                )
                client.set_experiment_tag(self._experiment_id, NOTE, _about(self.experiment))
            self._client = client
        return self._client

    @cached_property
    def _tags(self) -> dict[str, str]:
        return context_tags()

    def _context(self, key: str, **ended: float) -> dict[str, Any]:
        """Where a run was made, and when its epochs `ended` ("0": when it began): noted beside the jobs, for a later replay."""
        path = self.root / ".lsvit" / "context" / f"{key}.json"
        try:
            noted = json.loads(path.read_text())
        except (
            FileNotFoundError,
            ValueError,
        ):  # not noted yet, or half written by a version that did not write it at once
            noted = {}
        full = (
            noted if "tags" in noted else {"tags": noted or self._tags}
        )  # an older version noted the tags alone
        full = full | {"ended": ended | full.get("ended", {})}
        if full != noted:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, json.dumps(full))
        return full

    def _search(self, key: str) -> "Run | None":
        return next(
            iter(
                self.client().search_runs(
                    [self._experiment_id], f"tags.`{KEY}` = '{key}'", max_results=1
                )
            ),
            None,
        )

    def _run(
        self,
        key: str,
        name: str,
        tags: dict[str, str],
        params: dict[str, Any],
        start: float | None = None,
    ) -> str:
        """The run with this key, created with its tags, parameters and time of start if there is none."""
        if key not in self._runs:
            client, run = self.client(), self._search(key)
            if not run:
                tags = {KEY: key, **self._context(key)["tags"], **tags}
                run = client.create_run(
                    self._experiment_id,
                    None if start is None else int(1000 * start),
                    tags=tags,
                    run_name=name,
                )
            if (
                params and not run.data.params
            ):  # also where an outage came between the run and its parameters
                from mlflow.entities import Param

                client.log_batch(
                    run.info.run_id, params=[Param(k, str(v)) for k, v in _flat(params).items()]
                )
            self._runs[key] = run.info.run_id
        return self._runs[key]

    def _epoch(self, title: str, record: dict[str, Any], row: Row) -> None:
        run_id, known = self._training_run(title, record)
        if run_id not in self._running and self.client().get_run(run_id).info.status != "FINISHED":
            self.client().update_run(run_id, "RUNNING")  # it may have been killed
            self._running[run_id] = watch(run_id, self.uri)
        self._rows(
            run_id, [{name: value for name, value in row.items() if name != "seconds"}], known
        )
        if run_id in self._running and row["epoch"] == record["options"].get("epochs"):
            self._running.pop(run_id)()

    def _training_run(self, title: str, record: dict[str, Any]) -> tuple[str, dict[str, float]]:
        """The run of a training, and the times of its epochs as far as they are known."""
        options = _options(record)
        shared = {key: value for key, value in options.items() if key not in record["apart"]}
        tags, seed = (
            {"variant": title, "paper": self.experiment.partition("/")[0]},
            str(record["seed"]),
        )
        known = self._context(_key(title, options))["ended"]
        start = min(known.values(), default=None)
        parent = self._run(
            _key(title, shared),
            title,
            tags | {"kind": "variant", NOTE: _about_variant(title)},
            shared,
            start,
        )
        tags |= {"seed": seed, "mlflow.parentRunId": parent, "kind": "training"}
        key = _key(title, options)
        if fresh := key not in self._runs:
            self._run(key, f"{title} seed {seed}", tags, options, start)
        inputs = self.client().get_run(self._runs[key]).inputs if fresh else None
        if inputs and not inputs.dataset_inputs:
            from mlflow.entities import Dataset, DatasetInput, InputTag

            read = Dataset(
                record["dataset"],
                record["data_sha256"][:32],
                "local",
                json.dumps({"uri": "outs/prepare_data"}),
            )
            self.client().log_inputs(
                self._runs[key], [DatasetInput(read, [InputTag("mlflow.data.context", "training")])]
            )
        return self._runs[key], known

    def _rows(self, run_id: str, rows: list[Row], ended: dict[str, float]) -> None:
        from mlflow.entities import Metric

        # asked anew each time: another process may have logged some of them since
        known = {metric.step for metric in self.client().get_metric_history(run_id, "epoch")}
        fresh = [row for row in rows if int(row["epoch"]) not in known]
        times = {row["epoch"]: ended.get(str(int(row["epoch"])), time.time()) for row in fresh}
        metrics = [
            Metric(name, value, int(1000 * times[row["epoch"]]), int(row["epoch"]))
            for row in fresh
            for name, value in row.items()
        ]
        for start in range(0, len(metrics), 1000):  # the most one request takes
            self.client().log_batch(run_id, metrics=metrics[start : start + 1000])

    def _finish(
        self,
        run_id: str,
        files: list[Path],
        metrics: Row,
        ended: float | None = None,
        model: str | None = None,
        images: Iterable[Any] = (),
    ) -> None:
        """Upload files and images, log final metrics, as those of a `model` too, and mark the run finished, once; `ended`: if not now."""
        from mlflow.entities import LoggedModelStatus, Metric

        client = self.client()
        if client.get_run(run_id).info.status == "FINISHED":
            return
        for file in files:
            client.log_artifact(run_id, str(file))
        end = int(1000 * (ended or time.time()))
        made = None
        if model:  # an interruption may have left one
            known = client.search_logged_models(
                [self._experiment_id], f"source_run_id = '{run_id}'", max_results=1
            )
            made = (
                known[0]
                if known
                else client.create_logged_model(
                    self._experiment_id, model, run_id, model_type="external"
                )
            ).model_id
        client.log_batch(
            run_id,
            metrics=[Metric(name, value, end, 0, model_id=made) for name, value in metrics.items()],
        )
        if made:
            client.finalize_logged_model(made, LoggedModelStatus.READY)
        for key, step, picture in images:
            client.log_image(run_id, picture, key=key, step=step)
        self._running.pop(run_id, lambda: None)()  # of one that ended early
        client.set_terminated(run_id, end_time=end)
        self.recorded += 1

    def _training(self, folder: Path) -> None:
        seeds = sorted(
            folder.glob("seed_*/config.json"),
            key=lambda path: int(path.parent.name.removeprefix("seed_")),
        )
        finals, ends, stage = [], [], stage_of(folder)
        for path in seeds:
            record, history = read_json(path), read_json(path.parent / "history.json", list)
            run_id, ended = self._training_run(folder.name, record)
            parent = self.client().get_run(run_id).data.tags["mlflow.parentRunId"]
            self._rows(run_id, history, ended)
            self.client().set_tag(run_id, "stage", stage)
            ends.append(max(ended.values(), default=time.time()))
            for text in path.parent.glob("execution.txt"):
                self.client().set_tag(run_id, "execution", text.read_text().strip())
            finals.append(read_json(path.parent / "final.json"))
            final = {f"final/{name}": value for name, value in finals[-1].items()}
            self._finish(
                run_id,
                sorted(path.parent.iterdir()),
                final,
                ends[-1],
                f"{folder.name}_seed_{record['seed']}",
            )
        self.client().set_tag(parent, "stage", stage)
        self.client().set_tag(parent, NOTE, _about_variant(folder.name, stage))
        self._summary(parent, finals, max(ends))

    def _summary(self, parent: str, finals: list[Row], ended: float) -> None:
        """Mean and standard deviation over the seeds, on the variant's parent run."""
        from mlflow.entities import Metric

        end = int(1000 * ended)
        summary = {"n": float(len(finals))}
        for name in finals[0]:
            values = [final[name] for final in finals]
            summary |= {
                f"mean/{name}": statistics.fmean(values),
                f"std/{name}": statistics.stdev(values) if len(values) > 1 else 0.0,
            }
        self.client().log_batch(parent, metrics=[Metric(k, v, end, 0) for k, v in summary.items()])
        self.client().set_terminated(parent, end_time=end)

    def _results(self, stage: str) -> None:
        files, metrics = stage_results(stage)
        if not files:  # a stage that has not run
            return
        numbers = {
            k: float(v)
            for file in metrics
            for k, v in _flat(read_json(file), separator="/").items()
            if isinstance(v, int | float)
        }
        key = _key(
            stage, {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        )
        tracked = Path("papers") / stage / "tracked.py"
        images = import_module(f"papers.{stage}.tracked").images() if tracked.is_file() else ()
        self._finish(
            self._run(key, stage, {"variant": stage, "kind": "stage", "stage": stage}, {}),
            files,
            numbers,
            images=images,
        )


def _about(experiment: str) -> str:
    """What an experiment's page says of it."""
    of, _, cell = experiment.partition("/")
    what = (
        "What the stages left in `results/`, a run a stage"
        if of == STAGES
        else f"Trainings of `{of}`, a run a variant, its seeds below"
    )
    return f"{what}: {cell} (data set, model, scale). Made by `uv run dvc repro --pull`; verdicts: `uv run lsvit claims`."


def _about_variant(title: str, stage: str = "") -> str:
    """What a variant's page says of it; which `stage` made it is known when its trainings have finished."""
    made = (
        f" Made by `uv run dvc repro --pull {stage}`; verdicts: `uv run lsvit claims`."
        if stage
        else ""
    )
    return f"`{title}`: its seeds lie below; mean and standard deviation over them are the metrics `mean/...`, `std/...`.{made}"


def _options(record: dict[str, Any]) -> dict[str, Any]:
    return _flat({key: value for key, value in record.items() if key != "apart"})


def _key(title: str, options: dict[str, Any]) -> str:
    """What a run is found again by."""
    return hashlib.sha256(json.dumps([title, options], sort_keys=True).encode()).hexdigest()[:20]


def _flat(values: dict[str, Any], prefix: str = "", separator: str = ".") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat |= (
            _flat(value, f"{name}{separator}", separator)
            if isinstance(value, dict)
            else {name: value}
        )
    return flat
