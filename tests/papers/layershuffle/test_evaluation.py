"""Evaluation: which routes give the mean and the spread, samplers, Latin routes, recordings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import cross_entropy

from lsvit.latin import Latin
from lsvit.routed import RoutedModel
from lsvit.routes import OneRoute, RouteTable, arbitrary, generator
from lsvit.taps import PositionLogits
from lsvit.weights import save_weights
from papers import Variant
from papers.exits.section import ExitHeads
from papers.layershuffle.compute import analysis, evaluation, logistic
from papers.layershuffle.compute.analysis import Recording, record
from papers.layershuffle.compute.cells import cells, choose_layers
from papers.layershuffle.compute.evaluation import mislead
from papers.layershuffle.compute.plan import Evaluations
from papers.layershuffle.section import (
    ANALYSIS_NUMBERS,
    SAMPLER_ROWS,
    AnalysisConfig,
    EvalConfig,
    LogisticConfig,
    PruneEval,
)
from papers.smoothing.section import Recipe
from pipeline.config.datasets import DatasetPreset
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.data.prepare import prepare
from pipeline.data.resize import Resize, resizing
from pipeline.data.splits import Split
from pipeline.files import read_json
from pipeline.jobs.files import ARRAYS, ROWS, read_meta
from pipeline.models.weights import build
from pipeline.training import scoring
from pipeline.training.devices import Execution
from pipeline.training.objectives import is_right, task_loss
from pipeline.training.scoring import InTurn, Score, open_model, open_split, score
from tests.conftest import cases_of, refused, run_fields
from tests.models import small
from tests.papers.conftest import Keys
from tests.papers.exits.test_branches import FAMILIES

CASES = cases_of(__file__)
ROUTE_KEYS = ["route", "routes", "images"]
Evaluated = Callable[..., tuple[pd.DataFrame, pd.DataFrame]]
Configured = Callable[..., EvalConfig]
Opened = Callable[[EvalConfig], tuple[RoutedModel, Split, Execution]]


@pytest.fixture
def configured(params: Params, pico: ModelPreset, prepared: Path) -> Configured:
    """Makes a configuration with these options; all 40 images in batches of 16, 5 orders."""
    default = params.prune_eval.model_dump() | CASES["options"]

    def make(variant: Variant | None = None, misled: bool = False, **options: Any) -> EvalConfig:
        fields = run_fields(prepared, pico, variant or Variant(route="arbitrary"), precision="fp32")
        fields["misled"] = misled
        return EvalConfig(**fields, seed=0, options=PruneEval(**default | options))

    return make


@pytest.fixture
def evaluated(configured: Configured, prepared: Path, weights: Path, tmp_path: Path) -> Evaluated:
    """Evaluates under options; gives the rows of cells, by keep and order, and of samplers."""

    def run(**options: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
        evaluation.evaluate(configured(**options), prepared, weights, tmp_path, lambda event: None)
        rows = pd.read_csv(tmp_path / ROWS, dtype={"route": str})
        samplers = pd.read_csv(tmp_path / SAMPLER_ROWS)
        pd.testing.assert_frame_equal(rows, rows.round(6), check_exact=True)
        few_digits = samplers.round(6).round({"distance": 3, "length": 3})
        pd.testing.assert_frame_equal(samplers, few_digits, check_exact=True)
        return rows.set_index(["keep", "order"]).sort_index(kind="stable"), samplers

    return run


@pytest.fixture
def opened(prepared: Path, weights: Path) -> Opened:
    """Opens a configuration's model and its validation images."""

    def open_both(config: EvalConfig) -> tuple[RoutedModel, Split, Execution]:
        model, execution = open_model(config, prepared, weights)
        return model, open_split(config, prepared, "validation", model), execution

    return open_both


def test_mean_and_spread_have_rows_of_their_own(evaluated: Evaluated) -> None:
    """One pass with an order an image gives the mean, 5 orders on 10 images give the spread."""
    rows, _ = evaluated(images=10)
    cell = rows.loc[[(4, "arbitrary")]]
    assert cell["routes"].tolist() == [1] * 5 + [40]
    assert cell["images"].tolist() == [10] * 5 + [40]
    assert cell["route"].nunique() == 6
    assert rows.loc[[(4, "sequential")], ROUTE_KEYS].values.tolist() == [["0-1-2-3", 1, 40]]
    assert len(rows.loc[[(2, "sequential")]]) == 5 + 1  # 5 of the 6 there are
    all_six, _ = evaluated(images=10, orders=6)
    assert all_six.loc[[(2, "sequential")], "images"].tolist() == [40] * 6


