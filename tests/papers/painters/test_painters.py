"""Painters as routes, what a model answers along them, jobs, rows, costs, the figure, and wrong parameters."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from torch import Tensor

from lsvit.routed import RoutedModel
from lsvit.routes import Route
from papers import PAPERS
from papers.painters.compute import rows as painters_rows
from papers.painters.compute.evaluation import evaluate
from papers.painters.compute.plan import Plan
from papers.painters.compute.strategies import cells, make_routes
from papers.painters.figures import PaintersFigures, draw, over_seeds
from papers.painters.section import KINDS, Kind, Painters, PaintersConfig
from pipeline.config.checks import check_layers
from pipeline.config.load import load
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import PLAIN
from pipeline.errors import UserError
from pipeline.jobs.files import ROWS, read_meta, sha256
from pipeline.jobs.rows import read_rows
from pipeline.models.weights import build, save_weights
from pipeline.report.results import Results
from pipeline.training.scoring import open_model, open_split, score
from tests.conftest import ROOT
from tests.papers.painters.test_claims import COLUMNS


def strategies(**options: Any) -> Painters:
    default = {
        "variants": ["ls"],
        "treated": [2, 4],
        "kinds": list(KINDS),
        "loops": 3,
        "orders": 5,
        "images": None,
        "batch_size": 16,
        "seed": 0,
    }
    return Painters.model_validate(default | options)


@pytest.fixture
def six(pico: ModelPreset) -> ModelPreset:
    """A 6-layer model."""
    return pico.model_copy(update={"kwargs": pico.kwargs | {"depth": 6}})


# ---- routes -----------------------------------------------------------------------------------------------------------

BY_HAND: dict[tuple[Kind, int], Route] = {
    ("skip", 2): (0, 1, 4, 5),
    ("skip", 3): (0, 4, 5),
    ("skip", 4): (0, 5),
    ("repeat", 2): (0, 1, 3, 3, 4, 5),
    ("repeat", 3): (0, 2, 2, 2, 4, 5),
    ("repeat", 4): (0, 3, 3, 3, 3, 5),
    ("reverse", 2): (0, 1, 3, 2, 4, 5),
    ("reverse", 3): (0, 3, 2, 1, 4, 5),
    ("reverse", 4): (0, 4, 3, 2, 1, 5),
    ("parallel", 2): (0, 1, (2, 3), 4, 5),
    ("parallel", 3): (0, (1, 2, 3), 4, 5),
    ("parallel", 4): (0, (1, 2, 3, 4), 5),
    ("loop", 2): (0, 1, (2, 3), (2, 3), (2, 3), 4, 5),
    ("loop", 4): (0, (1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), 5),
}


@pytest.mark.parametrize(("kind", "treated"), BY_HAND)
def test_routes_of_six_layers_by_hand(kind: Kind, treated: int) -> None:
    assert make_routes(kind, 6, treated, strategies()) == [BY_HAND[kind, treated]]


def test_random_orders_are_distinct_and_leave_the_ends_in_place() -> None:
    few = make_routes("shuffle", 6, 2, strategies())  # all there are
    assert sorted(map(str, few)) == ["(0, 1, 2, 3, 4, 5)", "(0, 1, 3, 2, 4, 5)"]
    drawn = make_routes("shuffle", 6, 4, strategies())
    assert len(set(drawn)) == 5
    for route in drawn:
        assert (route[0], route[-1]) == (0, 5)
        assert set(route[1:-1]) == {1, 2, 3, 4}
    assert (
        make_routes("shuffle", 6, 4, strategies(loops=1, kinds=["shuffle"], treated=[4], images=7))
        == drawn
    )
    assert make_routes("shuffle", 6, 4, strategies(seed=1)) != drawn


def test_the_model_as_it_is_comes_first_and_numbers_of_layers_come_once() -> None:
    found = cells(6, strategies(treated=[4, 2, 4], kinds=["skip", "loop"]))
    assert list(found) == [0, 2, 4]
    assert found[0] == {"none": [(0, 1, 2, 3, 4, 5)]}
    assert found[4] == {"skip": [(0, 5)], "loop": [BY_HAND["loop", 4]]}


# ---- what a model answers ---------------------------------------------------------------------------------------------


@pytest.fixture
def model(six: ModelPreset) -> RoutedModel:
    torch.manual_seed(0)
    return build(six, 10).eval()


def by_hand(
    model: RoutedModel, images: Tensor, middle: Callable[[Tensor, list[Any]], Tensor]
) -> Tensor:
    """The first layer, what `middle` makes of its output with layers 1 to 4, the last layer and timm's head."""
    blocks = list(model.backbone.blocks)
    return model.answer(blocks[5](middle(blocks[0](model.embed(images)), blocks[1:5])))


