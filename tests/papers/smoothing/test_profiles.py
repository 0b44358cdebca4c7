"""Which models stage smoothing profiles, and that its cost counts the same."""

import json
from pathlib import Path

import pytest
from papers.smoothing.cost import stages

from papers.smoothing.compute.plan import Plan
from papers.smoothing.section import SCRATCH
from pipeline.config.params import Params
from pipeline.config.variant import UNTRAINED
from pipeline.jobs.files import HISTORY, finetuned, weights_file

VARIANTS = ["baseline", "ls"]


def chosen(params: Params, seeds: int | None, depths: list[int]) -> Params:
    """Four seeds, of which the stage takes some; few and small models."""
    preset = params.models[params.model].model_copy(update={"smoothing": {}})
    options = {
        "seeds": seeds,
        "depths": depths,
        "losses": params.smoothing.losses[:2],
        "removed": [],
        "talking_heads": depths[:1],
        "variants": VARIANTS,
        "images": 40,
        "batch_size": 20,
    }
    update = {
        "seeds": [7, 3, 5, 1],
        "scale": "published",
        "models": params.models | {params.model: preset},
    }
    return params.model_copy(
        update=update | {"smoothing": params.smoothing.model_copy(update=options)}
    )


@pytest.mark.parametrize(("seeds", "expected"), [(1, [7]), (3, [7, 3, 5]), (None, [7, 3, 5, 1])])
def test_seeds_hold_for_all_models(
    params: Params, prepared: Path, seeds: int | None, expected: list[int]
) -> None:
    """Trained here, untrained, and refined: the first of `seeds`."""
    plan = Plan(chosen(params, seeds, [2, 3]), prepared)
    for models in (plan.models(), plan.references(), plan.refined()):
        found = {
            name: [model.seed for model in models if model.title == name]
            for name in dict.fromkeys(m.title for m in models)
        }
        assert found
        assert all(own == expected for own in found.values())
    assert [model.training for model in plan.refined()] == [
        name for name in VARIANTS for _ in expected
    ]


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: Params) -> None:
    """What refinement and stage prune-eval left."""
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    rows = ["dataset,model,variant,seed,order,keep,routes,accuracy"]
    for name in VARIANTS:
        for seed in (7, 3, 5, 1):
            (file := finetuned(name, seed)).parent.mkdir(parents=True)
            file.write_text(f"{name} {seed}")
            rows += [f"d,m,{name},{seed},{order},12,1,0.5" for order in ("sequential", "arbitrary")]
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "prune_eval.csv").write_text("\n".join(rows) + "\n")


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize("depths", [[2, 3], []])
def test_the_cost_counts_every_profile(params: Params, prepared: Path, depths: list[int]) -> None:
    """One job a profile that the plan makes, those of random initialisations too, with the forward passes of its model."""
    few = chosen(params, 2, depths)
    plan = Plan(few, prepared)
    models = [plan.trained(model) for model in plan.models()]
    for model in models:
        assert model.job
        model.job.folder.mkdir(parents=True)
        row = {"epoch": 1, "validation/sequential/loss": 1.0, "validation/sequential/accuracy": 0.5}
        (model.job.folder / HISTORY).write_text(json.dumps([row]))
        (model.job.folder / weights_file("validation")).write_text(model.title)
    profiles = plan.profiles([*models, *plan.references(), *plan.refined()])
    assert len({profile.job.key for profile in profiles}) == len(profiles)
    kinds = [profile.model.training for profile in profiles]
    assert (kinds.count(UNTRAINED), kinds.count(SCRATCH)) == (2 * len(depths), len(models))
    *trainings, counted = stages(few, (80, 40, 0))
    assert len(counted.jobs) == len(profiles)
    assert sum(len(each.jobs) for each in trainings) == len(models)
    assert {sum(work.images for work in job) for job in counted.jobs} == {40}
    assert not any(work.training for job in counted.jobs for work in job)
    if depths:
        more = stages(
            few.model_copy(
                update={"smoothing": few.smoothing.model_copy(update={"depths": depths[:1]})}
            ),
            (80, 40, 0),
        )[-1]
        assert len(counted.jobs) - len(more.jobs) == 2 * (
            2 + 1
        )  # losses, and the reference, of two seeds
