"""How much the order of its layers matters to a model, without training it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from timm.data import ImageNetInfo, infer_imagenet_subset, resolve_model_data_config
from torch import Tensor, nn

from lsvit.blocks import SHOWN, Blocks, check_least, count_blocks, find_blocks
from lsvit.checkpoint import say
from lsvit.evaluation import evaluating, format_table, percent, read_batch, run_orders
from lsvit.images import Unused, describe_unused, list_images
from lsvit.predict import MICRO, load, read_image
from lsvit.routed import RoutedModel
from lsvit.routes import Route, fix_first, generator
from lsvit.text import folder_name, one_line, plain

# What is done to layer i.
PLACED = "first i in place"  # the others run in random orders
ABSENT = "without i"
SWAPPED = "i after i+1"
TWICE = "i twice"
BATCH = 32
LEAST_BATCH = 4  # images that the similarity needs at once

ByLayer = dict[str, list[float]]  # by change, then by layer i; 0 to 1
Parts = tuple[nn.Module, dict[str, Any], list[str]]  # of :class:`lsvit.predict.Opened`


class Scan(NamedTuple):
    """What :func:`scan` finds.

    `agreement` is the share of images that get the same class as in the original order. `accuracy`
    is None without targets; its "original" has one value.
    """

    agreement: ByLayer
    accuracy: ByLayer | None
    similarity: Tensor  # linear CKA of the layers' outputs, (layers, layers)

    def __str__(self) -> str:
        title = "images with the same answer as in the original order, %"
        shares = self.agreement
        if self.accuracy is not None:
            shares = self.accuracy
            title = f"accuracy, %; in the original order {percent(shares['original'][0])}"
        columns = [["i", *map(str, range(len(self.similarity)))]]
        for change in self.agreement:
            columns.append([change, *map(percent, shares[change])])
        following = self.similarity.diagonal(1).tolist()
        columns.append(["similarity of i and i+1", *map("{:.2f}".format, following)])
        return f"{title}\n{format_table(list(zip_longest(*columns, fillvalue='')))}"

    def plot(self, path: str | Path) -> None:
        """Write a figure: agreement by layer and change, and the similarity of the outputs.

        Raises:
            ImportError: matplotlib is not installed.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 4), layout="constrained")
        lines, image = figure.subplots(1, 2)
        for change, values in self.agreement.items():
            lines.plot(values, marker="o", label=change)
        lines.set(xlabel="layer i", ylabel="share of images with the same answer", ylim=(0, 1.05))
        lines.legend()
        colors = image.imshow(self.similarity.numpy(), vmin=0, vmax=1, origin="lower")
        image.set(xlabel="layer", ylabel="layer", title="similarity of outputs (CKA)")
        figure.colorbar(colors)
        figure.savefig(path)


