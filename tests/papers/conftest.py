"""Cases of the suites, and what papers' jobs are made from."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from lsvit.weights import save_weights
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import PLAIN
from pipeline.jobs.files import ROWS, WEIGHTS, sha256
from pipeline.jobs.rows import read_rows
from pipeline.models.weights import build
from tests.conftest import run_fields
from tests.papers.claim_suite import ClaimSuite
from tests.papers.drawn import DrawnFigures
from tests.pipeline.config.conftest import changed, content, write  # noqa: F401 (fixtures)

VARIANTS = ["baseline", "ls", "ls_pos", "ls_pred", "layerdrop", "refit_3"]
Keys = Callable[..., set[str]]
Evaluated = Callable[..., tuple[Any, pd.DataFrame]]


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


def save_untrained(preset: ModelPreset, folder: Path) -> Path:
    torch.manual_seed(0)
    file = folder / "w.safetensors"
    save_weights(build(preset, 10), file)
    return file


@pytest.fixture
def weights(pico: ModelPreset, tmp_path: Path) -> Path:
    """Weights of an untrained model of 4 layers."""
    return save_untrained(pico, tmp_path)


@pytest.fixture
def six_weights(six: ModelPreset, tmp_path: Path) -> Path:
    """Weights of an untrained model of 6 layers."""
    return save_untrained(six, tmp_path)


@pytest.fixture
def evaluated(six: ModelPreset, six_weights: Path, prepared: Path, tmp_path: Path) -> Evaluated:
    """Runs a module's evaluation of this model; gives its configuration and its rows."""

    def run(part: Any, config: Any, options: Any, **others: Path) -> tuple[Any, pd.DataFrame]:
        fields = run_fields(prepared, six, PLAIN, precision="fp32", options=options)
        if others:
            fields["others_sha256"] = [sha256(file) for file in others.values()]
        made = config(**fields)
        part.evaluate(made, prepared, six_weights, tmp_path, lambda event: None, **others)
        return made, read_rows(tmp_path / ROWS)

    return run


@pytest.fixture
def figures(params: Params, tmp_path: Path) -> DrawnFigures:
    """Figures in which the variants of VARIANTS have a colour."""
    return DrawnFigures(tmp_path, params, VARIANTS)


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
