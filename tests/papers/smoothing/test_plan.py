"""What stage smoothing trains and profiles, and the rows that come of it."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from papers.smoothing.compute.plan import Plan
from papers.smoothing.compute.rows import profile_rows
from papers.smoothing.section import PROFILE, Losses, Recipe, Smoothing
from pipeline.config.params import Params
from pipeline.jobs.files import HISTORY, weights_file
from tests.conftest import cases_of

MODELS = cases_of(__file__)["models"]
EVERY_TABLE = {
    "removed": ["mixup", "drop_path"],
    "talking_heads": [12],
    "drop_paths": [0.1, 0.5, 0.75],
    "recipe": Recipe(repeats=3, mixup=0.8, drop_path=0.1),
}


@pytest.fixture
def plan(params: Params, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Of the default cell, on other data, with every table's rows."""
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    plan = Plan(params)
    plan.data, plan.folder = prepared, tmp_path / "finetune"
    plan.evaluated = tmp_path / "prune_eval.csv"
    losses = [Losses(), plan.options.best]
    plan.options = plan.options.model_copy(update=EVERY_TABLE | {"losses": losses})
    return plan


def test_the_models_are_the_rows_of_the_tables(plan: Plan) -> None:
    models = plan.models()
    seeds = plan.params.seeds[: plan.options.seeds]
    assert [(model.title, model.seed) for model in models] == [*product(MODELS, seeds)]
    for model in models:
        recipe = plan.options.recipe.model_copy(update=MODELS[model.title])
        assert (model.variant.recipe, model.variant.route) == (recipe, "sequential")
        assert model.preset.kwargs["depth"] == int(model.title.split("_")[1])
        assert model.preset.weights == "scratch"


def test_nothing_is_trained_without_depths(plan: Plan) -> None:
    plan.options = plan.options.model_copy(update={"depths": [], "talking_heads": []})
    assert plan.models() == plan.references() == []
    assert len(plan.refined()) == len(plan.options.variants) * len(plan.seeds)


def test_table_4_has_its_standard_row_even_if_table_1_has_not(plan: Plan) -> None:
    plan.options = plan.options.model_copy(
        update={"losses": [Losses.model_validate({"cosine": 1})]}
    )
    titles = {model.title for model in plan.models()}
    assert {
        "scratch_12_none",
        "scratch_12_contrastive_mixing",
        "scratch_12_none_without_drop_path",
    } <= titles


def test_a_training_is_the_same_job_whatever_else_is_trained(plan: Plan) -> None:
    first: Any = plan.trained(plan.models()[0])
    plan.options = plan.options.model_copy(
        update={"losses": plan.options.losses[:1], "removed": [], "images": 10}
    )
    again: Any = plan.trained(plan.models()[0])
    assert first.job.key == again.job.key
    assert first.job.config.options.epochs == plan.params.scratch_training(Smoothing).epochs


EVALUATIONS = """dataset,model,variant,seed,order,keep,routes,accuracy
d,m,ls,0,sequential,12,1,0.7
d,m,ls,0,arbitrary,12,1,0.1
d,m,ls,0,arbitrary,12,100,0.6
d,m,ls,0,sequential,6,1,0.2
"""


def test_rows_of_profiles(plan: Plan, tmp_path: Path) -> None:
    """A row a layer, the embedding without attention; variants in both orders.

    Accuracy is that of the epoch with the lowest loss, of variants that over many orders.
    """
    trained: Any = plan.trained(plan.models()[0])
    ls = next(model for model in plan.refined() if (model.training, model.seed) == ("ls", 0))
    for folder in (trained.job.folder, tmp_path / "finetune" / "ls" / "seed_0"):
        folder.mkdir(parents=True)
        (folder / weights_file("validation")).write_text(folder.name)
    columns = ("validation/sequential/loss", "validation/sequential/accuracy")
    history = [dict(zip(columns, row, strict=True)) for row in ((2, 0.3), (1, 0.4))]
    (trained.job.folder / HISTORY).write_text(json.dumps(history))
    (tmp_path / "prune_eval.csv").write_text(EVALUATIONS)
    profiles = plan.profiles([trained, plan.references()[0], ls])
    orders = ["sequential", "sequential", "sequential", "arbitrary"]
    assert [profile.order for profile in profiles] == orders
    assert profiles[1].job.inputs["weights"] is None
    for i, profile in enumerate(profiles):
        profile.job.folder.mkdir(parents=True)
        measured = {"patch_cosine": [0.0, 0.1 + i], "attention_std": [0.01]}
        (profile.job.folder / PROFILE).write_text(json.dumps(measured))
    table = profile_rows(profiles)
    assert list(table.columns[-3:]) == ["patch_cosine", "attention_std", "accuracy"]
    assert table["training"].tolist() == ["scratch"] * 2 + ["untrained"] * 2 + ["ls"] * 4
    assert table["layer"].tolist() == [0, 1] * 4
    assert table["patch_cosine"].tolist() == [0, 0.1, 0, 1.1, 0, 2.1, 0, 3.1]
    assert table["attention_std"].fillna(0).tolist() == [0, 0.01] * 4
    assert table["accuracy"].fillna(0).tolist() == [0.4, 0.4, 0, 0, 0.7, 0.7, 0.6, 0.6]
    assert set(table["num_layers"]) == {1}