def scan(
    model: nn.Module,
    loader: Iterable[Any],
    orders: int = 3,
    *,
    seed: int = 0,
    blocks: Blocks = None,
) -> Scan:
    """Measure what changes of the order do to a classifier, which need not be trained for them.

    The first i layers stay in place and the others run in random orders. Layer i is left out. It
    changes places with the next one. It runs twice, if the model's loop takes more blocks than its
    list has. A table is printed.

    Args:
        model: as :func:`lsvit.evaluate` takes it.
        loader: gives batches as :func:`lsvit.evaluate` takes them, but targets may be absent. It is
            read three times.
        orders: how many random orders to run for each number of layers in place.
        seed: of the random orders.
        blocks: the list of blocks, or its name. None: it is found.

    Raises:
        ValueError: as :func:`lsvit.evaluate`, the loader cannot be read again, no batch has four
            images, the model does not call its blocks one after another, or the batch is not the
            first dimension of their outputs.
    """
    path = find_blocks(model, blocks)
    check_least(1, orders=orders)
    check_least(0, seed=seed)
    if isinstance(loader, Iterator):
        raise ValueError(
            f"loader: found {type(loader).__name__}, accepted: what can be read again, e.g. a list"
        )
    num_layers = count_blocks(model, path)
    in_place = tuple(range(num_layers))
    routes: dict[str, list[Route]] = {
        PLACED: [],
        ABSENT: [in_place[:i] + in_place[i + 1 :] for i in in_place],
        SWAPPED: [(*in_place[:i], i + 1, i, *in_place[i + 2 :]) for i in in_place[:-1]],
        TWICE: [in_place[: i + 1] + in_place[i:] for i in in_place],
    }
    for i in in_place[:-1]:
        for number in range(orders):
            rng = generator("scan", seed, i, number)
            routes[PLACED].append(fix_first(i)(rng, num_layers))
    alike = similarity(model, loader, path)  # one pass, which refuses small batches before the rest
    if not _runs_twice(model, next(iter(loader)), path):
        del routes[TWICE]
    orders_to_run = [in_place, *chain(*routes.values())]
    with reusing_prefixes(model, path) as prefix:
        answers, targets = run_orders(model, prefix.follow(loader), orders_to_run, path)
    first = answers[..., 0]  # (routes, n)
    counts = list(map(len, routes.values()))

    def by_layer(expected: Tensor) -> ByLayer:
        """Shares of images with the expected answers (n,)."""
        means: ByLayer = {}
        for change, of_change in zip(routes, first[1:].split(counts), strict=True):
            share = (of_change == expected).double().mean(1)  # (routes,)
            several = orders if change == PLACED else 1
            means[change] = share.view(-1, several).mean(1).tolist()
        return means

    accuracy = None
    if targets is not None:
        original = float((first[0] == targets).double().mean())
        accuracy = {"original": [original]} | by_layer(targets)
    result = Scan(by_layer(first[0]), accuracy, alike)
    print(result)
    return result


def _runs_twice(model: nn.Module, batch: Any, blocks: str) -> bool:
    """False if the model takes no more blocks than its list has.

    Position parts know as many positions as layers, and some loops have a fixed length.
    """
    if isinstance(model, RoutedModel):
        return not len(model.position)
    args, kwargs, _ = read_batch(batch, model)
    longer = (0, *range(count_blocks(model, blocks)))
    try:
        run_orders(model, [kwargs or args[0]], [longer], blocks)
    except (ValueError, IndexError):
        say(f"{type(model).__name__}: runs no more blocks than its list has, so none twice")
        return False
    return True


@contextmanager
def reusing_prefixes(model: nn.Module, blocks: str) -> "Iterator[_Prefix]":
    """Inside, the blocks that begin a pass in their original order run once for each batch.

    Later passes over the batch get what these blocks gave, and what a block leaves elsewhere it
    leaves once. A scan of 12 layers runs 40 % fewer blocks. The batches of a loader are to be read
    through :meth:`_Prefix.follow`.
    """
    container = model.get_submodule(blocks)
    original = container._modules
    prefix = _Prefix()
    container._modules = {
        name: _Reused(block, index, prefix)
        for index, (name, block) in enumerate(original.items())
        if block is not None
    }
    try:
        with model.register_forward_pre_hook(prefix.begin):
            yield prefix
    finally:
        container._modules = original


class _Prefix:
    """What the first blocks gave for one batch, in the original order."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.depth: int | None = 0  # blocks that this pass ran; None after another order began

    def follow(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The loader's batches, each of which is new, even in the memory of the last one."""
        for batch in loader:
            self.outputs = []
            yield batch

    def begin(self, *arguments: Any) -> None:
        """Start a pass: torch calls this before the model's forward pass."""
        self.depth = 0


class _Reused(nn.Module):
    """A block that runs once for each batch while it is part of the prefix."""

    def __init__(self, block: nn.Module, index: int, prefix: _Prefix) -> None:
        super().__init__()
        self.block = block
        self.index = index
        self.prefix = prefix

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        prefix = self.prefix
        if prefix.depth != self.index:
            prefix.depth = None
            return self.block(*args, **kwargs)
        prefix.depth += 1
        if len(prefix.outputs) == self.index:
            prefix.outputs.append(self.block(*args, **kwargs))
        return deepcopy(prefix.outputs[self.index])  # the next block may write into it

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("block"), name)  # as some models read it