@pytest.mark.parametrize(
    ("route", "steps", "name"),
    [("repeat_first", (0,) * 4, "0-0-0-0"), ("side_by_side", ((0, 1, 2, 3),), "0+1+2+3")],
)
def test_a_route_without_an_order_is_evaluated_alone(
    route: str,
    steps: Any,
    name: str,
    configured: Configured,
    evaluated: Evaluated,
    opened: Opened,
) -> None:
    """All layers, on all images; both orders are that route."""
    variant = Variant(route=route)
    rows, _ = evaluated(variant=variant, samplers=[], images=10)
    assert set(rows.index) == {(4, "sequential"), (4, "arbitrary")}
    assert rows[ROUTE_KEYS].values.tolist() == [[name, 1, 40]] * 2
    model, split, execution = opened(configured(variant))
    own = score(model, split, OneRoute(steps), 16, execution)
    assert rows["loss"].tolist() == [pytest.approx(own.loss, abs=1e-6)] * 2


@pytest.mark.parametrize(("num_layers", "keep", "spaced"), CASES["spaced"])
def test_layers_that_may_be_kept(num_layers: int, keep: int, spaced: list[int]) -> None:
    assert choose_layers(num_layers, keep, "spaced") == tuple(spaced)
    assert choose_layers(num_layers, keep, "first") == tuple(range(keep))
    assert choose_layers(num_layers, keep, "random") == tuple(range(num_layers))


@pytest.mark.parametrize("per", ["sample", "latin"])
def test_chosen_layers_are_those_kept(
    per: str, evaluated: Evaluated, scored: list[tuple[Any, Score]]
) -> None:
    """Three of four layers have 6 orders, of which 5 are rows; those of all images beside them."""
    rows, _ = evaluated(keep=[3], choose=["first", "spaced"], samplers=[], images=10, per=per)
    assert set(rows.loc[[(4, "arbitrary")], "choose"]) == {"all"}
    for choose, kept in (("first", [0, 1, 2]), ("spaced", [0, 2, 3])):
        own = rows[rows["choose"] == choose]
        (sequential,) = own.loc[[(3, "sequential")], "route"]
        assert sequential == "-".join(map(str, kept))
        *singles, _ = own.loc[[(3, "arbitrary")], "route"]
        assert len(set(singles)) == 5
        for route in singles:
            assert sorted(map(int, route.split("-"))) == kept
    mixed = [routes for routes, _ in scored if isinstance(routes, RouteTable | InTurn)]
    for routes, kept in zip(mixed, ([0, 1, 2], [0, 2, 3]), strict=False):
        assert (np.sort(routes.rows(40), axis=1) == kept).all()


def test_wrong_positions_are_told(
    params: Params, configured: Configured, prepared: Path, tmp_path: Path
) -> None:
    config = configured(params.variants["ls_pos"], misled=True)
    model, execution = open_model(config, prepared, None)
    before = [table.weight.clone() for table in model.position["encode"].embeddings]
    mislead(model)
    for table, right in zip(model.position["encode"].embeddings, before, strict=True):
        assert torch.equal(table.weight, right[[2, 3, 0, 1]])
    misled = cells(4, config.variant, config.options, misled=True)
    assert {cell.keep for cell in misled} == {4}
    for part in model.position.parameters():
        torch.nn.init.normal_(part)
    weights = tmp_path / "positions.safetensors"
    save_weights(model, weights)
    evaluation.evaluate(config, prepared, weights, tmp_path, lambda event: None)
    (written,) = pd.read_csv(tmp_path / ROWS).query("order == 'sequential'")["loss"]
    split = open_split(config, prepared, "validation", model)
    told_right = score(model, split, OneRoute((0, 1, 2, 3)), 16, execution).loss
    mislead(model)
    told_wrong = score(model, split, OneRoute((0, 1, 2, 3)), 16, execution).loss
    assert written == pytest.approx(told_wrong, abs=1e-6)
    assert written != pytest.approx(told_right, abs=1e-3)


