"""What the stages of several papers have in common: what runs again."""

from importlib import import_module

import pytest

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
