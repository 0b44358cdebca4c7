"""Diagrams of routes: the paper's figures 1a, 2 and 3, and the first routes of trainings."""

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from lsvit.routes import ENDED, generator
from papers.layershuffle.labels import label
from pipeline.config.params import Params
from pipeline.config.samplers import draw_routes
from pipeline.config.sections import Finetune
from pipeline.config.variant import Position
from pipeline.report.captions import read_captions
from pipeline.report.figures import Figures, colours_by_depth

CAPTIONS = read_captions(__file__)
APPROACHES = {
    "baseline": "baseline",
    "ls": "LayerShuffle",
    "ls_pos": "LayerShuffle-position",
    "ls_pred": "LayerShuffle-predict",
}
WITH_ROUTES = ("baseline", "ls", "layerdrop")
ROUTES_SHOWN = 6
DARK = 0.6  # share of the layers whose colour needs white letters
WIDTH = 0.72  # of a layer, where the next one begins at 1
HEIGHT = 0.62
MIDDLE = HEIGHT / 2


def draw_approaches(figures: Figures, params: Params, num_layers: int) -> str:
    """Draw the first route of each approach's training, a row an approach. Returns the caption."""
    shown = {name: title for name, title in APPROACHES.items() if name in params.all_variants}
    seed = params.seeds[0]
    figure, axes = figures.panels(0.28 * len(shown), nrows=len(shown))
    for axis, (variant, title) in zip(axes[:, 0], shown.items(), strict=True):
        _, routes = first_routes(params, variant, num_layers, seed)
        _draw_route(axis, routes[0], num_layers, params.all_variants[variant].position)
        axis.set_title(title)
    figures.save(figure, "approaches")
    return CAPTIONS["approaches"].format(
        seed=seed,
        told=CAPTIONS["approaches_told"] if "ls_pos" in shown else "",
        named=CAPTIONS["approaches_named"] if "ls_pred" in shown else "",
    )


def draw_first_routes(figures: Figures, params: Params, num_layers: int) -> str:
    """Draw which layer runs at which depth in the first steps of trainings. Returns the caption."""
    shown = [variant for variant in WITH_ROUTES if variant in params.all_variants]
    seed = params.seeds[0]
    figure, axes = figures.panels(0.62 * len(shown), nrows=len(shown), sharex=True)
    for axis, variant in zip(axes[:, 0], shown, strict=True):
        unit, routes = first_routes(params, variant, num_layers, seed)
        for row, route in enumerate(routes):
            for depth, layer in enumerate(route):
                centre = (depth + 0.47, row + 0.48)
                _draw_layer(axis, layer, num_layers, (depth, row), (0.94, 0.9), centre, 5.5)
        axis.set(
            xlim=(0, num_layers),
            ylim=(len(routes), 0),
            xticks=[],
            yticks=[0.45, len(routes) - 0.55],
            yticklabels=[1, len(routes)],
            title=label(variant),
            ylabel=unit,
        )
        axis.spines[:].set_visible(False)
    axes[-1, 0].set(xlabel="depth: input on the left, head on the right")
    figures.save(figure, "routes")
    return CAPTIONS["routes"].format(seed=seed)


def first_routes(
    params: Params, variant: str, num_layers: int, seed: int
) -> tuple[str, list[list[int]]]:
    """Draw the first routes of a training as the training loop does.

    Returns:
        What each route is for (a step, an image or a group of the batch), and the routes.
    """
    route = params.all_variants[variant].route
    options = params.resolve(Finetune, variant)
    steps, samples = (ROUTES_SHOWN, 1) if options.per == "batch" else (1, options.batch_size)
    routes = []
    for step in range(steps):
        rng = generator("train", seed, 1, step)
        drawn = draw_routes(route, options.per, rng, num_layers, options.batch_size)
        routes += [row[row != ENDED].tolist() for row in drawn.rows(samples)]
    if options.per == "latin":  # the groups' routes come again and again
        routes = [list(route) for route in dict.fromkeys(map(tuple, routes))]
    titles = {"batch": "step", "sample": "image", "latin": "group of the batch"}
    return titles[options.per], routes[:ROUTES_SHOWN]


def _draw_route(axis: Axes, route: list[int], num_layers: int, position: Position) -> None:
    """Draw a route from the embedding to the head.

    An arrow from below: the layers are told their position. An arrow upwards: they name it.
    """
    for depth, layer in enumerate(route):
        centre = depth + WIDTH / 2
        _draw_layer(
            axis, layer, num_layers, (depth, 0), (WIDTH, HEIGHT), (centre, MIDDLE), fontsize=6
        )
        _draw_arrow(axis, (depth - 1 + WIDTH, MIDDLE), (depth, MIDDLE))
        if position.encode:
            _draw_text(axis, centre, -0.72, depth + 1)
            _draw_arrow(axis, (centre, -0.5), (centre, 0))
        if position.predict:
            _draw_text(axis, centre, HEIGHT + 0.72, depth + 1)
            _draw_arrow(axis, (centre, HEIGHT), (centre, HEIGHT + 0.5))
    end = len(route)
    _draw_arrow(axis, (end - 1 + WIDTH, MIDDLE), (end, MIDDLE))
    axis.text(WIDTH - 1.05, MIDDLE, "patches", ha="right", va="center", fontsize=6)
    axis.text(end + 0.05, MIDDLE, "class", ha="left", va="center", fontsize=6)
    below = -0.95 if position.encode else -0.15
    above = 0.95 if position.predict else 0.15
    axis.set(xlim=(-1.9, end + 1.4), ylim=(below, HEIGHT + above))
    axis.axis("off")


def _draw_layer(
    axis: Axes,
    layer: int,
    num_layers: int,
    corner: tuple[float, float],
    size: tuple[float, float],
    centre: tuple[float, float],
    fontsize: float,
) -> None:
    """Draw a box in the layer's colour with its number, counted from 1."""
    colour = colours_by_depth(num_layers)[layer]
    axis.add_patch(Rectangle(corner, *size, facecolor=colour, linewidth=0))
    letters = "white" if layer < num_layers * DARK else "black"
    _draw_text(axis, *centre, layer + 1, fontsize, letters)


def _draw_text(
    axis: Axes, x: float, y: float, number: int, fontsize: float = 5.5, colour: str = "black"
) -> None:
    axis.text(x, y, str(number), ha="center", va="center", fontsize=fontsize, color=colour)


def _draw_arrow(axis: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axis.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=4,
            linewidth=0.5,
            color="#555555",
            shrinkA=0,
            shrinkB=0,
        )
    )