@pytest.fixture
def regress(pico: ModelPreset, tmp_path: Path) -> Callable[..., dict[Any, Any]]:
    """Fits regressions on prepared data, one for each of these values; gives the row."""

    def run(data: Path, *values: float) -> dict[Any, Any]:
        fields = run_fields(data, pico, Variant(route="sequential"), precision="fp32")
        config = LogisticConfig(**fields, values=list(values))
        logistic.evaluate(config, data, None, tmp_path, lambda event: None)
        (row,) = pd.read_csv(tmp_path / ROWS).to_dict("records")
        return row

    return run


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_held_out_images_choose_the_regression(regress: Any, raw: Path, tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    prepare("bars", DatasetPreset(source="embedded", heldout=24), raw, prepared)
    row = regress(prepared, 1e-6, 0.1)
    train = logistic.read_pixels(prepared, "train")
    images, labels = logistic.read_pixels(prepared, "validation")
    assert 0 <= images.min() < images.max() <= 1
    heldout = logistic.read_pixels(prepared, "heldout")
    fitted = [LogisticRegression(C=value).fit(*train) for value in (1e-6, 0.1)]
    best = max(fitted, key=lambda regression: regression.score(*heldout))
    assert row["route"] == f"C = {best.C:g}"
    assert row["accuracy"] == pytest.approx(best.score(images, labels))
    assert (row["keep"], row["order"], row["images"]) == (0, "sequential", 40)
    first = logistic.choose_regression(train, None, [0.5, 0.1])
    assert first.C == 0.5


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_class_without_training_images_is_answered_wrongly(
    regress: Any, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its images count, and the regression never names it."""
    read = logistic.read_pixels

    def without_last(data: Path, split: str) -> logistic.Data:
        images, labels = read(data, split)
        kept = (labels < 9) | (split != "train")
        return images[kept], labels[kept]

    monkeypatch.setattr(logistic, "read_pixels", without_last)
    row = regress(prepared, 0.1)
    fitted = LogisticRegression(C=0.1).fit(*without_last(prepared, "train"))
    accuracy = fitted.score(*read(prepared, "validation"))
    assert row["accuracy"] == pytest.approx(accuracy)
    assert np.isfinite(row["loss"])


@pytest.mark.parametrize(("per", "batch_size", "names"), CASES["readings"])
def test_other_readings(
    per: str, batch_size: int, names: list[str] | None, evaluated: Evaluated
) -> None:
    """pass: every image under every order; batch, as published: one order a batch.

    All layers run on all images, however few those for pruned layers are.
    """
    rows, _ = evaluated(per=per, batch_size=batch_size, images=10)
    cell = rows.loc[[(4, "arbitrary")]]
    assert (cell["images"] == 40).all()
    if names:
        assert cell["route"].tolist() == names
        return
    assert len(cell) == (5 if per == "pass" else 1)
    for route in cell["route"]:
        assert sorted(route.split("-")) == ["0", "1", "2", "3"]


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Score]]:
    """Which routes were scored, and the scores. Latin ones give what their rows give by sample."""
    scores: list[tuple[Any, Score]] = []

    def spy(model: RoutedModel, split: Any, routes: Any, *others: Any) -> Score:
        result = score(model, split, routes, *others)
        if isinstance(routes, InTurn) and isinstance(routes.routes[0], Latin):
            alone = score(model, split, RouteTable(routes.rows(len(split))), *others)
            assert alone.loss == pytest.approx(result.loss, rel=1e-6)
            assert torch.equal(alone.correct, result.correct)
        scores.append((routes, result))
        return result

    monkeypatch.setattr(evaluation, "score", spy)
    return scores


def test_latin_routes(evaluated: Evaluated, scored: list[tuple[Any, Score]]) -> None:
    """Batches of 16, 16 and 8 images: three Latin squares of 4 routes for each number of layers.

    All other rows are as under `per: sample`.
    """
    latin, _ = evaluated(images=10, per="latin")
    squares = [pair for pair in scored if isinstance(pair[0], InTurn)]
    sample, _ = evaluated(images=10, per="sample")
    is_latin = (latin["route"] == "12 routes, Latin").to_numpy()
    rows = latin[is_latin]
    assert rows.index.tolist() == [(2, "arbitrary"), (4, "arbitrary")]
    assert rows[["routes", "images"]].values.tolist() == [[12, 40]] * 2
    for keep, (routes, result), row in zip((2, 4), squares, rows.itertuples(), strict=True):
        assert [np.shape(square.routes) for square in routes.routes] == [(4, keep)] * 3
        assert len(set(routes.routes)) == 3
        found = (row.accuracy, row.loss)
        assert found == pytest.approx((result.accuracy, result.loss), abs=1e-6)
    pd.testing.assert_frame_equal(latin[~is_latin], sample[~is_latin])
    assert (sample["route"] == "40 routes, one a sample").sum() == 3
    rest, _ = evaluated(images=10, per="latin", batch_size=19)  # the last two have one each
    assert rest.loc[[(4, "arbitrary")], "route"].tolist()[-1] == "10 routes, Latin"


def test_cells_with_few_routes_have_no_latin_ones(evaluated: Evaluated) -> None:
    """All 24 orders of 4 layers, and all ways to keep 2, are rows of their own."""
    latin, _ = evaluated(orders=24, per="latin")
    sample, _ = evaluated(orders=24, per="sample")
    pd.testing.assert_frame_equal(latin, sample)
    assert (latin["routes"] == 1).all()
    assert len(latin) == 6 + 12 + 1 + 24


def test_samplers_with_latin_routes(evaluated: Evaluated, scored: list[tuple[Any, Score]]) -> None:
    """Those that shuffle what they do not leave in place; all others run an order a sample."""
    samplers = [sampler for sampler, _ in CASES["latin samplers"]]
    _, latin = evaluated(samplers=samplers, images=10, per="latin")
    drawn = [routes for routes, _ in scored[-len(samplers) :]]
    for routes, (_, square) in zip(drawn, CASES["latin samplers"], strict=True):
        assert isinstance(routes, InTurn) == (square is not None)
        if square:
            found = [[len(latin.routes), latin.first, latin.last] for latin in routes.routes]
            assert found == [square] * 3
    _, sample = evaluated(samplers=samplers, images=10, per="sample")
    pd.testing.assert_frame_equal(latin[4:], sample[4:], check_exact=False, atol=2e-6, rtol=0)
    assert (latin["length"][:5] == 4).all()
    distances = latin.set_index("sampler")["distance"]
    assert distances["fix_first 4"] == 0
    assert 0 < distances["fix_first 2"] <= 1  # of the two last layers


def test_samplers_that_fit(evaluated: Evaluated) -> None:
    """Every one that the model is deep enough for; one of a single order equals that order."""
    rows, samplers = evaluated(samplers=CASES["samplers"])
    table = samplers.set_index("sampler")
    assert table["distance"][:-2].to_dict() == {"sequential": 0, "reversed": 6, "swap 3": 3}
    assert list(table.index[-2:]) == ["drop 0.5", "skip 1"]
    assert table.loc[["sequential", "skip 1"], "length"].tolist() == [4, 3]
    assert 1 < table.loc["drop 0.5", "length"] < 3
    alone = rows.loc[[(4, "sequential")], "accuracy"].item()
    assert table.loc["sequential", "accuracy"] == alone


def test_samplers_are_of_the_variants_asked_for(params: Params) -> None:
    options = params.prune_eval.model_copy(update={"variants": ["ls"], "logistic": []})
    assert options.of("ls") == options
    others = options.model_copy(update={"samplers": [], "choose": ["random"]})
    assert options.of("baseline") == others
    assert "variants" not in options.effective()  # a variant more evaluates no other one again


@torch.no_grad()
def test_a_score_has_the_means_of_every_answer(
    configured: Configured, opened: Opened, pico: ModelPreset
) -> None:
    _, split, execution = opened(configured())
    exits = ExitHeads(branch="mlp", depths=[1, 3], channels=4, hidden=4, dropout=0.0)
    model = build(pico, 10, Variant(route="sequential", exits=exits)).eval()
    route = (2, 0, 3)
    result = score(model, split, OneRoute(route), 16, execution)
    images, labels = split.take(slice(0, len(split)))
    means = {None: (result.loss, result.accuracy)} | result.exits
    for depth in (None, 1, 3):
        answers = model(images, route, exit=depth)
        loss, accuracy = means[depth]
        assert loss == pytest.approx(task_loss(answers, labels).item(), rel=1e-5)
        assert accuracy == is_right(answers, labels).double().mean().item()


def test_shards_are_not_resized_again(
    configured: Configured, prepared: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were when they were decoded; other images are as their data set asks."""
    asked = configured()
    meta = read_meta(prepared) | {"resize": "timm"}
    model, _ = open_model(asked, prepared, weights)
    plain = Resize(28, "bilinear", 28)
    for now, expected in ((meta, resizing(asked.model, "timm")), (meta | {"shards": []}, plain)):
        monkeypatch.setattr(scoring, "read_meta", lambda _, now=now: now)
        assert open_split(asked, prepared, "validation", model).resize == expected
    assert resizing(asked.model, "timm") != plain


@pytest.mark.parametrize("family", ["class token", "average pooling", "attention pooling"])
def test_a_contribution_is_that_to_what_is_classified(family: str) -> None:
    """How far a layer moves the class token or the mean of all tokens, for its samples."""
    model = RoutedModel(small(**FAMILIES[family]))
    before, after = torch.randn(2, 2, 7, 16)
    recording = Recording(model, 1, 3)
    recording(0, 2, before, after, torch.tensor([2, 0]))
    change = (after - before)[:, 0] if model.has_class_token else after.mean(1) - before.mean(1)
    expected = torch.zeros(3, 4)
    expected[[2, 0], 2] = change.norm(dim=1)
    assert torch.allclose(recording.norms, expected, atol=1e-6)


def test_a_score_is_the_mean_over_all_images(
    configured: Configured, prepared: Path, params: Params
) -> None:
    """Summed in double precision, and of a model that drops nothing, though it was trained."""
    named = params.variants["ls_pred"]
    assert named is not None
    config = configured(named.model_copy(update={"recipe": Recipe(drop_path=0.9)}))
    model, execution = open_model(config, prepared, None)
    split = open_split(config, prepared, "validation", model)
    route = (2, 0, 3, 1)
    found = score(model.train(), split, OneRoute(route), 16, execution)
    model.eval()
    images, labels = split.take(slice(0, 40))
    total = 0.0
    told = []
    for start in (0, 16, 32):
        batch = slice(start, start + 16)
        positions = PositionLogits(model)
        with torch.inference_mode():
            logits = model(images[batch], route, [positions])
            told.append(torch.stack(positions.logits).argmax(-1) == torch.arange(4)[:, None])
        total += cross_entropy(logits, labels[batch], reduction="sum").item()
        assert torch.equal(found.correct[batch], logits.argmax(-1) == labels[batch])
    assert found.loss == pytest.approx(total / 40, rel=1e-14)
    assert found.position_accuracy == pytest.approx(torch.cat(told, 1).double().mean().item())


def test_recording_drops_nothing(configured: Configured, opened: Opened) -> None:
    """Also of a model that was being trained."""
    dropping = Variant(route="arbitrary", recipe=Recipe(drop_path=0.9))
    model, split, execution = opened(configured(dropping))
    routes = np.tile(np.arange(4), (20, 1))
    records: list[Any] = []
    for _ in range(2):
        model.train()
        records.append(record(model, split, np.arange(20), routes, 1, execution))
    for first, second in zip(*records, strict=True):
        assert np.array_equal(first, second)


def test_an_analysis_keeps_what_its_figures_are_drawn_from(
    configured: Configured,
    opened: Opened,
    params: Params,
    prepared: Path,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The plane of the images drawn, where each layer ran in each one's order, what it added."""
    monkeypatch.setattr(analysis, "project", lambda vectors, options: vectors[:, :2])
    options = params.analysis.model_copy(update={"images": 40, "layer": 1})
    asked = configured()
    config = AnalysisConfig(
        **asked.model_dump(exclude={"seed", "options", "misled"}), options=options
    )
    analysis.analyse(config, prepared, weights, tmp_path, lambda event: None)
    arrays = np.load(tmp_path / ARRAYS)
    routes = np.array([arbitrary(generator("analysis", options.seed, i), 4) for i in range(40)])
    model, split, execution = opened(asked)
    chosen = generator("analysis", options.seed).permutation(40)
    vectors, norms = record(model, split, chosen, routes, 1, execution)
    assert np.array_equal(arrays["plane"], vectors[:, :2])
    assert np.array_equal(arrays["norms"], norms)
    assert np.array_equal(arrays["positions"], np.argsort(routes, axis=1))
    found = read_json(tmp_path / ANALYSIS_NUMBERS)
    positions = np.argsort(routes, axis=1)
    assert found == analysis.analysis_numbers(arrays["plane"], vectors, positions, norms, 1)


def test_more_images_than_there_are_cannot_be_analysed(
    configured: Configured, params: Params, prepared: Path, weights: Path, tmp_path: Path
) -> None:
    options = params.analysis.model_copy(update={"images": 41, "layer": 1})
    fields = configured().model_dump(exclude={"seed", "options", "misled"})
    with refused("analysis.images: found 41, accepted: at most the 40 validation images"):
        analysis.analyse(
            AnalysisConfig(**fields, options=options), prepared, weights, tmp_path, Mock()
        )


def test_jobs_beside_those_of_the_variants(keys: Keys, params: Params) -> None:
    """One regression for all seeds, and LS-pos once more, told wrong positions."""
    variants = len(params.all_variants)
    without = keys(Evaluations, "prune_eval", logistic=[])
    assert len(without) == (variants + 1) * len(params.seeds)
    with_regression = keys(Evaluations, "prune_eval", logistic=[0.1])
    assert without < with_regression
    assert len(with_regression) == len(without) + 1
