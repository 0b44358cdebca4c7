"""The execution strategies as routes (Painters, figure 1). No torch here."""

from lsvit.routes import Route, evaluation_routes, layers_of
from papers.painters.section import UNTOUCHED, Kind, Painters


def make_routes(kind: Kind, num_layers: int, treated: int, options: Painters) -> list[Route]:
    """The routes on which a strategy is evaluated: one, of `shuffle` many.

    The middle is centred: (num_layers - treated) // 2 layers stay before it and the others after it, which are as many or one more
    (the paper's code, whose numbers of treated layers are odd and of all layers even, has the one more before). Its centre layer is,
    of an even number, the later of the two, so that layer num_layers // 2 is repeated as in the paper's code.

    Args:
        kind: skip, left out; repeat, the centre layer in the place of each; reverse, from last to first; shuffle, in random order;
            parallel, side by side on the same state, their outputs averaged; loop, that step `loops` times one after another.
        num_layers: L.
        treated: how many layers lie in the middle, at least 1 and at most L - 2.
        options: `loops`, and of `shuffle` how many distinct `orders`, all there are if they are no more, and the `seed` they are
            drawn with. They depend on nothing else: every variant and training is evaluated on the same.
    """
    first = (num_layers - treated) // 2
    middle = tuple(range(first, first + treated))
    orders = evaluation_routes(treated, treated, "arbitrary", options.orders, options.seed)
    instead: dict[Kind, list[Route]] = {
        "skip": [()],
        "repeat": [(middle[treated // 2],) * treated],
        "reverse": [middle[::-1]],
        "shuffle": [tuple(middle[i] for i in layers_of(order)) for order in orders],
        "parallel": [(middle,)],
        "loop": [(middle,) * options.loops],
    }
    return [(*range(first), *route, *range(first + treated, num_layers)) for route in instead[kind]]


def cells(num_layers: int, options: Painters) -> dict[int, dict[str, list[Route]]]:
    """What a model is evaluated on: number of layers treated -> kind -> the routes that are averaged; first the model as it is."""
    found: dict[int, dict[str, list[Route]]] = {0: {UNTOUCHED: [tuple(range(num_layers))]}}
    for treated in sorted(set(options.treated)):
        found[treated] = {
            kind: make_routes(kind, num_layers, treated, options) for kind in options.kinds
        }
    return found
