"""Cases of the suites, and what papers' jobs are made from."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lsvit.weights import save_weights
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.jobs.files import WEIGHTS
from pipeline.models.weights import build
from tests.papers.claim_suite import ClaimSuite
from tests.pipeline.config.conftest import changed, content, write  # noqa: F401 (fixtures)

Keys = Callable[..., set[str]]


@pytest.fixture
def keys(params: Params, outs: Path) -> Keys:
    """The keys of a plan's jobs under other options of its paper's section.

    In a folder of its own, with small data and files that stand for weights.
    """
    names = ("baseline", *(f"finetune/{name}" for name in params.variants))
    for name, seed in itertools.product(names, params.seeds):
        folder = outs / name / f"seed_{seed}"
        folder.mkdir(parents=True)
        (folder / WEIGHTS).write_text(f"{name} {seed}")

    def keys_of(plan: Any, section: str, **options: Any) -> set[str]:
        own = getattr(params, section)
        other = own.model_validate(own.model_dump() | options)
        jobs = plan(params.model_copy(update={section: other})).jobs()
        return {job.key for job in jobs.values()}

    return keys_of


@pytest.fixture
def six(pico: ModelPreset) -> ModelPreset:
    """A 6-layer model."""
    return pico.model_copy(update={"kwargs": pico.kwargs | {"depth": 6}})


@pytest.fixture
def weights(pico: ModelPreset, tmp_path: Path) -> Path:
    """Weights of an untrained model of 4 layers."""
    torch.manual_seed(0)
    file = tmp_path / "w.safetensors"
    save_weights(build(pico, 10), file)
    return file


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A case each of what a suite of claims lists."""
    suite = metafunc.cls
    if suite is None or not issubclass(suite, ClaimSuite):
        return
    if "known_name" in metafunc.fixturenames:
        metafunc.parametrize("known_name", list(suite.cases["known"]))
    if "case" in metafunc.fixturenames:
        changes = suite.cases["changes"]
        metafunc.parametrize("case", changes, ids=[f"{case[0]}-{case[2]}" for case in changes])
    if "gone" in metafunc.fixturenames:
        missing = suite.cases["missing"]
        metafunc.parametrize("gone", missing, ids=[str(rows) for rows, _ in missing])
