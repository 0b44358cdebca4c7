"""Accuracy of a model in its original order, in random orders, and with some of its layers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from operator import index
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lsvit.blocks import Blocks, check_least, count_blocks, find_blocks, is_compiled
from lsvit.routed import RoutedModel
from lsvit.routes import ORDERS, Order, Route, evaluation_routes, layers_of
from lsvit.shuffled import in_order

TOP = 5
Z95 = 1.96  # of a 95 % interval
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Score(NamedTuple):
    """Accuracy, 0 to 1, over orders of so many layers."""

    layers: int  # that each order runs
    order: Order  # "sequential": the original one; "arbitrary": random ones
    orders: int  # how many were run
    top1: float  # mean over orders
    top5: float | None  # None with 5 classes or fewer
    std: float | None  # of top1 over orders; None for a single one
    low: float  # 95 % interval of top1, over orders and images
    high: float


def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    orders: int = 20,
    keep: Sequence[int] | None = None,
    *,
    seed: int = 0,
    blocks: Blocks = None,
) -> list[Score]:
    """Measure a classifier in its original order, in random orders, and with some of its layers.

    With some of the layers, random ones run in their original and in a random order (LayerShuffle,
    section 4.2). The interval takes orders and images as two independent samples, whose variances
    add up (Owen, The pigeonhole bootstrap, 2007); it is Wilson's for as many images as would give
    this variance. A table is printed.

    Args:
        model: as :func:`lsvit.shuffle` takes it. It answers with logits (B, classes), or with what
            has `logits`. It is put into evaluation mode, and back.
        loader: gives (inputs, targets (B,)), or, as transformers' do, mappings with "labels" or
            "label".
        orders: how many random orders to run; all where fewer exist.
        keep: numbers of layers to keep. None: a quarter, half and three quarters of them, which are
            3, 6 and 9 of 12.
        seed: of the random orders.
        blocks: the list of blocks, or its name. None: it is found.

    Raises:
        ValueError: as :func:`lsvit.shuffle`, `orders` or a number in `keep` is not what is
            accepted, the loader gives something else than tensors, or targets that are no classes
            of the model, the model's answer has no logits (B, classes), or its forward pass needs
            all blocks, or runs other ones than asked for.
    """
    path = find_blocks(model, blocks)
    num_layers = count_blocks(model, path)
    if keep is None:
        keep = sorted({max(1, num_layers * quarters // 4) for quarters in (1, 2, 3)})
    check_least(1, orders=orders)
    check_least(0, seed=seed)
    try:
        keep = list(map(index, keep))
    except TypeError:
        raise ValueError(
            f"keep: found {' '.join(repr(keep).split())}, "
            f"accepted: a list of whole numbers, 1 to {num_layers}"
        ) from None
    for number in keep:
        if not 1 <= number <= num_layers:
            raise ValueError(f"keep: found {number}, accepted: 1 to {num_layers}")
    numbers = [num_layers, *sorted({*keep} - {num_layers})]
    kinds = [(number, order) for number in numbers for order in ORDERS]
    routes = [evaluation_routes(num_layers, *kind, orders, seed) for kind in kinds]
    answers, targets = run_orders(model, loader, list(chain(*routes)), path)
    if targets is None:
        raise ValueError("loader: found no targets, accepted: (inputs, targets), or labels")
    hits = (answers == targets[:, None]).cumsum(-1)  # (orders, n, TOP): in the first k answers
    hits_by_kind = hits.split(list(map(len, routes)))
    scores = [_score(*kind, part) for kind, part in zip(kinds, hits_by_kind, strict=True)]
    print(format_scores(scores))
    return scores


def _score(layers: int, order: Order, hits: Tensor) -> Score:
    """hits: (orders, n, TOP), 1 where a target is among the first k answers."""
    first = hits[..., 0].double()  # (orders, n)
    num_orders = len(first)
    images: float = first.shape[1]
    mean = float(first.mean())
    variance = float(first.mean(0).var(correction=0)) / images
    std = None
    if num_orders > 1:
        std = float(first.mean(1).std())
        variance += std**2 / num_orders
    if variance:
        images = mean * (1 - mean) / variance
    # Wilson's interval, for `images` independent ones
    shrink = 1 / (1 + Z95**2 / images)
    centre = shrink * (mean + Z95**2 / images / 2)
    half = shrink * Z95 * (mean * (1 - mean) / images + (Z95 / images / 2) ** 2) ** 0.5
    top5 = float(hits[..., -1].double().mean()) if hits.shape[-1] == TOP else None
    return Score(layers, order, num_orders, mean, top5, std, centre - half, centre + half)


def format_scores(scores: Sequence[Score]) -> str:
    """Scores as a table, in percent; without top-5 where there is none."""
    rows = [["layers", "order", "orders", "top-1 %", "std", "95 %", "top-5 %"]]
    for score in scores:
        interval = f"{percent(score.low)} to {percent(score.high)}"
        top1, std, top5 = percent(score.top1), percent(score.std), percent(score.top5)
        rows.append([str(score.layers), score.order, str(score.orders), top1, std, interval, top5])
    if scores[0].top5 is None:
        rows = [row[:-1] for row in rows]
    return format_table(rows)


def percent(share: float | None) -> str:
    """A share, 0 to 1, in percent; nothing for None."""
    return "" if share is None else f"{100 * share:.1f}"


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equal length, aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]
    return "\n".join(lines)


# ---- running a model ---------------------------------------------------------------------------


@torch.no_grad()  # inference mode would leave its tensors in caches that training reads
def run_orders(
    model: nn.Module, loader: Iterable[Any], orders: Sequence[Route], blocks: str
) -> tuple[Tensor, Tensor | None]:
    """Run every image in every order, in evaluation mode.

    Args:
        model: as :func:`evaluate` takes it.
        loader: it is read once; targets may be absent.
        orders: of the blocks.
        blocks: where the list of blocks is.

    Returns:
        The five classes of the highest logits (orders, n, 5), or the first alone where there are no
        more than five (orders, n, 1); and the targets (n,), or None.

    Raises:
        ValueError, IndexError: as :func:`evaluate` and :func:`lsvit.in_order`.
    """
    answers = []
    targets = []
    # timm's models without a head answer with features.
    classifier = model.backbone if isinstance(model, RoutedModel) else model
    has_classes = getattr(classifier, "num_classes", None) != 0
    with evaluating(model), in_order(model, (), blocks) as runner:
        checked = [runner.check(order) for order in orders]
        for batch in loader:
            args, kwargs, batch_targets = read_batch(batch, model)
            batch_answers = []
            for order, route in zip(checked, orders, strict=True):
                runner.fixed = order
                with _checking_calls(model, blocks, route):
                    answer = _run(model, args, kwargs, runner.num_layers, len(route))
                logits = logits_of(answer)
                if not has_classes:
                    raise ValueError(
                        f"{type(model).__name__}: found no classes, accepted: a classifier"
                    )
                top = TOP if logits.shape[1] > TOP else 1
                batch_answers.append(logits.topk(top).indices.cpu())
            answers.append(torch.stack(batch_answers))
            if batch_targets is not None:
                targets.append(_check_targets(batch_targets.cpu(), logits))
        images = sum(answer.shape[1] for answer in answers)
        if not images:
            raise ValueError("loader: found no batch, accepted: at least one")
    all_targets = torch.cat(targets) if targets else None
    if all_targets is not None and len(all_targets) != images:
        raise ValueError(
            f"loader: found targets of {len(all_targets)} of {images} images, accepted: of all"
        )
    return torch.cat(answers, dim=1), all_targets


def _run(model: nn.Module, args: Any, kwargs: dict[str, Any], num_layers: int, length: int) -> Any:
    """Run a model of so many layers along an order of this length."""
    try:
        return model(*args, **kwargs)
    except IndexError as error:
        if length >= num_layers:
            raise
        raise ValueError(
            f"{type(model).__name__}: found a forward pass that takes more blocks from the list "
            f"than the {length} of an order, accepted: a loop over the blocks in the list"
        ) from error


@contextmanager
def _checking_calls(model: nn.Module, blocks: str, route: Route) -> Iterator[None]:
    """Raise ValueError if a pass inside calls blocks of the list in another order than this.

    It does if the loop does not read the list, or the model's hooks do not run.
    """
    modules: list[Any] = list(model.get_submodule(blocks)._modules.values())
    called: list[nn.Module] = []
    with ExitStack() as hooks:
        for block in dict.fromkeys(modules):
            note = partial(_note_call, called, block)
            hooks.enter_context(block.register_forward_pre_hook(note))
        yield
    asked = [modules[layer] for layer in layers_of(route)]
    rounds = max(1, len(called) // len(asked))  # a model may run its blocks more than once
    if called != asked * rounds and not any(map(is_compiled, modules)):
        raise ValueError(
            f"{type(model).__name__}: found a forward pass that ran blocks "
            f"{[modules.index(block) for block in called]} where {list(route)} were asked for, "
            "accepted: a model whose call loops over its list of blocks"
        )


def _note_call(called: list[nn.Module], block: nn.Module, *arguments: Any) -> None:
    called.append(block)


def _check_targets(targets: Tensor, logits: Tensor) -> Tensor:
    batch, classes = logits.shape
    if targets.shape != (batch,) or not ((targets >= 0) & (targets < classes)).all():
        found = f"{tuple(targets.shape)} from {targets.min()} to {targets.max()}"
        raise ValueError(
            f"loader: found targets {found}, accepted: ({batch},) from 0 to {classes - 1}"
        )
    if targets.dtype not in WHOLE:
        raise ValueError(f"loader: found targets of {targets.dtype}, accepted: whole numbers")
    return targets


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode; then each of its modules into the mode it had.

    transformers' models make no key-value cache, in which a repeated block would read its own keys.
    """
    modes = {module: module.training for module in model.modules()}
    config: Any = getattr(model, "config", None)
    has_cache = getattr(config, "use_cache", False)
    if has_cache:
        config.use_cache = False
    model.eval()
    try:
        yield
    finally:
        if has_cache:
            config.use_cache = True
        for module, training in modes.items():
            module.training = training


