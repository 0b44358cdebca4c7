"""Figures show the numbers of the rows; a figure is drawn where its rows are."""

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.collections import PathCollection
from matplotlib.container import ErrorbarContainer

from lsvit.routes import ORDERS
from papers.layershuffle.diagrams import first_routes
from papers.layershuffle.figures import (
    ROW,
    draw,
    draw_controls,
    draw_disorder,
    draw_first_layers,
    draw_forms,
    draw_ridges,
    draw_training_curves,
    draw_umap,
)
from papers.layershuffle.labels import label
from papers.layershuffle.pruning import draw_pruning, draw_pruning_of_all
from pipeline.config.params import Params
from pipeline.config.sections import Finetune
from pipeline.report.evaluations import summarise
from pipeline.report.figures import Figures
from pipeline.training.loop import draw_route
from tests.papers.claim_suite import chosen, committed, made_up
from tests.papers.conftest import VARIANTS
from tests.papers.drawn import DrawnFigures, expect_lines


def sampler_rows(*names: str) -> pd.DataFrame:
    """The committed rows of these samplers."""
    rows = committed().table("samplers")
    return rows[chosen(rows, {"sampler": names})]


def by_variant(rows: pd.DataFrame, variants: Sequence[str]) -> dict[str, pd.DataFrame]:
    """The rows of the variants, by the label of each."""
    return {label(variant): rows[rows["variant"] == variant] for variant in variants}


@pytest.mark.parametrize("order", [*ORDERS, None])
def test_lines_of_layers_kept(order: str | None, rows: pd.DataFrame, figures: DrawnFigures) -> None:
    """The paper's figures have its own lines and the retrained models, the last all variants.

    With all layers a retrained model is the baseline.
    """
    rows["choose"] = np.where(rows["keep"] == 12, "all", "random")
    rows.loc[rows["variant"] == "refit_3", "choose"] = "all"
    cells = summarise(rows)
    if order:
        draw_pruning(figures, cells, order, "pruning", 10)
        variants = ["ls", "layerdrop", "refit-k"]
    else:
        draw_pruning_of_all(figures, cells, 10)
        variants = VARIANTS[:5]
    whole = rows[(rows["variant"] == "baseline") & (rows["keep"] == 12)]
    seeds = pd.concat([rows, whole.assign(variant="refit_3")])
    seeds = seeds.replace({"variant": {"refit_3": "refit-k"}})
    seeds = seeds.groupby(["variant", "order", "keep", "seed"], as_index=False)["accuracy"].mean()
    orders = [order] if order else ORDERS
    for panel, panel_order in zip(figures.drawn["pruning"].axes, orders, strict=True):
        lines = by_variant(seeds[seeds["order"] == panel_order], variants)
        expect_lines(panel, lines, "keep", "accuracy", apart=0 if order else 0.5)


def test_choices_of_layers_are_drawn_apart(rows: pd.DataFrame, figures: DrawnFigures) -> None:
    """Each with its own style; all end at the accuracy with all layers."""
    kept = rows["keep"] < 12
    frames = [rows[~kept].assign(choose="all")]
    for choose, more in (("random", 0), ("first", 0.1), ("spaced", 0.2)):
        chosen = rows[kept].assign(choose=choose)
        chosen["accuracy"] += more
        frames.append(chosen)
    draw_pruning(figures, summarise(pd.concat(frames)), "sequential", "pruning", 10)
    heights = {}
    for bars in figures.drawn["pruning"].axes[0].containers:
        assert isinstance(bars, ErrorbarContainer)
        middle = bars.lines[0]
        if bars.get_label() == "LS":
            heights[middle.get_linestyle()] = np.asarray(middle.get_ydata())
    assert list(heights) == ["-", "--", ":"]
    assert heights["--"] - heights["-"] == pytest.approx([10, 10, 0])
    assert heights[":"] - heights["-"] == pytest.approx([20, 20, 0])


def test_lines_of_samplers(figures: DrawnFigures) -> None:
    exact = sampler_rows("fix_first 12", "swap 4", "swap 45", "reversed")
    first = sampler_rows("fix_first 0", "fix_first 6", "fix_first 12")
    samplers = pd.concat([exact, first, sampler_rows("fix_last 1")]).drop_duplicates()
    draw_disorder(figures, samplers, ["baseline", "ls"], 10)
    draw_first_layers(figures, samplers, 10)
    lines = by_variant(exact, ["baseline", "ls"])
    expect_lines(figures.drawn["distance"].axes[0], lines, "distance", "accuracy")
    first = first.assign(k=first["sampler"].str.split().str[1].astype(int))
    lines = by_variant(first, list(dict.fromkeys(first["variant"])))
    expect_lines(figures.drawn["first_layers"].axes[0], lines, "k", "accuracy")


