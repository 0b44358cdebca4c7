"""Figures show the numbers of the rows; a figure is drawn where its rows are."""

import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from lsvit.routes import ORDERS
from papers.layershuffle.diagrams import first_routes
from papers.layershuffle.figures import (
    draw,
    draw_disorder,
    draw_first_layers,
    draw_forms,
    draw_pruning,
    draw_pruning_of_all,
    draw_ridges,
    draw_training_curves,
    draw_umap,
)
from papers.layershuffle.labels import label
from pipeline.config.params import Params
from pipeline.config.sections import Finetune
from pipeline.report.evaluations import summarise
from pipeline.report.figures import Figures
from pipeline.training.loop import draw_route
from tests.papers.claim_suite import chosen, committed, made_up
from tests.papers.drawn import DrawnFigures, expect_lines
from tests.papers.layershuffle.conftest import VARIANTS


@pytest.fixture
def figures(params: Params, tmp_path: Path) -> DrawnFigures:
    return DrawnFigures(tmp_path, params, VARIANTS)


def sampler_rows(*names: str) -> pd.DataFrame:
    """The committed rows of these samplers."""
    rows = committed().table("samplers")
    return rows[chosen(rows, {"sampler": names})]


def by_variant(rows: pd.DataFrame, variants: Sequence[str]) -> dict[str, pd.DataFrame]:
    """The rows of the variants, by the label of each."""
    return {label(variant): rows[rows["variant"] == variant] for variant in variants}


@pytest.mark.parametrize("order", [*ORDERS, None])
def test_lines_of_layers_kept(order: str | None, rows: pd.DataFrame, figures: DrawnFigures) -> None:
    """The paper's figures have its own lines and the retrained models, the last all variants."""
    cells = summarise(rows)
    if order:
        draw_pruning(figures, cells, order, "pruning")
        variants = ["ls", "layerdrop", "refit-k"]
    else:
        draw_pruning_of_all(figures, cells)
        variants = VARIANTS[:5]
    seeds = rows.replace({"variant": {"refit_3": "refit-k"}})
    seeds = seeds.groupby(["variant", "order", "keep", "seed"], as_index=False)["accuracy"].mean()
    orders = [order] if order else ORDERS
    for panel, panel_order in zip(figures.drawn["pruning"].axes, orders, strict=True):
        lines = by_variant(seeds[seeds["order"] == panel_order], variants)
        expect_lines(panel, lines, "keep", "accuracy")


def test_lines_of_samplers(figures: DrawnFigures) -> None:
    exact = sampler_rows("fix_first 12", "swap 4", "swap 45", "reversed")
    first = sampler_rows("fix_first 0", "fix_first 6", "fix_first 12")
    samplers = pd.concat([exact, first, sampler_rows("fix_last 1")]).drop_duplicates()
    draw_disorder(figures, samplers, ["baseline", "ls"], 10)
    draw_first_layers(figures, samplers, 10)
    lines = by_variant(exact, ["baseline", "ls"])
    expect_lines(figures.drawn["distance"].axes[0], lines, "distance", "accuracy")
    first = first.assign(k=first["sampler"].str.split().str[1].astype(int))
    lines = by_variant(first, ["baseline", "ls", "layerdrop"])
    expect_lines(figures.drawn["first_layers"].axes[0], lines, "k", "accuracy")


def test_lines_of_trainings(figures: DrawnFigures) -> None:
    histories = {}
    for number, variant in enumerate(VARIANTS):
        history = pd.DataFrame({"seed": [0, 0, 1, 1], "epoch": [1, 2, 1, 2]})
        for order in ORDERS:
            history[f"validation/{order}/accuracy"] = [0.2, 0.4, 0.3, 0.1 * number]
        histories[variant] = history
    draw_training_curves(figures, histories)
    lines = {label(variant): history for variant, history in histories.items()}
    for panel, order in zip(figures.drawn["training_curves"].axes, ORDERS, strict=True):
        expect_lines(panel, lines, "epoch", f"validation/{order}/accuracy")


