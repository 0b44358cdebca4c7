"""The ViT-S/14 of a package: benchmarks/vit_s14_weights.py, which compares its own conversion."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipeline.models.weights import normalisation
from tests.conftest import ROOT, refused


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import vit_s14_weights

    return vit_s14_weights


def test_another_file_is_refused(script: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "other.onnx"
    with refused(f"^{file}: not found"):
        script.convert(file, tmp_path / "out")
    file.write_bytes(b"other")
    with refused(f"^{file}: its sha256 is d9298a10d1b0"):
        script.convert(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_preset_is_of_these_weights(script: ModuleType, params: Any) -> None:
    """The script says of its own run what the preset loads."""
    preset = params.models["vit_s14_56"]
    assert preset.timm == script.ARCHITECTURE
    assert Path(preset.weights) == script.OUT
    assert preset.sha256 == json.loads(script.FILE.read_text())["weights_sha256"]
    assert normalisation(preset, {}) == (script.MEAN, script.STD)
