"""What stages keep of finished trainings. No torch here."""

import csv
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.samplers import Spec
from pipeline.jobs.files import CONFIG, EXECUTION, FINAL, HISTORY, TABLE, Row
from pipeline.jobs.job import Job
from pipeline.training.judging import kept_epoch


def gather_trainings(jobs: Mapping[int, Job], out: Path, judge: str = "validation") -> None:
    """Copy finished trainings, by seed, to `out/seed_<n>/`, and all epochs to `out/history.csv`.

    Beside the copies stand `config.json` and `final.json`, the validation metrics of the epoch that
    the judging split chose. Nothing that is written tells equal trainings apart: no name, no time,
    no key; `config.json` says with which others they are averaged.
    """
    rows: list[dict[str, Any]] = []
    for seed, job in jobs.items():
        target = out / f"seed_{seed}"
        target.mkdir(parents=True, exist_ok=True)
        for pattern in ("weights*", HISTORY, EXECUTION):
            for path in job.folder.glob(pattern):
                shutil.copyfile(path, target / path.name)
        record = job.record()
        (target / CONFIG).write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        history = json.loads((job.folder / HISTORY).read_text("utf-8"))
        final = final_metrics(history, record["variant"]["route"], judge) if history else {}
        (target / FINAL).write_text(json.dumps(final, indent=1) + "\n", "utf-8")
        rows += [{"seed": seed, **row} for row in history]
    with open(out / TABLE, "w", encoding="utf-8", newline="") as file:
        columns = list(rows[0]) if rows else ["seed", "epoch"]
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: _shorten(value) for key, value in row.items()})


def final_metrics(history: list[Row], route: Spec, judge: str) -> Row:
    """The number and the validation metrics of the epoch that was kept."""
    final = {}
    for name, value in kept_epoch(history, route, judge).items():
        if name.startswith(("validation/", "epoch")):
            final[name.removeprefix("validation/")] = value
    return final


def _shorten(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
