"""What MLflow's page of a variant says of the claims."""

from pathlib import Path

from papers import PAPERS
from pipeline.report.ledger import NOT_RUN, Evidence, judge
from pipeline.tracking.notes import note_claims
from tests.conftest import ROOT


class Noted:
    """In place of a tracker."""

    def __init__(self) -> None:
        self.texts: dict[Path, str] = {}

    def note(self, folder: Path, text: str) -> None:
        self.texts[folder] = text


def test_a_variant_has_the_claims_that_read_it() -> None:
    """With their verdicts, by folder of the training; what was not run is no claim about it."""
    ledger = judge(evidence := Evidence(ROOT / "results", PAPERS))
    note_claims(tracker := Noted(), ledger, evidence.asked)  # type: ignore[arg-type]
    entries = {entry["id"]: entry for entry in ledger["claims"]}
    latin = f"- {entries['latin.arbitrary']['verdict']}: {entries['latin.arbitrary']['claim']} (`latin.arbitrary`)"
    with_it = {folder for folder, text in tracker.texts.items() if latin in text}
    assert with_it == {Path("outs/finetune/ls"), Path("outs/finetune/ls_batch")}
    assert Path("outs/baseline") in tracker.texts
    assert not [
        entry
        for entry in entries.values()
        if entry["verdict"] == NOT_RUN
        for text in tracker.texts.values()
        if f"(`{entry['id']}`)" in text
    ]
