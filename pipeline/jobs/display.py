"""What a stage shows: the effective values before it starts, and the progress of its jobs."""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from pipeline.config.params import Params
from pipeline.config.resolve import Value
from pipeline.config.variant import Variant
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.events import ENDED, Event

# What the table of a training has of its model's preset, beside the arguments.
SHOWN = {"timm", "weights", "init_std", "init_growth", "num_classes", "head"}


class Display:
    """Progress of several jobs: bars in a terminal, else a plain line per report.

    Both say how much of all jobs is done, and about how long the rest takes.

    Args:
        jobs: title of each, and how many reports are expected of it.
        then: what the stage does after them, in words.
    """

    def __init__(self, jobs: Sequence[tuple[str, int]], then: str = "") -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        self.jobs = jobs
        self.then = f", then {then}" if then else ""
        self.start = time.monotonic()
        self.first: float | None = None  # when the first job had begun
        self.completed = [0.0] * len(jobs)
        self.before = [0.0] * len(jobs)  # completed by an earlier run
        self.ended = 0
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[last]}"),
            disable=not sys.stdout.isatty(),
        )
        self.whole = self.bars.add_task("all", total=len(jobs), last="")
        self.tasks = [
            self.bars.add_task(title, total=total, last="", visible=False) for title, total in jobs
        ]

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def show(self, index: int, event: Event) -> None:
        """Advance a job's bar, or print its line."""
        title, total = self.jobs[index]
        self.first = self.first or time.monotonic()
        text = describe(event, total) if event else "done"
        completed = self.completed[index]
        if event == ENDED:
            completed = total
            self.ended += 1
        elif "cell" in event and total > 1:
            completed = min(completed + 1, total)
        elif "epoch" in event or "progress" in event:
            reached = float(event["epoch"] if "epoch" in event else event["progress"])
            if completed == 0:  # an interrupted training goes on
                self.before[index] = math.ceil(reached) - 1
            completed = reached
        self.completed[index] = completed
        whole = self.describe_whole()
        self.bars.update(self.tasks[index], completed=completed, visible=True, last=text)
        self.bars.update(self.whole, completed=self.ended, last=whole)
        if self.bars.disable:
            left = f"  [{whole}]" if "text" not in event else ""
            print(f"[{time.monotonic() - self.start:6.1f} s] {title}: {text}{left}", flush=True)

    def describe_whole(self) -> str:
        """How much of all jobs is done, and about how long the rest takes."""
        total = sum(reports for _, reports in self.jobs)
        completed = sum(self.completed)
        text = f"{self.ended} of {len(self.jobs)} jobs, {completed / total:.0%}"
        here = completed - sum(self.before)
        if here and self.first:
            seconds = (time.monotonic() - self.first) * (total - completed) / here
            text += f", about {timedelta(seconds=round(seconds))} left"
        return text + self.then


def describe(event: Event, total: int) -> str:
    """One line for an epoch, a part of one (`progress`), a finished `cell`, or a `text`."""
    if "progress" in event:
        epoch = math.ceil(event["progress"])
        return f"epoch {epoch}/{total}: {event['progress'] + 1 - epoch:.0%}"
    if "epoch" not in event:
        return str(event.get("cell") or event["text"])
    shown = {
        "train/class_loss": "train loss",
        "validation/sequential/accuracy": "accuracy sequential",
        "validation/arbitrary/accuracy": "arbitrary",
    }
    numbers = [f"{label} {event[name]:.3f}" for name, label in shown.items() if name in event]
    return f"epoch {event['epoch']}/{total}  " + "  ".join([*numbers, f"{event['seconds']:.1f} s"])


def show_values(title: str, values: dict[str, Value]) -> None:
    """Print every effective value of a section and the place it comes from."""
    rows = [(key, str(value.value), value.source) for key, value in values.items()]
    _print(title, ("key", "value", "from"), rows)


def show_trainings(
    trainings: Mapping[str, tuple[Any, dict[str, Value]]],
    seeds: Sequence[int],
    params: Params,
) -> None:
    """Print one table of every hyper-parameter of trainings, and where its value comes from.

    A value that all of them share stands once; another for each of those that have it.
    """
    rows = {name: _training_rows(name, *shown, params) for name, shown in trainings.items()}
    count = len(trainings) * len(seeds)
    trainings_text = "1 training" if count == 1 else f"{count} trainings"
    title = f"{', '.join(trainings)}: {trainings_text}, seeds {', '.join(map(str, seeds))}"
    _print(title, ("key", "value", "from", "of"), grouped(rows))


def grouped(rows: Mapping[str, Sequence[tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """Rows by name: each once, with the names that have it, first those that all names have."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, own in rows.items():
        for row in own:
            names.setdefault(row, []).append(name)
    found = []
    for row, having in names.items():
        found.append((*row, "" if len(having) == len(rows) else ", ".join(having)))
    return sorted(found, key=lambda row: row[-1] != "")


def option_rows(
    title: str, variant: Variant, values: dict[str, Value], params: Params
) -> list[tuple[str, str, str]]:
    """(key, value, from) of a training's variant and options."""
    where = title if title == "pretrain" else params.place_of(title)
    hidden = {"baseline_epochs"}
    if not variant.position.predict:
        hidden.add("position_weight")
    if not variant.teacher:
        hidden.add("teacher_weight")
    own = variant.model_dump(exclude_none=True, exclude={"finetune"})
    rows = [(key, str(value), where) for key, value in own.items() if value != {}]
    for name, value in values.items():
        if name not in hidden:
            rows.append((name, str(value.value), value.source))
    return rows


def _training_rows(
    title: str, config: TrainConfig, values: dict[str, Value], params: Params
) -> list[tuple[str, str, str]]:
    """(key, value, from) of one training."""
    scale = params.scale_of(config.model_name)
    place = f"models.{config.model_name}"
    at_scale = params.scales[scale].models.get(config.model_name, {})
    rows = [
        ("dataset", config.dataset, "dataset"),
        ("model", config.model_name, "model"),
        ("device", config.device, "device"),
        ("deterministic", str(config.deterministic), "deterministic"),
        ("scale", scale, place if params.scale is None else "scale"),
    ]
    for key, value in (config.model.model_dump(include=SHOWN) | config.model.kwargs).items():
        changed = key in at_scale or key in at_scale.get("kwargs", {})
        rows.append((key, str(value), f"scales.{scale}.{place}" if changed else place))
    if config.world_size > 1:
        rows.append(("processes", f"{config.world_size}, routes {config.routes}", "distributed"))
    return rows + option_rows(title, config.variant, values, params)


def _print(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, title=title, box=SIMPLE_HEAD, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console(width=None if Console().is_terminal else 140).print(table)
