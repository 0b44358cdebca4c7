"""What stages keep of finished trainings. No torch here."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.samplers import Spec
from pipeline.files import read_json, write_json
from pipeline.jobs.files import CONFIG, EXECUTION, FINAL, HISTORY, TABLE, Row, write_rows
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
        write_json(target / CONFIG, record)
        history = read_json(job.folder / HISTORY, list)
        final = final_metrics(history, record["variant"]["route"], judge) if history else {}
        write_json(target / FINAL, final)
        rows += [{"seed": seed, **row} for row in history]
    columns = list(rows[0]) if rows else ["seed", "epoch"]
    shortened = [[_shorten(row.get(column)) for column in columns] for row in rows]
    write_rows(out / TABLE, columns, shortened)


def final_metrics(history: list[Row], route: Spec, judge: str) -> Row:
    """The number and the validation metrics of the epoch that was kept."""
    final = {}
    for name, value in kept_epoch(history, route, judge).items():
        if name.startswith(("validation/", "epoch")):
            final[name.removeprefix("validation/")] = value
    return final


def _shorten(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
