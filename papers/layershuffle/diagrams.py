"""The paper's figures 1a, 2 and 3, drawn from a route of a run: what layers are given and asked in each approach."""

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from lsvit.routes import ENDED, generator
from pipeline.config.params import Params
from pipeline.config.samplers import draw_routes
from pipeline.config.sections import Finetune
from pipeline.report.evaluations import label
from pipeline.report.figures import Figures, colours_by_depth

SHOWN = {
    "baseline": "baseline",
    "ls": "LayerShuffle",
    "ls_pos": "LayerShuffle-position",
    "ls_pred": "LayerShuffle-predict",
}
ROUTES_SHOWN = 6
DARK = 0.6  # share of the layers whose colour needs white letters
WIDTH, HEIGHT, STEP = 0.72, 0.62, 1.0


def approaches(figures: Figures, params: Params, num_layers: int, name: str) -> str:
    """A row an approach, along the first route that its training drew. Returns the caption."""
    shown = {variant: title for variant, title in SHOWN.items() if variant in params.all_variants}
    figure, axes = figures._figure(0.28 * len(shown), nrows=len(shown))
    for axis, (variant, title) in zip(axes[:, 0], shown.items(), strict=True):
        _, routes = first_routes(params, variant, num_layers, params.seeds[0])
        position = params.all_variants[variant].position
        _row(axis, routes[0], num_layers, position.encode is not None, position.predict is not None)
        axis.set_title(title)
    figures._save(figure, name)
    told = f" {label('ls_pos')}: below a layer the place in the route that it is told."
    named = f" {label('ls_pred')}: above a layer the place that it has to name."
    return (
        f"The approaches of the paper's figures 1a, 2 and 3, along the first route that each training drew with seed {params.seeds[0]}: "
        f"layers by original place.{told if 'ls_pos' in shown else ''}{named if 'ls_pred' in shown else ''}"
    )


def _row(axis: Axes, route: list[int], num_layers: int, told: bool, asked: bool) -> None:
    """A route from the embedding to the head."""
    colours = colours_by_depth(num_layers)
    for depth, layer in enumerate(route):
        left = depth * STEP
        axis.add_patch(Rectangle((left, 0), WIDTH, HEIGHT, facecolor=colours[layer], linewidth=0))
        axis.text(
            left + WIDTH / 2,
            HEIGHT / 2,
            str(layer + 1),
            ha="center",
            va="center",
            fontsize=6,
            color="white" if layer < num_layers * DARK else "black",
        )
        _arrow(axis, (left - STEP + WIDTH, HEIGHT / 2), (left, HEIGHT / 2))
        if told:
            axis.text(
                left + WIDTH / 2, -0.72, str(depth + 1), ha="center", va="center", fontsize=5.5
            )
            _arrow(axis, (left + WIDTH / 2, -0.5), (left + WIDTH / 2, 0))
        if asked:
            axis.text(
                left + WIDTH / 2,
                HEIGHT + 0.72,
                str(depth + 1),
                ha="center",
                va="center",
                fontsize=5.5,
            )
            _arrow(axis, (left + WIDTH / 2, HEIGHT), (left + WIDTH / 2, HEIGHT + 0.5))
    end = len(route) * STEP
    _arrow(axis, (end - STEP + WIDTH, HEIGHT / 2), (end, HEIGHT / 2))
    for x, text, side in ((WIDTH - STEP - 0.05, "patches", "right"), (end + 0.05, "class", "left")):
        axis.text(x, HEIGHT / 2, text, ha=side, va="center", fontsize=6)
    axis.set(
        xlim=(-1.9, end + 1.4), ylim=(-0.95 if told else -0.15, HEIGHT + (0.95 if asked else 0.15))
    )
    axis.axis("off")


def _arrow(axis: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
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


def first_routes(
    params: Params, variant: str, num_layers: int, seed: int
) -> tuple[str, list[list[int]]]:
    """What a training's routes are drawn for, and the first of them, as the training loop draws them."""
    route = params.all_variants[variant].route
    options = params.resolve(Finetune, variant)
    drawn = []
    for step in range(ROUTES_SHOWN):
        rng = generator("train", seed, 1, step)
        drawn.append(draw_routes(route, options.per, rng, num_layers, options.batch_size))
    if options.per == "batch":
        rows = [routes.rows(1)[0] for routes in drawn]
    else:
        rows = list(drawn[0].rows(options.batch_size))
    routes = [[int(layer) for layer in row if layer != ENDED] for row in rows]
    if options.per == "latin":  # the groups' routes come again and again
        routes = [list(route) for route in dict.fromkeys(map(tuple, routes))]
    titles = {"batch": "step", "sample": "image", "latin": "group of the batch"}
    return titles[options.per], routes[:ROUTES_SHOWN]
