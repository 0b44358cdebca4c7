"""What stage smoothing trains and profiles, and the rows that come of it."""

import json
from pathlib import Path

import pandas as pd
import pytest

from papers.smoothing.compute.plan import Model, Plan
from papers.smoothing.compute.rows import COLUMNS, profile_rows
from papers.smoothing.section import PROFILE, Losses, Smoothing
from pipeline.config.params import Params
from pipeline.jobs.files import HISTORY, weights_file


@pytest.fixture
def plan(params: Params, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Of the default cell, on other data."""
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    return Plan(params, prepared, tmp_path / "finetune", tmp_path / "prune_eval.csv")


def test_the_models_are_the_rows_of_the_tables(plan: Plan) -> None:
    models, options = plan.models(), plan.options
    titles = [(model.title, model.seed) for model in models]
    assert len(set(titles)) == len(titles)
    assert {seed for _, seed in titles} == set(plan.params.seeds[: options.seeds])
    names = list(dict.fromkeys(title for title, _ in titles))
    plain = [
        f"scratch_{depth}_{str(losses).replace('+', '_')}"
        for depth in (24, 12)
        for losses in options.losses
    ]
    removed = [
        f"scratch_12_{losses}_without_{part}"
        for part in options.removed
        for losses in ("none", "contrastive_mixing")
    ]
    assert names == [*plain, *removed, "scratch_12_contrastive_mixing_talking_heads"]
    for model in models:
        recipe = (
            options.recipe if model.removed == "none" else options.recipe.without(model.removed)
        )
        assert model.variant.recipe == recipe
        assert (recipe == options.recipe) == (model.removed == "none")
        assert model.preset.kwargs["depth"] == int(model.title.split("_")[1])
        assert (model.preset.weights, model.variant.route, model.variant.layers) == (
            "scratch",
            "sequential",
            None,
        )


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
    first = plan.trained(plan.models()[0])
    plan.options = plan.options.model_copy(
        update={"losses": plan.options.losses[:1], "removed": [], "images": 10}
    )
    again = plan.trained(plan.models()[0])
    assert first.job
    assert again.job
    assert first.job.key == again.job.key
    assert (
        first.job.config.model_dump()["options"]["epochs"]
        == plan.params.scratch_training(Smoothing).epochs
    )


def finish(model: Model, history: list[dict[str, float]]) -> None:
    assert model.job
    model.job.folder.mkdir(parents=True)
    (model.job.folder / HISTORY).write_text(json.dumps(history))
    (model.job.folder / weights_file("validation")).write_bytes(b"weights")


def test_rows_of_profiles(plan: Plan, tmp_path: Path) -> None:
    """A row a layer, the embedding without attention; variants in both orders.

    Accuracy is that of the epoch with the lowest loss, of variants that over many orders.
    """
    trained = plan.trained(plan.models()[0])
    rows = [
        {"validation/sequential/loss": loss, "validation/sequential/accuracy": accuracy}
        for loss, accuracy in ((2, 0.3), (1, 0.4))
    ]
    finish(trained, [*rows, rows[0]])
    ls = next(model for model in plan.refined() if (model.training, model.seed) == ("ls", 0))
    folder = tmp_path / "finetune" / "ls" / "seed_0"
    folder.mkdir(parents=True)
    cells = [
        ("sequential", 12, 1, 0.7),
        ("arbitrary", 12, 1, 0.1),
        ("arbitrary", 12, 100, 0.6),
        ("sequential", 6, 1, 0.2),
    ]
    evaluations = pd.DataFrame(cells, columns=["order", "keep", "routes", "accuracy"])
    evaluations.assign(dataset="d", model="m", variant="ls", seed=0).to_csv(
        tmp_path / "prune_eval.csv", index=False
    )
    (folder / weights_file("validation")).write_bytes(b"other weights")
    profiles = plan.profiles([trained, plan.references()[0], ls])
    assert [profile.order for profile in profiles] == [
        "sequential",
        "sequential",
        "sequential",
        "arbitrary",
    ]
    assert len({profile.job.key for profile in profiles}) == 4
    assert profiles[1].job.inputs["weights"] is None
    for i, profile in enumerate(profiles):
        profile.job.folder.mkdir(parents=True)
        found = {
            "patch_cosine": [0.0, 0.1 + i, 0.2 + i],
            "attention_std": [0.01, None] if i == 3 else [0.01, 0.02],
        }
        (profile.job.folder / PROFILE).write_text(json.dumps(found))
    table = profile_rows(profiles)
    assert list(table.columns) == COLUMNS
    assert table["training"].tolist() == ["scratch"] * 3 + ["untrained"] * 3 + ["ls"] * 6
    assert table["layer"].tolist() == [0, 1, 2] * 4
    assert table["patch_cosine"].tolist() == [0, 0.1, 0.2, 0, 1.1, 1.2, 0, 2.1, 2.2, 0, 3.1, 3.2]
    assert table["attention_std"].isna().tolist() == [True, False, False] * 3 + [True, False, True]
    assert table["accuracy"].dropna().tolist() == [0.4] * 3 + [0.7] * 3 + [0.6] * 3
    assert set(table["num_layers"]) == {2}
