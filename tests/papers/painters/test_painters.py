"""Strategies as routes, what a model answers, jobs, rows, the figure, wrong parameters."""

from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from lsvit.routes import OneRoute
from papers.painters.compute import evaluation
from papers.painters.compute import rows as painters_rows
from papers.painters.compute.plan import Plan
from papers.painters.compute.strategies import cells, make_routes
from papers.painters.figures import draw_strategies
from papers.painters.section import KINDS, Kind, Painters, PaintersConfig
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import PLAIN
from pipeline.jobs.files import ROWS, sha256
from pipeline.jobs.rows import read_rows
from pipeline.models.weights import build
from pipeline.training.scoring import open_model, open_split, score
from tests.conftest import cases_of
from tests.papers.claim_suite import committed
from tests.papers.conftest import Evaluated, Keys
from tests.papers.drawn import DrawnFigures, expect_case

CASES = cases_of(__file__)
COLUMNS = ["dataset", "model", "variant", "seed", *evaluation.COLUMNS]


def strategies(**options: Any) -> Painters:
    return Painters.model_validate(CASES["options"] | {"kinds": list(KINDS)} | options)


# ---- routes ----


def test_random_orders_are_distinct_and_leave_the_ends_in_place() -> None:
    few = make_routes("shuffle", 6, 2, strategies())  # all there are
    assert sorted(map(str, few)) == ["(0, 1, 2, 3, 4, 5)", "(0, 1, 3, 2, 4, 5)"]
    drawn = make_routes("shuffle", 6, 4, strategies())
    assert len(set(drawn)) == 5
    for route in drawn:
        assert (route[0], route[-1]) == (0, 5)
        assert set(route[1:-1]) == {1, 2, 3, 4}
    others = strategies(loops=1, kinds=["shuffle"], treated=[4], images=7)
    assert make_routes("shuffle", 6, 4, others) == drawn
    assert make_routes("shuffle", 6, 4, strategies(seed=1)) != drawn


def test_the_model_as_it_is_comes_first_and_numbers_of_layers_come_once() -> None:
    found = cells(6, strategies(treated=[4, 2, 4], kinds=["skip", "loop"]))
    assert list(found) == [0, 2, 4]
    assert found[0] == {"none": [(0, 1, 2, 3, 4, 5)]}
    assert found[4] == {"skip": [(0, 5)], "loop": make_routes("loop", 6, 4, strategies())}


# ---- what a model answers ----


@pytest.mark.parametrize(("kind", "treated", "steps"), CASES["routes"])
@torch.inference_mode()
def test_strategies_on_six_layers_by_hand(
    kind: Kind, treated: int, steps: list[Any], six: ModelPreset
) -> None:
    """Layers side by side are averaged, others run in the route's order."""
    torch.manual_seed(0)
    model, images = build(six, 10).eval(), torch.randn(3, 1, 28, 28)
    (route,) = make_routes(kind, 6, treated, strategies())
    assert route == tuple(tuple(step) if isinstance(step, list) else step for step in steps)
    blocks = model.backbone.blocks
    state = model.embed(images)
    for step in steps:
        layers = step if isinstance(step, list) else [step]
        state = torch.stack([blocks[layer](state) for layer in layers]).mean(0)
    found = model(images, route)
    assert torch.allclose(found, model.answer(state), atol=1e-6)
    assert not torch.allclose(found, model(images), atol=1e-3)


# ---- jobs and rows ----


def test_a_row_is_the_mean_over_a_strategys_routes(
    evaluated: Evaluated, prepared: Path, six_weights: Path
) -> None:
    config, found = evaluated(evaluation, PaintersConfig, strategies())
    keys = [["none", 0], *([kind, treated] for treated in (2, 4) for kind in KINDS)]
    assert found[["kind", "treated"]].values.tolist() == keys
    assert found.loc[found["kind"] == "shuffle", "orders"].tolist() == [2, 5]
    assert (found.loc[found["kind"] != "shuffle", "orders"] == 1).all()
    assert (found["images"] == 40).all()
    opened, execution = open_model(config, prepared, six_weights)
    split = open_split(config, prepared, "validation", opened)
    for row in found.itertuples():
        routes = cells(6, config.options)[row.treated][row.kind]
        scores = [score(opened, split, OneRoute(route), 40, execution) for route in routes]
        assert row.accuracy == pytest.approx(fmean(one.accuracy for one in scores), abs=1e-6)
        assert row.loss == pytest.approx(fmean(one.loss for one in scores), abs=1e-5)
    few = strategies(images=24, kinds=["skip"], batch_size=5)
    _, part = evaluated(evaluation, PaintersConfig, few)
    assert (part["images"] == 24).all()


def test_one_job_a_variant_and_seed(keys: Keys, params: Params) -> None:
    known = keys(Plan, "painters")
    assert len(known) == len(params.painters.variants) * len(params.seeds)
    assert keys(Plan, "painters", variants=["baseline", "ls", "layerdrop"]) > known


@pytest.mark.usefixtures("keys")
def test_rows_of_a_run(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows kept are those of the evaluations, each with its variant and seed."""
    plan = Plan(params)
    jobs = plan.jobs()
    for (name, seed), job in jobs.items():
        weights = Path(f"outs/finetune/ls/seed_{seed}/weights.safetensors")
        if name == "ls":
            assert job.inputs["weights"] == weights
            assert job.config.weights_sha256 == sha256(weights)
        job.folder.mkdir(parents=True)
        low = 0.1 * seed + (0.05 if name == "ls" else 0)
        text = f"none,0,1,40,{low + 0.2},1\nskip,4,1,40,{low},3\n"
        (job.folder / ROWS).write_text(f"kind,treated,orders,images,accuracy,loss\n{text}")
    Path("results").mkdir()
    monkeypatch.setattr(painters_rows, "RESULTS", Path("results"))
    painters_rows.keep(plan, jobs)
    rows = read_rows(Path("results/painters.csv"))
    assert list(rows.columns) == COLUMNS
    last = ["fashion_mnist_10k", "vit_micro", "ls", 4, "skip", 4, 1, 40, 0.45, 3]
    assert rows.iloc[-1].tolist() == last


# ---- the figure ----


@pytest.mark.parametrize("seeds", [1, 5])
@pytest.mark.parametrize("case", CASES["lines"])
def test_lines_are_means_over_seeds_from_the_model_as_it_is_on(
    case: dict[str, Any], seeds: int, figures: DrawnFigures
) -> None:
    rows = committed().table("painters")
    rows = rows[(rows["seed"] < seeds) & (rows["kind"] != "loop")]
    draw_strategies(figures, rows, 3, 10)
    expect_case(figures, rows, case)


@pytest.mark.parametrize("loops", [2, 3])
def test_loops_of_a_model_that_knows_positions_end_where_the_check_says(
    loops: int, six: ModelPreset
) -> None:
    """As many loops as layers treated fill the positions, one more outruns them."""
    variant = PLAIN.model_validate({"route": "arbitrary", "position": {"encode": {"dim": 8}}})
    (route,) = make_routes("loop", 6, 2, strategies(loops=loops))
    outrun = pytest.raises(IndexError, match="the position parts know 6 positions")
    with outrun if loops > 2 else nullcontext():
        build(six, 10, variant).eval()(torch.randn(2, 1, 28, 28), route)
