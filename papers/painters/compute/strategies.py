"""The execution strategies as routes (Painters, figure 1). No torch here."""

from lsvit.routes import Route, evaluation_routes, layers_of
from papers.painters.section import UNTOUCHED, Kind, Painters


def make_routes(kind: Kind, num_layers: int, treated: int, options: Painters) -> list[Route]:
    """Make the routes on which a strategy is evaluated: several for `shuffle`, one for the others.

    The middle is centred: (num_layers - treated) // 2 layers stay before it, as many or one more
    after it. The paper's code has the one more before. Of an even number of layers the centre is
    the later of the two, so layer num_layers // 2 is repeated as in the paper's code.

    Args:
        kind: skip, left out; repeat, the centre layer in the place of each; reverse, from last to
            first; shuffle, in random order; parallel, side by side on the same state, their
            outputs averaged; loop, that step `loops` times one after another.
        num_layers: L.
        treated: how many layers lie in the middle, from 1 to L - 2.
        options: `loops`, and for `shuffle` the number of distinct `orders` (or all there are) and
            the `seed` they are drawn with. Every variant and training gets the same orders.
    """
    first = (num_layers - treated) // 2
    middle = tuple(range(first, first + treated))
    orders = evaluation_routes(treated, treated, "arbitrary", options.orders, options.seed)
    middles: dict[Kind, list[Route]] = {
        "skip": [()],
        "repeat": [(middle[treated // 2],) * treated],
        "reverse": [middle[::-1]],
        "shuffle": [tuple(middle[i] for i in layers_of(order)) for order in orders],
        "parallel": [(middle,)],
        "loop": [(middle,) * options.loops],
    }
    before = tuple(range(first))
    after = tuple(range(first + treated, num_layers))
    return [before + route + after for route in middles[kind]]


def cells(num_layers: int, options: Painters) -> dict[int, dict[str, list[Route]]]:
    """List what a model is evaluated on: number of layers treated -> kind -> routes to average.

    The model as it is comes first, as 0 layers treated.
    """
    routes: dict[int, dict[str, list[Route]]] = {0: {UNTOUCHED: [tuple(range(num_layers))]}}
    for treated in sorted(set(options.treated)):
        routes[treated] = {
            kind: make_routes(kind, num_layers, treated, options) for kind in options.kinds
        }
    return routes
