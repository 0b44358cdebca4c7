"""What MLflow's page of a variant says of the claims that rest on its accuracy."""

from collections.abc import Mapping
from typing import Any

from pipeline.jobs.files import finetuned
from pipeline.report.ledger import NOT_RUN
from pipeline.tracking.runs import Tracker


def note_claims(tracker: Tracker, ledger: dict[str, Any], asked: Mapping[str, set[str]]) -> None:
    """Note the claims of a ledger, but for those that were not run, with the refined variants that they `asked` for, by claim id."""
    lines: dict[str, list[str]] = {}
    for entry in ledger["claims"]:
        for variant in asked[entry["id"]] if entry["verdict"] != NOT_RUN else ():
            lines.setdefault(variant, []).append(
                f"- {entry['verdict']}: {entry['claim']} (`{entry['id']}`)"
            )
    for variant, own in lines.items():
        text = (
            "Claims that rest on it, as of the last `paper-figures`; `uv run lsvit why ID` says more:\n\n"
            + "\n".join(own)
        )
        tracker.note(finetuned(variant, 0).parents[1], text)