def read_batch(
    batch: Any, model: nn.Module
) -> tuple[tuple[Tensor, ...], dict[str, Any], Tensor | None]:
    """A batch on the model's device: its arguments, its named arguments, and targets (B,) or None.

    Args:
        batch: (inputs, targets), inputs alone, or a mapping, whose "labels" or "label" are targets.
        model: which will take it.

    Raises:
        ValueError: something else than a tensor is in the batch.
    """
    device = next(model.parameters()).device
    if isinstance(batch, Mapping):
        inputs = {name: _tensor(value).to(device) for name, value in batch.items()}
        label = inputs.pop("label", None)  # as data sets of Hugging Face have it
        return (), inputs, inputs.pop("labels", label)
    images, *targets = (batch,) if isinstance(batch, Tensor) else batch
    return (_tensor(images).to(device),), {}, _tensor(targets[0]) if targets else None


def _tensor(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise ValueError(f"loader: found {type(value).__name__} in a batch, accepted: tensors")
    return value


def logits_of(output: Any) -> Tensor:
    """The logits (B, classes) of a model's answer. Raises ValueError if it has none."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"the model's answer: found {shape}, accepted: logits (batch, classes)")
    if logits.isnan().any():
        raise ValueError("the model's answer: found NaN, accepted: numbers")
    return logits