@torch.no_grad()
def similarity(model: nn.Module, loader: Iterable[Any], blocks: str) -> Tensor:
    """Linear CKA of the blocks' outputs, all tokens of an image together: (layers, layers).

    CKA: Kornblith et al., Similarity of neural network representations revisited, 2019. It is
    summed up over batches without bias: Nguyen et al., Do wide and deep networks learn the same
    things?, 2021.

    Args:
        model: it runs in its original order.
        loader: batches; those of less than four images are left out.
        blocks: where the list of blocks is.

    Raises:
        ValueError: no batch has four images, the model does not call its blocks one after another,
            or the batch is not the first dimension of their outputs.
    """
    outputs: list[Tensor] = []
    called: list[nn.Module] = []

    def listen(block: nn.Module, args: Any, output: Any) -> None:
        state = output[0] if isinstance(output, tuple) else output
        outputs.append(state.flatten(1).float())
        called.append(block)

    sums: list[Tensor] = []
    container = model.get_submodule(blocks)
    with evaluating(model), ExitStack() as hooks:
        for block in container.children():
            hooks.enter_context(block.register_forward_hook(listen))
        for batch in loader:
            args, kwargs, _ = read_batch(batch, model)
            outputs.clear()
            called.clear()
            model(*args, **kwargs)
            if called != list(container._modules.values()):
                raise ValueError(
                    f"{blocks}: found {len(called)} calls of blocks, whose outputs are compared, "
                    "accepted: each block called once, in the list's order"
                )
            images = len(next(iter((*args, *kwargs.values()))))
            for output in outputs:
                if len(output) != images:
                    raise ValueError(
                        f"{blocks}: found outputs of {len(output)} rows for {images} images, "
                        "accepted: blocks with the batch as first dimension"
                    )
            if images >= LEAST_BATCH:
                sums.append(_unbiased_hsic(torch.stack([o @ o.T for o in outputs])))
    if not sums:
        raise ValueError(f"loader: found no batch of {LEAST_BATCH} images, accepted: at least one")
    total = torch.stack(sums).sum(0)
    scale = total.diagonal().clamp_min(0).sqrt()
    return (total / torch.outer(scale, scale)).cpu()


def _unbiased_hsic(grams: Tensor) -> Tensor:
    """Gram matrices (L, n, n) -> HSIC of every two of them (L, L); Song et al., 2012, eq. 5."""
    n = grams.shape[-1]
    without = grams.double() * (1 - torch.eye(n, device=grams.device))
    rows = without.sum(-1)  # (L, n)
    totals = rows.sum(-1)  # (L,)
    traces = torch.einsum("iab,jab->ij", without, without)
    means = torch.outer(totals, totals) / ((n - 1) * (n - 2))
    return (traces + means - 2 * rows @ rows.T / (n - 2)) / (n * (n - 3))


# ---- a folder of images ------------------------------------------------------------------------


def open_model(where: str) -> Parts:
    """Open what :func:`lsvit.predict.load` opens, or a model of timm with its weights.

    Returns:
        The model, how its images are read, and names of its classes, as
        :class:`lsvit.predict.Opened` says. timm's model has no names.

    Raises:
        ValueError: it is none of these, its weights cannot be had, or it has no classes.
    """
    if where in MICRO or where.startswith("hf-hub:") or Path(where).exists():
        return load(where)
    try:
        model = timm.create_model(where, pretrained=True)
    except Exception as error:  # timm and the hub's client raise many kinds
        raise ValueError(
            f"{where}: not an exported folder, hf-hub:<repository>, {', '.join(MICRO)}, or a "
            f"model of timm whose weights can be had ({type(error).__name__}: {one_line(error)})"
        ) from None
    if not model.num_classes:
        raise ValueError(f"{where}: found no classes, accepted: a classifier")
    return model, resolve_model_data_config(model), []


