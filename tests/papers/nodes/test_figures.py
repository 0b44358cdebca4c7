"""The figure of layers on nodes shows the rows' means over seeds."""

import itertools
from pathlib import Path
from typing import Any

import pandas as pd

from papers import PAPERS
from papers.nodes.figures import draw, draw_away, method
from papers.nodes.section import Policy
from pipeline.config.params import Params
from pipeline.report.results import Results
from tests.papers.drawn import DrawnFigures, error_bars, expect_line


def test_lines_are_means_over_seeds(params: Params, tmp_path: Path) -> None:
    records: list[tuple[Any, ...]] = []
    methods: dict[str, Policy] = {"baseline": "strict", "ls": "any"}
    faults = (("healthy", 0.0), ("gone", 0.25), ("slow", 0.0))
    for variant, copies, seed, fault in itertools.product(methods, (1, 2), range(3), faults):
        number = len(records)
        keys = (12, variant, methods[variant], copies, seed, *fault)
        records.append((*keys, number**2 / 10_000, number**1.5, 500))
    columns = ["nodes", "variant", "policy", "replication", "seed", "fault", "gone"]
    columns += ["right", "images_per_s", "images"]
    rows = pd.DataFrame(records, columns=columns)
    figures = DrawnFigures(tmp_path, params, ["baseline", "ls"])
    draw_away(figures, rows, 10)
    shown = rows[rows["fault"] != "slow"].assign(away=100 * rows["gone"])
    panels = iter(figures.drawn["nodes"].axes)
    for column, factor in (("right", 100), ("images_per_s", 1)):
        for copies in (1, 2):
            lines = error_bars(next(panels))
            assert lines.keys() == {method("baseline", "strict"), method("LS", "any")}
            for variant, policy in methods.items():
                own = shown[(shown["variant"] == variant) & (shown["replication"] == copies)]
                line = lines[method(figures.label(variant), policy)]
                expect_line(line, own, "away", column, factor)


def test_without_rows_nothing_is_drawn(params: Params, tmp_path: Path) -> None:
    assert draw(Results(tmp_path, PAPERS), params) == {}
