"""What many passes through one model are good for: their mean, and the best of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import interpolate

from lsvit.routed import RoutedModel
from lsvit.routes import Route, drop, evaluation_routes, generator
from papers.questions.compute.confidence import judge, share_by_chance
from papers.questions.section import Passes, PassesConfig, Row, write_numbers
from pipeline.data.splits import Split
from pipeline.training.devices import Execution
from pipeline.training.scoring import open_model, open_split


def digits(split: Split, limit: int) -> Tensor:
    """Scikit-learn's handwritten digits, of the size, channels and normalisation of a split.

    Returns:
        (n, in_chans, crop, crop), at most `limit` of the 1,797.
    """
    grey = torch.from_numpy(load_digits().images[:limit]).float().to(split.device)  # 0 to 16
    size = split.resize.crop
    large = interpolate(grey[:, None] * (255 / 16), (size, size), mode="bilinear", antialias=True)
    return torch.addcmul(split.shift, large.expand(-1, split.in_chans, -1, -1), split.scale)


@torch.inference_mode()
def answer(
    model: RoutedModel, batches: Iterable[Tensor], route: Route, execution: Execution
) -> np.ndarray:
    """Probabilities (n, C) of the classes of images, along one route."""
    model.eval()
    answers = []
    for images in batches:
        with execution.context():
            logits = model(images, route)
        answers.append(logits.float().softmax(1).cpu())
    return torch.cat(answers).double().numpy()


@contextmanager
def dropped_out(model: RoutedModel, rate: float, seed: int) -> Iterator[None]:
    """Within it, numbers that a block gives are set to 0 at a rate, others scaled to make up."""
    device = next(model.parameters()).device
    rng = torch.Generator(device).manual_seed(seed)

    def drop_out(block: object, inputs: object, output: Tensor) -> Tensor:
        kept = torch.empty_like(output).bernoulli_(1 - rate, generator=rng)
        return output * kept / (1 - rate)

    with ExitStack() as hooks:
        for block in model.backbone.blocks if rate else ():
            hooks.enter_context(block.register_forward_hook(drop_out))
        yield


def routes_of(num_layers: int, options: Passes) -> dict[str, Sequence[Route]]:
    """The routes of each way to pass several times. Of fewer passes they are the first ones."""
    original = tuple(range(num_layers))
    rng = generator("stochastic depth", options.seed)
    thinned = [drop(options.drop)(rng, num_layers) for _ in range(options.routes)]
    orders = evaluation_routes(num_layers, num_layers, "arbitrary", options.routes, options.seed)
    return {
        "one": [original],
        "orders": orders,
        "drop": thinned,
        "dropout": [original] * options.routes,
    }


def tried(
    way: str, count: int, answers: np.ndarray, labels: np.ndarray, allowed: np.ndarray
) -> list[Row]:
    """Rows of what some of several routes answer rightly.

    `some`: the share of images of which some route is right. `single`: the mean over the routes.
    `control`: `some`, each image with the label of another.

    Args:
        way, count: columns of the rows.
        answers: (routes, n) classes.
        labels: (n,).
        allowed: (n, C) bool, the labels that an image may get, its own among them.
    """
    images = np.arange(len(labels))
    answered = np.zeros(allowed.shape, dtype=bool)
    answered[images, answers] = True
    return [
        (way, count, "single", (answers == labels).mean()),
        (way, count, "some", answered[images, labels].mean()),
        (way, count, "control", share_by_chance(answered, labels, allowed)),
    ]


def mended(
    way: str, count: int, answers: np.ndarray, first: np.ndarray, labels: np.ndarray
) -> list[Row]:
    """:func:`tried` on the images whose answer in the original order, `first`, is wrong."""
    wrong = first != labels
    if not wrong.any():
        return []
    also_wrong = np.arange(max(labels.max(), answers.max()) + 1) != first[wrong, None]
    return tried(way, count, answers[:, wrong], labels[wrong], also_wrong)


def held_out(answers: np.ndarray, labels: np.ndarray) -> list[Row]:
    """Rows of the mean order, and of the best on every other image, tried on the rest."""
    right = answers == labels
    chosen = []
    for first in (0, 1):
        best = right[:, first::2].mean(1).argmax()
        chosen.append(right[best, 1 - first :: 2])
    count = len(answers)
    return [
        ("held_out", count, "single", right.mean()),
        ("held_out", count, "some", np.concatenate(chosen).mean()),
    ]


def evaluate(
    config: PassesConfig, data: Path, weights: Path, folder: Path, report: Callable[[dict], None]
) -> None:
    """Pass images many times through one model. Writes `rows.csv`, a row a number."""
    torch.set_num_threads(1)
    options = config.options
    model, execution = open_model(config, data, weights)
    report({"text": f"runs on {execution}"})
    split = open_split(config, data, "validation", model, options.images)
    labels = np.asarray(split.maps.labels)[: len(split)]
    foreign = digits(split, len(split)).split(options.batch_size)

    def own_answer(route: Route) -> np.ndarray:
        batches = (images for _, images, _ in split.in_order(options.batch_size))
        return answer(model, batches, route, execution)

    rows: list[Row] = []
    classes = {}  # by way, (passes, n)
    for way, routes in routes_of(model.num_layers, options).items():
        rate = options.dropout if way == "dropout" else 0
        inside = outside = np.zeros(1)  # sums over the passes so far
        answers = []
        with dropped_out(model, rate, options.seed):
            for count, route in enumerate(routes, 1):
                own = own_answer(route)
                inside = inside + own
                outside = outside + answer(model, foreign, route, execution)
                answers.append(own.argmax(1))
                judged = judge(inside / count, outside / count, labels)
                rows += [(way, count, measure, value) for measure, value in judged.items()]
        classes[way] = np.stack(answers)
        report({"cell": way})
    first = classes["one"][0]
    orders = classes["orders"]
    for count in range(1, len(orders) + 1):
        rows += mended("mend", count, orders[:count], first, labels)
    rows += held_out(orders, labels)
    every_label = np.ones_like(inside, dtype=bool)
    up_to: list[np.ndarray] = []
    for keep in sorted(options.shorter):
        routes = evaluation_routes(
            model.num_layers, keep, "sequential", options.routes, options.seed
        )
        answers = [own_answer(route).argmax(1) for route in routes]
        up_to += answers
        rows += tried("shorter", keep, np.stack(answers), labels, every_label)
        rows += tried("shortest", keep, np.stack(up_to), labels, every_label)
        rows += mended("mend_shorter", keep, np.stack(up_to), first, labels)
    report({"cell": "shorter routes"})
    write_numbers(folder, rows, len(split))
