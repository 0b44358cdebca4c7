"""Wrong values in the sections of papers are named."""

import re
from contextlib import nullcontext
from typing import Any

import pytest

from pipeline.config.checks import check_layers
from pipeline.errors import UserError
from tests.conftest import cases_of
from tests.pipeline.config.conftest import Load


@pytest.mark.slow
@pytest.mark.parametrize(("values", "said"), cases_of(__file__)["values"])
def test_a_wrong_value_is_named(values: dict[str, Any], said: str | None, changed: Load) -> None:
    refused = pytest.raises(UserError, match=re.escape(f"params.yaml: {said}"))
    with refused if said else nullcontext():
        check_layers(changed(values), 12)
