"""The claims on layers on nodes, and the chart of their rows."""

from functools import cache
from pathlib import Path

import pandas as pd

from papers.nodes import PAPER
from papers.nodes.charts import charts
from pipeline.report.results import Results
from tests.papers.claim_suite import ClaimSuite, Tables, of_seeds, read_cases

CASES = read_cases(__file__, "nodes")


class TestNodes(ClaimSuite):
    paper = PAPER
    cases = CASES

    @classmethod
    @cache
    def made(cls) -> Tables:
        rows = []
        for right in CASES["right"]:
            keys = {"variant": right["variant"], "policy": right["policy"]}
            free = keys["policy"] == "any"
            keys |= {"lost": 0 if free else 5, "p99_s": 1.5 if free else 3.0}
            keys |= {"images_per_s": 50.0 if free else 40.0, "micro_batches": 100}
            for copies in (1, 2):
                by_fault = right | (right.get("two", {}) if copies == 2 else {})
                for fault, gone in CASES["gone"].items():
                    row = {"replication": copies, "fault": fault, "gone": gone}
                    rows.append(keys | row | {"right": by_fault.get(fault, 0) / 100})
        frame = pd.DataFrame(rows).assign(nodes=12, images=500)
        return {"nodes": of_seeds(frame)}


def test_a_chart_for_each_number_of_copies(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.tables |= TestNodes.made()
    assert len(charts(results).charts) == 2
