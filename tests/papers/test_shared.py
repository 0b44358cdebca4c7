"""What the stages of several papers have in common: what runs again, what is not drawn."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from papers import PAPERS
from pipeline.config.params import Params
from pipeline.report.results import Results
from tests.conftest import cases_of
from tests.papers.conftest import Keys

CASES = cases_of(__file__)


@pytest.mark.parametrize("paper", CASES["options"])
def test_options_that_evaluate_again(paper: str, keys: Keys) -> None:
    """All jobs are others under each of `again`, the same under each of `same`."""
    plan = import_module(f"papers.{paper}.compute.plan").Plan
    known = keys(plan, paper)
    for options in CASES["options"][paper]["same"]:
        assert keys(plan, paper, **options) == known
    for options in CASES["options"][paper]["again"]:
        assert not keys(plan, paper, **options) & known


@pytest.mark.parametrize("paper", ["nodes", "painters", "questions"])
def test_without_rows_nothing_is_drawn(paper: str, params: Params, tmp_path: Path) -> None:
    figures: Any = import_module(f"papers.{paper}.figures")
    assert figures.draw(Results(tmp_path, PAPERS), params) == {}
