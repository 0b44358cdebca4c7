"""Wrong values in the sections of papers are named."""

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.checks import check_layers
from pipeline.errors import UserError
from tests.pipeline.config.conftest import Load

CASES = yaml.safe_load(Path(__file__).with_name("wrong_values.yaml").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(("values", "said"), CASES)
def test_a_wrong_value_is_named(values: dict[str, Any], said: str | None, changed: Load) -> None:
    refused = pytest.raises(UserError, match=re.escape(f"params.yaml: {said}"))
    with refused if said else nullcontext():
        check_layers(changed(values), 12)