def average(state: Tensor, blocks: list[Any]) -> Tensor:
    return sum((block(state) for block in blocks), torch.zeros_like(state)) / len(blocks)


def three_times(state: Tensor, blocks: list[Any]) -> Tensor:
    return average(average(average(state, blocks), blocks), blocks)


@pytest.mark.parametrize(("kind", "middle"), [("parallel", average), ("loop", three_times)])
@torch.inference_mode()
def test_layers_side_by_side_are_averaged(
    kind: Kind, middle: Callable[[Tensor, list[Any]], Tensor], model: RoutedModel
) -> None:
    images = torch.randn(3, 1, 28, 28)
    (route,) = make_routes(kind, 6, 4, strategies())
    assert torch.allclose(model(images, route), by_hand(model, images, middle), atol=1e-6)
    assert not torch.allclose(model(images, route), model(images), atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "layers"),
    [("skip", [0, 5]), ("reverse", [0, 4, 3, 2, 1, 5]), ("repeat", [0, 3, 3, 3, 3, 5])],
)
@torch.inference_mode()
def test_other_strategies_are_those_of_a_model_with_its_layers_so(
    kind: Kind, layers: list[int], model: RoutedModel
) -> None:
    """timm's own forward, its blocks put in that order."""
    images = torch.randn(3, 1, 28, 28)
    (route,) = make_routes(kind, 6, 4, strategies())
    answered = model(images, route)
    model.backbone.blocks = torch.nn.Sequential(*(model.backbone.blocks[layer] for layer in layers))
    assert torch.equal(answered, model.backbone(images))


# ---- jobs and rows ----------------------------------------------------------------------------------------------------


def config(six: ModelPreset, **options: Any) -> PaintersConfig:
    return PaintersConfig(
        title="test",
        dataset="bars",
        model_name="six",
        model=six,
        variant=PLAIN,
        device="cpu",
        data_sha256="",
        weights_sha256=None,
        options=strategies(**options),
        precision="fp32",
    )


