"""params.yaml with other values."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from papers import PAPERS
from pipeline.config.load import load
from pipeline.config.params import Params
from tests.conftest import ROOT

Load = Callable[[dict[str, Any]], Params]
DELETE = object()  # as a value: the key is removed


@pytest.fixture(scope="session")
def content() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "params.yaml").read_text())


@pytest.fixture
def write(content: dict[str, Any], tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    """Writes params.yaml with other values, put in one after another, by dotted key."""

    def make(values: dict[str, Any]) -> Path:
        changed = deepcopy(content)
        for key, value in values.items():
            *path, last = key.split(".")
            place = changed
            for part in path:
                place = place.setdefault(part, {})
            if value is DELETE:
                del place[last]
            else:
                place[last] = value
        file = tmp_path / "params.yaml"
        file.write_text(yaml.dump(changed, Dumper=yaml.CSafeDumper, sort_keys=False))
        return file

    return make


@pytest.fixture
def changed(write: Callable[[dict[str, Any]], Path]) -> Load:
    """Loads params.yaml with other values: {"models.vit_micro.timm": "vit"}."""
    return lambda values: load(write(values), papers=PAPERS)
