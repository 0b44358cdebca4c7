"""params.yaml with other values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from papers import PAPERS
from pipeline.config.load import load
from pipeline.config.params import Params
from tests.conftest import ROOT

Load = Callable[[dict[str, Any]], Params]


@pytest.fixture(scope="session")
def text() -> str:
    """params.yaml without its comments."""
    return yaml.safe_dump(yaml.safe_load((ROOT / "params.yaml").read_text()), sort_keys=False)


@pytest.fixture
def changed(text: str, tmp_path: Path) -> Load:
    """Loads params.yaml with other values, put in one after another: {"models.vit_micro.timm": "vit"}."""

    def make(values: dict[str, Any]) -> Params:
        content = yaml.safe_load(text)
        for key, value in values.items():
            *path, last = key.split(".")
            place = content
            for part in path:
                place = place.setdefault(part, {})
            place[last] = value
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return load(tmp_path / "params.yaml", papers=PAPERS)

    return make