def test_lines_of_trainings(figures: DrawnFigures) -> None:
    histories = {}
    for number, variant in enumerate(VARIANTS):
        history = pd.DataFrame({"seed": [0, 0, 1, 1], "epoch": [1, 2, 1, 2]})
        for order in ORDERS:
            history[f"validation/{order}/accuracy"] = [0.2, 0.4, 0.3, 0.1 * number]
        histories[variant] = history
    draw_training_curves(figures, histories, 10)
    lines = {label(variant): history for variant, history in histories.items()}
    for panel, order in zip(figures.drawn["training_curves"].axes, ORDERS, strict=True):
        expect_lines(panel, lines, "epoch", f"validation/{order}/accuracy", apart=0.25)


def test_points_of_what_an_order_is_drawn_for(rows: pd.DataFrame, figures: DrawnFigures) -> None:
    """Each seed is a point, in both orders."""
    latin = rows[rows["variant"] == "ls"].assign(variant="ls_latin")
    latin["accuracy"] += 0.1
    rows = pd.concat([rows, latin])
    draw_forms(figures, rows, ["batch", "Latin"])
    (axis,) = figures.drawn["order_forms"].axes
    points = [line for line in axis.lines if line.get_marker() == "o"]
    full = rows[rows["keep"] == 12]
    places = [(name, order) for name in ("ls", "ls_latin") for order in ORDERS]
    for line, (name, order) in zip(points, places, strict=True):
        own = full[(full["variant"] == name) & (full["order"] == order)]
        means = 100 * own.groupby("seed")["accuracy"].mean()
        assert np.asarray(line.get_ydata()).tolist() == pytest.approx(means.tolist())
        assert abs(np.asarray(line.get_xdata()) - (name == "ls_latin")).max() < 0.2


def test_points_and_means_of_the_analysis(figures: DrawnFigures) -> None:
    rng = np.random.default_rng(1)
    positions = np.argsort(rng.random((300, 4)), axis=1)
    norms = 1 + positions + rng.random((300, 4))
    arrays = {"plane": rng.random((300, 2)), "positions": positions, "norms": norms}
    number = {"mean": 0.3, "std": None, "n": 1, "seeds": {"4": 0.3}}
    numbers = {"position_r2": number, "position_r2_whole": number | {"mean": 0.6}}
    caption = draw_umap(figures, arrays, 2, "umap", "x", numbers, 4)
    assert "R² = 0.30" in figures.drawn["umap"].axes[0].get_title()
    assert "whole outputs tells it with R² = 0.60 (n = 1)" in caption
    draw_ridges(figures, arrays, "ridges", "x")
    points: Any = figures.drawn["umap"].axes[0].collections[0]
    assert np.array_equal(points.get_offsets(), arrays["plane"])
    assert np.array_equal(points.get_array(), positions[:, 2] + 1)
    right = figures.drawn["ridges"].axes[1]
    drawn: Any = [each for each in right.collections if isinstance(each, PathCollection)]
    for layer, means in enumerate(drawn):
        values = [norms[positions[:, layer] == place, layer].mean() for place in range(4)]
        heights = (values / norms[:, layer].mean() - 1) / ROW - layer
        assert np.asarray(means.get_offsets())[:, 1] == pytest.approx(heights)
    assert len(drawn) == 4


def test_a_figure_is_drawn_where_its_samplers_were_run(
    params: Params, figures: DrawnFigures, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = params.model_copy(update={"variants": {"ls": params.variants["ls"]}})
    evaluated = committed().table("prune_eval").assign(choose="random")
    evaluated.loc[evaluated["keep"] == 12, "choose"] = "all"
    results = made_up({"prune_eval": evaluated})
    for sampler, drawn in (
        ("none", ()),
        ("fix_first 0", ("First layers",)),
        ("swap 4", ("Distance",)),
        ("reversed", ("Distance",)),
    ):
        rows = sampler_rows(sampler)
        results.tables["samplers"] = rows[rows["variant"] != "layerdrop"]
        assert tuple(draw_controls(figures, results, params)) == drawn
    history = pd.DataFrame({"seed": [0, 1], "epoch": [1, 1]})
    for order in ORDERS:
        history[f"validation/{order}/accuracy"] = [0, 1]
    results.tables |= {f"finetune/{variant}": history for variant in params.all_variants}
    monkeypatch.setattr(Figures, "save", lambda self, figure, name: plt.close(figure))
    for name in ("read_arrays", "draw_umap", "draw_ridges"):
        monkeypatch.setattr(f"papers.layershuffle.figures.{name}", lambda *arguments: "")
    captions = draw(results, params)
    assert len(captions) == 10 + len(drawn)
    assert not re.search(r"\bnan\b|\b0 seeds", "".join(captions.values()))


@pytest.mark.parametrize(
    ("variant", "per"),
    [("ls", "latin"), ("ls", "sample"), ("ls", "batch"), ("layerdrop", "batch")],
)
def test_the_routes_shown_are_those_trained(variant: str, per: str, params: Params) -> None:
    """They are those of the first steps, or the first ones of the first step."""
    ls = params.all_variants["ls"].model_copy(update={"per": per})
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
