"""What stages keep of finished trainings. No torch here."""

import csv
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.jobs.files import CONFIG, EXECUTION, FINAL, HISTORY, TABLE
from pipeline.jobs.job import Job
from pipeline.training.judging import kept_epoch


def gather_trainings(jobs: Mapping[int, Job], out: Path, judge: str = "validation") -> None:
    """Copy finished trainings, by seed, to `out/seed_<n>/`, add `config.json` and `final.json`, and write all epochs to `out/history.csv`.

    `final.json` holds the validation metrics of the epoch that the judging split chose. Nothing that is written tells equal trainings
    apart: no name, no time, no key; `config.json` says with which others they are averaged.
    """
    rows: list[dict[str, Any]] = []
    for seed, job in jobs.items():
        target, record = out / f"seed_{seed}", job.record()
        target.mkdir(parents=True, exist_ok=True)
        for path in [
            *job.folder.glob("weights*"),
            job.folder / HISTORY,
            *job.folder.glob(EXECUTION),
        ]:
            shutil.copyfile(path, target / path.name)
        (target / CONFIG).write_text(json.dumps(record, indent=1) + "\n")
        history = json.loads((job.folder / HISTORY).read_text())
        kept = kept_epoch(history, record["variant"]["route"], judge) if history else {}
        final = {
            key.replace("validation/", ""): value
            for key, value in kept.items()
            if key.startswith(("validation/", "epoch"))
        }
        (target / FINAL).write_text(json.dumps(final, indent=1) + "\n")
        rows += [{"seed": seed, **row} for row in history]
    with open(out / TABLE, "w", newline="") as file:
        writer = csv.DictWriter(
            file, list(rows[0]) if rows else ["seed", "epoch"], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(
            {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows
        )