def test_points_of_what_an_order_is_drawn_for(rows: pd.DataFrame, figures: DrawnFigures) -> None:
    """Each seed is a point, left those of LS in both orders, right the positions of LS-pred."""
    full = rows[(rows["keep"] == 12) & rows["variant"].isin(["ls", "ls_pred"])]
    draw_forms(figures, rows, ["batch", "Latin"])
    left, right = figures.drawn["order_forms"].axes
    points = [line for line in left.lines if line.get_marker() == "o"]
    for line, order in zip(points, ORDERS, strict=True):
        own = full[(full["variant"] == "ls") & (full["order"] == order)]
        means = 100 * own.groupby("seed")["accuracy"].mean()
        assert np.asarray(line.get_ydata()).tolist() == pytest.approx(means.tolist())
        assert abs(np.asarray(line.get_xdata()) - 1).max() < 0.2
    (named,) = [line for line in right.lines if line.get_marker() == "o"]
    assert np.asarray(named.get_ydata()).tolist() == pytest.approx([60.0] * 5)


def test_points_and_means_of_the_analysis(figures: DrawnFigures) -> None:
    rng = np.random.default_rng(1)
    positions = np.argsort(rng.random((300, 4)), axis=1)
    norms = 1 + positions + rng.random((300, 4))
    arrays = {"plane": rng.random((300, 2)), "positions": positions, "norms": norms}
    draw_umap(figures, arrays, 2, "umap", "x")
    draw_ridges(figures, arrays, "ridges", "x")
    points: Any = figures.drawn["umap"].axes[0].collections[0]
    assert np.array_equal(points.get_offsets(), arrays["plane"])
    assert np.array_equal(points.get_array(), positions[:, 2] + 1)
    _, right = figures.drawn["ridges"].axes
    means = [line for line in right.lines if len(np.asarray(line.get_xdata())) == 4]
    for layer, line in enumerate(means):
        values = [norms[positions[:, layer] == place, layer].mean() for place in range(4)]
        heights = 0.8 * (values - np.min(values)) / np.ptp(values) - layer
        assert np.asarray(line.get_ydata()) == pytest.approx(heights)


@pytest.mark.parametrize(
    ("samplers", "drawn"),
    [((), set()), (("reversed",), {"Distance"}), (("fix_first 0",), {"First layers"})],
)
def test_a_figure_is_drawn_where_its_samplers_were_run(
    samplers: tuple[str, ...], drawn: set[str], params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Figures, "save", lambda self, figure, name: plt.close(figure))
    monkeypatch.setattr("papers.layershuffle.figures.draw_ridges", lambda *arguments: "")
    params = params.model_copy(update={"variants": {"ls": params.variants["ls"]}})
    rows = sampler_rows(*samplers)
    results = made_up({"samplers": rows[rows["variant"] != "layerdrop"]})
    history = pd.DataFrame({"seed": [0, 1], "epoch": [1, 1]})
    for order in ORDERS:
        history[f"validation/{order}/accuracy"] = [0, 1]
    results.tables |= {f"finetune/{variant}": history for variant in params.all_variants}
    numbers = np.random.default_rng(0).random((30, 12))
    arrays = {"positions": np.argsort(numbers, axis=1), "plane": numbers[:, :2]}
    monkeypatch.setattr("papers.layershuffle.figures.read_arrays", lambda file: arrays)
    captions = draw(results, params)
    assert captions.keys() & {"Distance", "First layers"} == drawn
    assert len(captions) == 11 + len(drawn)
    assert not re.search(r"\bnan\b|\b0 seeds", "".join(captions.values()))


@pytest.mark.parametrize(
    ("variant", "per"),
    [("ls", "latin"), ("ls", "sample"), ("ls", "batch"), ("layerdrop", "batch")],
)
def test_the_routes_shown_are_those_trained(variant: str, per: str, params: Params) -> None:
    """They are those of the first steps, or the first ones of the first step."""
    ls = params.variants["ls"].model_copy(update={"per": per})
    changed = params.model_copy(update={"variants": params.variants | {"ls": ls}})
    config: Any = SimpleNamespace(
        variant=changed.all_variants[variant],
        seed=3,
        per=changed.resolve(Finetune, variant).per,
        routes="shared",
        options=changed.resolve(Finetune, variant),
    )
    unit, shown = first_routes(changed, variant, 12, 3)
    drawn: Any = [draw_route(config, 12, 1, step) for step in range(len(shown))]
    if per == "batch":
        drawn = [routes.steps for routes in drawn]
    else:
        drawn = drawn[0].rows(config.options.batch_size)[: len(shown)]
    assert [list(map(int, route)) for route in drawn] == shown
    assert unit == {"latin": "group of the batch", "sample": "image", "batch": "step"}[per]