def scan_folder(
    model: str,
    folder: Path,
    images: int,
    orders: int,
    seed: int,
    figure: Path,
    blocks: str | None = None,
    opener: Callable[[str], Parts] = open_model,
) -> None:
    """Scan a model on the images below a folder, print the table and write the figure.

    The targets are those of :func:`find_targets`. Lines tell which files are left out, and why.

    Args:
        model: what `opener` takes.
        folder: with images of any size.
        images: how many to take at most, evenly spread.
        orders, seed, blocks: as :func:`scan`.
        figure: written where matplotlib is installed, else a line says so.
        opener: what opens the model.

    Raises:
        ValueError: there is no image that can be read, or the figure's folder does not exist; as
            `opener` and :func:`scan`.
    """
    if not figure.parent.is_dir():
        raise ValueError(f"{figure}: found no folder {figure.parent}, accepted: one that exists")
    files = find_images(folder)
    opened, data, classes = opener(model)
    targets = find_targets(opened, classes, folder, files)
    inputs = []
    chosen = []
    for index in range(0, len(files), -(-len(files) // images)):
        try:
            inputs.append(read_image(files[index], data))
            chosen.append(index)
        except ValueError as error:
            print(plain(f"left out: {error}"))
    if not inputs:
        raise ValueError(f"{folder}: found no image that can be read, accepted: at least one")
    batches = torch.stack(inputs).split(BATCH)
    loader: Iterable[Any] = batches
    if targets is not None:
        loader = list(zip(batches, targets[chosen].split(BATCH), strict=True))
    result = scan(opened, loader, orders, seed=seed, blocks=blocks)
    try:
        result.plot(figure)
        print(plain(f"{figure}: written"))
    except ImportError:
        print("no figure: matplotlib is not installed")


def find_images(folder: Path) -> list[Path]:
    """The files of :func:`lsvit.images.list_images`. A line tells how many others are left out.

    Raises:
        ValueError: there is none, or a folder cannot be opened.
    """
    unused: Unused = {}
    try:
        files = [Path(*file) for file in list_images(folder, unused)]
    except OSError as error:
        raise ValueError(f"{folder}: {error}, accepted: a folder with images in it") from None
    if unused:
        print(describe_unused(folder, unused))
    if not files:
        raise ValueError(f"{folder}: found no image, accepted: a folder with images in it")
    return files


def find_targets(
    model: nn.Module, classes: Sequence[str], folder: Path, files: Sequence[Path]
) -> Tensor | None:
    """The classes of image files, by the names of the folders in `folder` that hold them.

    A folder has the name of its class, with "_" for "/". WordNet's names, e.g. n01440764, are those
    of a model of ImageNet too. Where a model's names are not known, and it has as many classes as
    there are folders, these are the classes in alphabetical order, as for torchvision's
    ImageFolder.

    Returns:
        The targets (n,). None, and a line is printed, if a file has no class.
    """
    parents = []
    for file in files:
        inside = file.relative_to(folder).parts
        parents.append(folder_name(inside[0]) if len(inside) > 1 else "")
    backbone: Any = getattr(model, "backbone", model)
    subset = infer_imagenet_subset(backbone)
    wordnet_names = ImageNetInfo(subset).label_names() if subset else []
    index_of: dict[str, int] = {}
    for names in ([plain(folder_name(name)) for name in classes], wordnet_names):
        for index, name in enumerate(names):
            if names.count(name) == 1:  # two of ImageNet's classes are "crane"
                index_of[name] = index
    folders = sorted(set(parents))
    if not index_of and "" not in folders and len(folders) == backbone.num_classes:
        index_of = {plain(name): index for index, name in enumerate(folders)}
        first = ", ".join([*index_of][:SHOWN])
        say(f"accuracy: the model names no classes, so its outputs are the folders: {first}, ...")
    for name in folders:
        if plain(name) not in index_of:
            known = ", ".join([*index_of][:SHOWN]) or f"{backbone.num_classes} folders, one a class"
            line = f"no accuracy: found images in {folder / name}, accepted: {known}"
            print(plain(line))
            return None
    return torch.tensor([index_of[plain(name)] for name in parents])