@pytest.fixture
def weights(model: RoutedModel, tmp_path: Path) -> Path:
    save_weights(model, tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def evaluated(setting: PaintersConfig, data: Path, weights: Path, folder: Path) -> pd.DataFrame:
    folder.mkdir(exist_ok=True)
    evaluate(setting, data, weights, folder, lambda event: None)
    return read_rows(folder / ROWS)


def test_a_row_is_the_mean_over_a_strategys_routes(
    six: ModelPreset, prepared: Path, weights: Path, tmp_path: Path
) -> None:
    setting = config(six)
    found = evaluated(setting, prepared, weights, tmp_path)
    assert found[["kind", "treated"]].values.tolist() == [
        ["none", 0],
        *([kind, k] for k in (2, 4) for kind in KINDS),
    ]
    assert found.set_index(["kind", "treated"]).loc["shuffle", "orders"].to_dict() == {2: 2, 4: 5}
    assert (found.loc[found["kind"] != "shuffle", "orders"] == 1).all()
    assert (found["images"] == 40).all()
    opened, execution = open_model(setting, prepared, weights)
    split = open_split(setting, prepared, "validation", opened)
    for row in found.itertuples():
        routes = cells(6, setting.options)[row.treated][row.kind]
        scores = [score(opened, split, [route], 40, execution) for route in routes]
        assert row.accuracy == pytest.approx(
            sum(each.accuracy for each in scores) / len(routes), abs=1e-6
        )
        assert row.loss == pytest.approx(sum(each.loss for each in scores) / len(routes), abs=1e-5)
    part = evaluated(
        config(six, images=24, kinds=["skip"], batch_size=5), prepared, weights, tmp_path
    )
    assert (part["images"] == 24).all()


@pytest.fixture
def plan(params: Params, outs: Path) -> Plan:
    """Of the default cell, on other data, with files that stand for weights; its work and results in a folder of its own."""
    for name, seed in itertools.product(
        ("baseline", "finetune/ls", "finetune/layerdrop"), params.seeds
    ):
        (outs / name / f"seed_{seed}").mkdir(parents=True)
        (outs / name / f"seed_{seed}" / "weights.safetensors").write_text(f"{name} {seed}")
    return Plan(params)


def changed(params: Params, **options: Any) -> Params:
    return params.model_copy(update={"painters": params.painters.model_copy(update=options)})


def test_one_job_a_variant_and_seed(plan: Plan) -> None:
    jobs, params = plan.jobs(), plan.params
    assert list(jobs) == [
        (name, seed) for name in params.painters.variants for seed in params.seeds
    ]
    assert len({job.key for job in jobs.values()}) == len(jobs)
    job = jobs["ls", 1]
    assert str(job.inputs["weights"]) == "outs/finetune/ls/seed_1/weights.safetensors"
    assert job.config.weights_sha256 == sha256(Path("outs/finetune/ls/seed_1/weights.safetensors"))
    assert job.config.data_sha256 == read_meta(Path("outs/prepare_data"))["sha256"]
    assert job.total == 1 + len(params.resolve(Painters).treated)


def test_another_variant_or_batch_size_evaluates_no_model_again(plan: Plan) -> None:
    def keys(**options: Any) -> set[str]:
        return {job.key for job in Plan(changed(plan.params, **options)).jobs().values()}

    known = keys()
    assert keys(batch_size=7) == known
    assert keys(variants=["baseline", "ls", "layerdrop"]) > known
    for options in ({"seed": 1}, {"loops": 2}, {"treated": [2]}, {"kinds": ["skip"]}):
        assert not keys(**options) & known


def test_rows_and_metrics_of_a_run(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is what the evaluations left, each with its variant and seed, and the same bytes again."""
    jobs = plan.jobs()
    for (name, seed), job in jobs.items():
        job.folder.mkdir(parents=True)
        low = 0.1 * seed + (0.05 if name == "ls" else 0)
        text = f"none,0,1,40,{low + 0.2},1\nskip,2,1,40,{low + 0.1},2\nskip,4,1,40,{low},3\n"
        (job.folder / ROWS).write_text(f"kind,treated,orders,images,accuracy,loss\n{text}")
    results = Path("results")
    results.mkdir()
    monkeypatch.setattr(painters_rows, "RESULTS", results)
    painters_rows.keep(plan, jobs)
    rows = read_rows(results / "painters.csv")
    assert list(rows.columns) == COLUMNS
    assert rows.iloc[-1].tolist() == [
        "fashion_mnist_10k",
        "vit_micro",
        "ls",
        4,
        "skip",
        4,
        1,
        40,
        0.45,
        3,
    ]


# ---- the figure -------------------------------------------------------------------------------------------------------


@pytest.fixture
def rows() -> pd.DataFrame:
    """Three seeds 0.02 apart of two variants."""
    found = [
        (
            "d",
            "m",
            variant,
            seed,
            kind,
            k,
            10 if kind == "shuffle" else 1,
            500,
            0.8 + 0.02 * seed - k * (i + 1) / 100,
            1.0,
        )
        for variant, seed in itertools.product(("baseline", "ls"), range(3))
        for i, (kind, k) in enumerate([("none", 0), *itertools.product(KINDS, (2, 4, 6))])
    ]
    return pd.DataFrame(found, columns=COLUMNS)


def test_lines_start_at_the_model_as_it_is(rows: pd.DataFrame) -> None:
    line = over_seeds(rows[rows["variant"] == "ls"], "skip")
    assert list(line.index) == [0, 2, 4, 6]
    assert line.loc[0].tolist() == pytest.approx([82, 2])
    assert line.loc[2].tolist() == pytest.approx([78, 2])
    assert over_seeds(rows[rows["seed"] == 0], "skip")["std"].notna().all()


@pytest.mark.slow
def test_the_figure_is_the_same_bytes_again(
    rows: pd.DataFrame, params: Params, tmp_path: Path
) -> None:
    digests, captions = [], []
    for folder in (tmp_path / "a", tmp_path / "b"):
        figures = PaintersFigures(folder, params.paper_figures, ["baseline", "ls"])
        captions.append(figures.strategies(rows, 3, 10, "painters"))
        digests.append({path.name: sha256(path) for path in folder.iterdir()})
    assert set(digests[0]) == {"painters.png"}
    assert digests[0] == digests[1]
    assert captions[0] == captions[1]
    for said in (
        "Mean over 3 seeds",
        "that 3 times one after another",
        "up to 10 orders",
        "500 validation images",
    ):
        assert said in captions[0]


def test_what_was_not_evaluated_is_not_drawn(
    rows: pd.DataFrame, params: Params, tmp_path: Path
) -> None:
    results = Results(tmp_path, PAPERS)
    assert draw(results, params) == {}
    results.tables["painters"] = rows[
        (rows["variant"] == "ls") & rows["kind"].isin(["none", "skip"]) & (rows["seed"] == 0)
    ]
    results.cell = {"classes": 10}
    caption = draw(results, params)["Painters"]
    assert "Mean over 1 seed;" in caption
    assert "parallel" not in caption


# ---- wrong parameters -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"treated": [2, 11]},
            ["painters.treated: found 11, accepted: at most 10", "'baseline' has 12 layers"],
        ),
        (
            {"treated": [2], "variants": ["refit_3"]},
            ["painters.treated: found 2, accepted: at most 1", "'refit_3' has 3 layers"],
        ),
        ({"treated": []}, ["painters.treated: found []", "at least 1"]),
        ({"treated": [0]}, ["painters.treated.0: found 0", "greater than or equal to 1"]),
        ({"kinds": ["skipp"]}, ["painters.kinds.0: found 'skipp', did you mean 'skip'?"]),
        (
            {"variants": ["baselin"]},
            ["painters.variants: found 'baselin', did you mean 'baseline'?"],
        ),
        ({"variants": []}, ["painters.variants: found []", "at least 1"]),
        ({"loop": 3}, ["painters.loop: unknown key", "did you mean 'loops'?"]),
        (
            {"variants": ["ls_pos"]},
            [
                "painters.loops: found 3, accepted: at most 2",
                "'ls_pos' knows as many positions as layers",
            ],
        ),
        (
            {"variants": ["ls_pred"], "loops": 5, "treated": [4]},
            ["painters.loops: found 5, accepted: at most 4"],
        ),
        ({"variants": ["early"]}, ["painters.variants: found 'early', which has exits"]),
    ],
)
def test_a_wrong_value_is_one_line(
    changes: dict[str, Any], said: list[str], tmp_path: Path
) -> None:
    content = yaml.safe_load((ROOT / "params.yaml").read_text())
    content["variants"]["early"] = {
        "route": "sequential",
        "exits": {"branch": "mlp", "depths": [6]},
    }
    content["painters"] |= changes
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(UserError) as error:
        check_layers(load(tmp_path / "params.yaml", papers=PAPERS), 12)
    assert all(line.startswith("params.yaml: painters.") for line in str(error.value).splitlines())
    assert all(part in str(error.value) for part in said), error.value


def test_models_that_know_positions_run_without_loops_or_with_few(tmp_path: Path) -> None:
    content = yaml.safe_load((ROOT / "params.yaml").read_text())
    for changes in ({"kinds": ["skip", "parallel"]}, {"kinds": list(KINDS), "loops": 2}):
        content["painters"] |= {"variants": ["ls_pos", "ls_pred"], **changes}
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(content))
        check_layers(load(tmp_path / "params.yaml", papers=PAPERS), 12)


def test_loops_of_a_model_that_knows_positions_end_where_the_check_says(six: ModelPreset) -> None:
    """The check's bound is the model's own: as many loops as layers treated fill the positions, one more outruns them."""
    variant = PLAIN.model_validate({"route": "arbitrary", "position": {"encode": {"dim": 8}}})
    model, images = build(six, 10, variant).eval(), torch.randn(2, 1, 28, 28)
    model(images, make_routes("loop", 6, 2, strategies(loops=2))[0])
    with pytest.raises(IndexError, match="the position parts know 6 positions"):
        model(images, make_routes("loop", 6, 2, strategies(loops=3))[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(load(ROOT / "params.yaml", papers=PAPERS).models))
def test_every_preset_fits_the_section(name: str, tmp_path: Path) -> None:
    content = yaml.safe_load((ROOT / "params.yaml").read_text()) | {"model": name}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(content))
    check_layers(load(tmp_path / "params.yaml", papers=PAPERS), 12)  # of all of them
