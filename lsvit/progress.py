"""The progress of several jobs, shown from what they report: bars in a terminal, else plain lines."""

import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol, Self

Event = dict[str, Any]  # what a job reports: an epoch's numbers by name, a part of an epoch, a finished `cell`, or a `text`
ENDED: Event = {}  # the last event of a job


class Titled(Protocol):
    """A job as it is shown."""

    @property
    def title(self) -> str:
        """Its name."""

    @property
    def total(self) -> int:
        """Reports expected."""


class Display:
    """Progress of several jobs: bars in a terminal, else a plain line per report."""

    def __init__(self, jobs: Sequence[Titled]) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.jobs = jobs
        self.start = time.monotonic()
        self.bars = None
        if sys.stdout.isatty():
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[last]}"),
            )
            self.bars = Progress(*columns)
            self.tasks = [self.bars.add_task(job.title, total=job.total, last="", visible=False) for job in jobs]

    def __enter__(self) -> Self:
        if self.bars:
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars:
            self.bars.stop()

    def show(self, index: int, event: Event) -> None:
        """Advance a job's bar, or print its line."""
        job = self.jobs[index]
        text = describe(event, job.total) if event else "done"
        if self.bars:
            done = self.bars.tasks[self.tasks[index]].completed
            completed = event.get("epoch", event.get("progress", done + ("cell" in event))) if event else job.total
            self.bars.update(self.tasks[index], completed=completed, visible=True, last=text)
        else:
            print(f"[{time.monotonic() - self.start:6.1f} s] {job.title}: {text}", flush=True)


def describe(event: Event, total: int) -> str:
    """One line for a reported epoch, a part of one (`progress`, in epochs), a finished `cell`, or a `text`."""
    if "epoch" not in event:
        progress = f"epoch {int(event['progress']) + 1}/{total}: {event['progress'] % 1:.0%}" if "progress" in event else ""
        return progress or str(event.get("cell") or event["text"])
    shown = {
        "train/class_loss": "train loss",
        "validation/sequential/accuracy": "accuracy sequential",
        "validation/arbitrary/accuracy": "arbitrary",
    }
    numbers = [f"{label} {event[name]:.3f}" for name, label in shown.items() if name in event]
    return f"epoch {event['epoch']}/{total}  " + "  ".join([*numbers, f"{event['seconds']:.1f} s"])
