"""The figures of LayerShuffle and of its controls, from the pipeline's result files."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import gaussian_kde

from lsvit.routes import ORDERS
from papers.layershuffle.charts import with_first_layers
from papers.layershuffle.diagrams import draw_approaches, draw_first_routes
from papers.layershuffle.labels import CONTROLS, label
from papers.layershuffle.pruning import ACCURACY, draw_pruning, draw_pruning_of_all, place_beside
from papers.layershuffle.section import Analysis
from pipeline.config.params import Params
from pipeline.config.variant import PRETRAINED
from pipeline.jobs.rows import seed_means
from pipeline.report.captions import counted, describe_rows, read_captions
from pipeline.report.evaluations import summarise
from pipeline.report.figures import (
    GREY,
    OKABE_ITO,
    Figures,
    Look,
    colours_by_depth,
    draw_chance,
    draw_lines,
)
from pipeline.report.results import Results, read_arrays

CAPTIONS = read_captions(__file__)
REFITS = (("#BBBBBB", "*"), ("#999999", "X"), (GREY, "p"), ("#444444", "d"))  # colour, marker
FORMS = {"batch": "ls", "sample": "ls_sample", "Latin": "ls_latin"}  # LS by what an order is for
ANALYSED = Path("outs/analysis")
AGAINST_DISORDER = ("baseline", "layerdrop", "ls")
ROW = 0.75  # of figures 4c and 4d: the share of a layer's mean that is as high as a row
WIDEST = 2.5  # of them: the largest norm shown, in means of the layer


def _refit_look(variant: str, place: int) -> Look:
    shade, marker = REFITS[place % len(REFITS)]
    return {"color": shade, "marker": marker, "linestyle": ":", "label": label(variant)}


def draw_disorder(
    figures: Figures, samplers: pd.DataFrame, variants: list[str], chance: float
) -> str:
    """Draw accuracy against the Kendall tau distance from the original order.

    Args:
        figures: saves the figure.
        samplers: samplers.csv.
        variants: a line each.
        chance: accuracy in % of guessing.

    Returns:
        The caption.
    """
    depth = int(samplers["length"].max())
    most = math.comb(depth, 2)
    exact = samplers["sampler"].str.fullmatch(f"reversed|swap .*|fix_first {depth}")
    rows = samplers[exact & samplers["variant"].isin(variants)]
    figure, [[axis]] = figures.panels(0.78)
    draw_lines(axis, rows, "distance", "accuracy", "variant", figures.looks(variants), capsize=2)
    axis.set(
        xlabel="Kendall tau distance from the original order\n(swaps of neighbours)",
        ylabel=ACCURACY,
        ylim=(0, 100),
    )

    def to_tau(distance: Any) -> Any:
        return 1 - 2 * distance / most

    def to_distance(tau: Any) -> Any:
        return (1 - tau) * most / 2

    above = axis.secondary_xaxis("top", functions=(to_tau, to_distance))
    above.set(xlabel="Kendall's tau", xticks=[1, 0.5, 0, -0.5, -1])
    draw_chance(axis, chance)
    figures.finish(figure, "distance")
    return CAPTIONS["disorder"].format(swaps=most, **describe_rows(rows))


def draw_first_layers(figures: Figures, samplers: pd.DataFrame, chance: float) -> str:
    """Draw the control: accuracy with the first k layers in place and the others shuffled.

    Args:
        figures: saves the figure.
        samplers: samplers.csv.
        chance: accuracy in % of guessing.

    Returns:
        The caption.
    """
    rows = with_first_layers(samplers)
    variants = dict.fromkeys(rows["variant"])
    looks = figures.looks(variants)
    refits = [variant for variant in variants if variant not in looks]
    looks |= {variant: _refit_look(variant, place) for place, variant in enumerate(refits)}
    figure, [[axis]] = figures.panels(0.78)
    draw_lines(axis, rows, "layers", "accuracy", "variant", looks, capsize=2)
    axis.set(
        xlabel="first layers kept in place, the rest shuffled",
        ylabel=ACCURACY,
        ylim=(0, 100),
        xticks=sorted(rows["layers"].unique()),
    )
    draw_chance(axis, chance)
    axis.legend(
        ncols=2, loc="lower right", bbox_to_anchor=(1, 0.16), columnspacing=1, handlelength=1.6
    )
    figures.finish(figure, "first_layers", handles={})
    return CAPTIONS["first_layers"].format(**describe_rows(rows))


def draw_umap(
    figures: Figures,
    arrays: dict[str, np.ndarray],
    layer: int,
    name: str,
    title: str,
    numbers: dict[str, Any],
    seed: int,
) -> str:
    """Draw figure 4a or 4b: a layer's whole output in the plane, coloured by its position.

    Args:
        figures: saves the figure.
        arrays: `plane` (n, 2) and `positions` (n, L) of the analysis.
        layer: counted from 0.
        name: of the files.
        title: names the model.
        numbers: of analysis.json, of this model.
        seed: of `arrays`.

    Returns:
        The caption.
    """
    plane = arrays["plane"]
    positions = arrays["positions"]
    figure, [[axis]] = figures.panels(0.85)
    points = axis.scatter(
        *plane.T,
        c=positions[:, layer] + 1,
        cmap="viridis",
        s=5,
        linewidths=0,
        vmin=1,
        vmax=positions.shape[1],
    )
    told = f"R² = {numbers['position_r2']['seeds'][str(seed)]:.2f}"
    axis.set(
        title=f"{title}, layer {layer + 1}: {told}",
        xlabel="UMAP 1",
        ylabel="UMAP 2",
        xticks=[],
        yticks=[],
    )
    figure.colorbar(points, label="position of the layer", shrink=0.9)
    figures.save(figure, name)
    return CAPTIONS["umap"].format(
        layer=layer + 1,
        title=title,
        images=len(plane),
        plane=told,
        planes=_describe_models(numbers["position_r2"]),
        whole=_describe_models(numbers["position_r2_whole"]),
    )


def _describe_models(number: dict[str, Any]) -> str:
    """An R² over the models, in words."""
    text = f"R² = {number['mean']:.2f}"
    if number["std"] is not None:
        text += f" ± {number['std']:.2f}"
    return f"{text} (n = {number['n']})"


def draw_ridges(figures: Figures, arrays: dict[str, np.ndarray], name: str, title: str) -> str:
    """Draw figure 4c or 4d: class-token contribution norms by layer and position.

    Args:
        figures: saves the figure.
        arrays: `positions` (n, L) and `norms` (n, L) of the analysis.
        name: of the files.
        title: names the model.

    Returns:
        The caption.
    """
    positions = arrays["positions"]
    norms = arrays["norms"] / arrays["norms"].mean(axis=0)
    num_layers = norms.shape[1]
    places = np.arange(1, num_layers + 1)
    grid = np.linspace(0, WIDEST, 250)
    figure, [[left, right]] = figures.panels(1.3, ncols=2, width_ratios=[3, 2], sharey=True)
    left.set_prop_cycle(color=colours_by_depth(num_layers))
    for layer in range(num_layers):
        by_position = [norms[positions[:, layer] == p, layer] for p in range(num_layers)]
        curves = np.stack([_estimate_density(values, grid) for values in by_position])
        curves *= 0.95 / max(curves.max(), 1e-9)
        left.plot(grid, curves.T - layer, linewidth=0.7)
        means = np.array([values.mean() for values in by_position])
        errors = np.array([_standard_error(values) for values in by_position])
        heights = (means - 1) / ROW - layer
        band = 1.96 * errors / ROW
        right.axhline(-layer, color=GREY, linewidth=0.4)
        right.fill_between(places, heights - band, heights + band, color=GREY, alpha=0.3, lw=0)
        points = right.scatter(places, heights, c=places, cmap="viridis", s=6, zorder=3)
        right.plot(
            layer + 1, heights[layer], "o", markersize=6, markerfacecolor="none", color=OKABE_ITO[4]
        )
    left.set(
        title="distributions",
        xlabel="norm of the contribution\n(the layer's mean is 1)",
        ylabel="layer (original place)",
        xlim=(0, WIDEST),
        yticks=-np.arange(num_layers),
        yticklabels=places,
    )
    right.set(
        title=f"means (a row: {100 * ROW:.0f} %)",
        xlabel="position of the layer\n(\N{WHITE CIRCLE} its original place)",
        xlim=(0, num_layers + 1),
    )
    figure.colorbar(
        points, ax=[left, right], label="position of the layer", location="bottom", aspect=40
    )
    figure.suptitle(title, fontsize=8)
    figures.save(figure, name)
    return CAPTIONS["ridges"].format(title=title, images=len(norms), row=100 * ROW)


def _standard_error(values: np.ndarray) -> float:
    """The standard error of a mean; 0 for a single value."""
    return values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _estimate_density(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """A smooth density on the grid; zero if there are too few values to estimate one."""
    if len(values) < 3 or values.std() < 1e-6:
        return np.zeros_like(grid)
    return gaussian_kde(values)(grid)


def draw_training_curves(
    figures: Figures, histories: dict[str, pd.DataFrame], chance: float
) -> str:
    """Draw validation accuracy per epoch in both orders, by variant. Returns the caption."""
    looks = {}
    frames = []
    for place, (variant, history) in enumerate(histories.items()):
        looks[variant] = figures.variant_looks.get(variant) or _refit_look(variant, place)
        beside = 0.4 / len(histories) * place_beside(place, len(histories))
        frames.append(history.assign(variant=variant, epoch=history["epoch"] + beside))
    rows = pd.concat(frames)
    figure, axes = figures.panels(1.35, nrows=2, sharex=True)
    for axis, order in zip(axes[:, 0], ORDERS, strict=True):
        column = f"validation/{order}/accuracy"
        draw_lines(axis, rows, "epoch", column, "variant", looks, capsize=1.5)
        axis.set(ylabel=f"accuracy (%),\n{order}", ylim=(0, 100))
        axis.xaxis.get_major_locator().set_params(integer=True)
        draw_chance(axis, chance)
    axes[1, 0].set(xlabel="epoch")
    figures.finish(figure, "training_curves")
    return CAPTIONS["training_curves"].format(seeds=counted(rows["seed"].nunique(), "seed"))


def draw_forms(figures: Figures, rows: pd.DataFrame, forms: list[str]) -> str:
    """Draw accuracy of LS by what an order was drawn for.

    Args:
        figures: saves the figure.
        rows: prune_eval.csv.
        forms: keys of FORMS.

    Returns:
        The caption.
    """
    means = 100 * seed_means(rows)
    figure, [[axis]] = figures.panels(0.75)
    for place, form in enumerate(forms):
        for order, side, colour in zip(ORDERS, (-0.12, 0.12), OKABE_ITO[::4], strict=False):
            values = means.loc[FORMS[form]][order]
            points = np.full(len(values), place + side)
            axis.plot(points, values, "o", color=colour, markersize=2.5, alpha=0.6)
            look: Look = {"color": colour, "label": f"{order} order", "marker": "_", "capsize": 2}
            axis.errorbar(place + side + 0.08, values.mean(), values.std(), **look)
    axis.set(
        xlabel="LS: an order is drawn for",
        ylabel=ACCURACY,
        xlim=(-0.5, len(forms) - 0.5),
        xticks=range(len(forms)),
        xticklabels=forms,
    )
    figures.finish(figure, "order_forms")
    return CAPTIONS["forms"].format(seeds=counted(len(values), "seed"))


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw the paper's figures, the controls and the training curves. Returns captions by title."""
    figures = Figures.of(results, params)
    rows = results.table("prune_eval")
    cells = summarise(rows)
    num_layers = int(cells["keep"].max())
    captions = {
        "Figure 1b": draw_pruning(figures, cells, "sequential", "figure_1b", results.chance),
        "Figure 1c": draw_pruning(figures, cells, "arbitrary", "figure_1c", results.chance),
        "Layers kept, every variant": draw_pruning_of_all(figures, cells, results.chance),
        "Approaches": draw_approaches(figures, params, num_layers),
        "Routes": draw_first_routes(figures, params, num_layers),
    }
    analysis = results.read("analysis")
    variant = params.resolve(Analysis).variants[0]
    for (plane, norms), model, seed, title in (
        ("ac", PRETRAINED, params.starts[0], "starting weights"),
        ("bd", variant, params.seeds[0], f"refined with {label(variant)}"),
    ):
        arrays = read_arrays(ANALYSED / f"{model}_seed_{seed}.npz")
        numbers = analysis["models"][model]
        captions[f"Figure 4{plane}"] = draw_umap(
            figures, arrays, analysis["layer"], f"figure_4{plane}", title, numbers, seed
        )
        captions[f"Figure 4{norms}"] = draw_ridges(figures, arrays, f"figure_4{norms}", title)
    captions |= draw_controls(figures, results, params)
    histories = {}
    for variant in params.all_variants:
        if variant not in CONTROLS:
            histories[variant] = results.table(f"finetune/{variant}")
    captions["Training curves"] = draw_training_curves(figures, histories, results.chance)
    return captions


def draw_controls(figures: Figures, results: Results, params: Params) -> dict[str, str]:
    """Draw the controls whose samplers or variants were evaluated. Returns captions by title."""
    captions = {}
    samplers = results.table("samplers")
    if len(samplers):  # `prune_eval.samplers` may be empty
        kinds = set(samplers["sampler"].str.split(" ").str[0])
        if kinds & {"swap", "reversed"}:
            shown = [variant for variant in AGAINST_DISORDER if variant in params.all_variants]
            captions["Distance"] = draw_disorder(figures, samplers, shown, results.chance)
        if "fix_first" in kinds:
            captions["First layers"] = draw_first_layers(figures, samplers, results.chance)
    forms = [form for form, variant in FORMS.items() if variant in params.all_variants]
    if len(forms) > 1:
        rows = results.table("prune_eval")
        captions["Forms of routes"] = draw_forms(figures, rows, forms)
    return captions
