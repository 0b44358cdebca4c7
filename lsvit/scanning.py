"""How much the order of its layers matters to a model, without training it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from timm.data import ImageNetInfo, infer_imagenet_subset, resolve_model_data_config
from torch import Tensor, nn

from lsvit.blocks import SHOWN, find_blocks
from lsvit.evaluation import evaluating, format_table, read_batch, run_orders
from lsvit.predict import MICRO, load, read_image
from lsvit.routed import RoutedModel
from lsvit.routes import Route, fix_first, generator

# What is done to layer i.
PLACED = "first i in place"  # the others run in random orders
ABSENT = "without i"
SWAPPED = "i after i+1"
TWICE = "i twice"
BATCH = 32
LEAST_BATCH = 4  # images that the similarity needs at once

ByLayer = dict[str, list[float]]  # by change, then by layer i; 0 to 1


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
            title = f"accuracy, %; in the original order {100 * self.accuracy['original'][0]:.1f}"
            shares = {change: self.accuracy[change] for change in shares}
        rows = [["i", *shares, "similarity of i and i+1"]]
        for layer in range(len(self.similarity)):
            row = [str(layer)]
            for values in shares.values():
                row.append(f"{100 * values[layer]:.1f}" if layer < len(values) else "")
            following = self.similarity[layer, layer + 1 : layer + 2].tolist()
            row.append(f"{following[0]:.2f}" if following else "")
            rows.append(row)
        return f"{title}\n{format_table(rows)}"

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
    blocks: str | None = None,
) -> Scan:
    """Measure what changes of the order do to a classifier, which need not be trained for them.

    The first i layers stay in place and the others run in random orders. Layer i is left out. It
    changes places with the next one. It runs twice. A table is printed.

    Args:
        model: as :func:`lsvit.evaluate` takes it.
        loader: gives batches as :func:`lsvit.evaluate` takes them, but targets may be absent. It is
            read twice.
        orders: how many random orders to run for each number of layers in place.
        seed: of the random orders.
        blocks: where the list of blocks is. None: it is found.

    Raises:
        ValueError: as :func:`lsvit.evaluate`, the loader cannot be read twice, or no batch has four
            images.
    """
    path = find_blocks(model, blocks)
    if orders < 1:
        raise ValueError(f"orders: found {orders}, accepted: at least 1")
    if isinstance(loader, Iterator):
        raise ValueError(
            f"loader: found {type(loader).__name__}, accepted: what can be read twice, e.g. a list"
        )
    num_layers = len(list(model.get_submodule(path).children()))
    in_place = tuple(range(num_layers))
    routes: dict[str, list[list[Route]]] = {PLACED: [], ABSENT: [], SWAPPED: [], TWICE: []}
    for layer in in_place:
        before = in_place[:layer]
        after = in_place[layer + 1 :]
        routes[ABSENT].append([before + after])
        routes[TWICE].append([(*before, layer, layer, *after)])
        if after:
            draw = fix_first(layer)
            rngs = [generator("scan", seed, layer, number) for number in range(orders)]
            routes[PLACED].append([draw(rng, num_layers) for rng in rngs])
            routes[SWAPPED].append([(*before, after[0], layer, *after[1:])])
    if isinstance(model, RoutedModel) and len(model.position):
        del routes[TWICE]  # the position parts know as many positions as layers
    every_route: list[Route] = [in_place]
    for of_layers in routes.values():
        for of_layer in of_layers:
            every_route += of_layer
    answers, targets = run_orders(model, loader, every_route, path)
    first = answers[..., 0]  # (routes, n)
    accuracy = None
    if targets is not None:
        accuracies = (first == targets).double().mean(1).tolist()
        accuracy = {"original": accuracies[:1]} | _by_layer(routes, accuracies[1:])
    agreement = _by_layer(routes, (first == first[0]).double().mean(1).tolist()[1:])
    result = Scan(agreement, accuracy, similarity(model, loader, path))
    print(result)
    return result


def _by_layer(routes: dict[str, list[list[Route]]], values: list[float]) -> ByLayer:
    """The values of the routes, one after another, as means over those of a layer."""
    rest = iter(values)
    means: ByLayer = {}
    for change, of_layers in routes.items():
        means[change] = []
        for of_layer in of_layers:
            means[change].append(sum(next(rest) for _ in of_layer) / len(of_layer))
    return means


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
        ValueError: no batch has four images.
    """
    outputs: list[Tensor] = []

    def listen(block: nn.Module, args: Any, output: Any) -> None:
        state = output[0] if isinstance(output, tuple) else output
        outputs.append(state.flatten(1).float())

    sums: list[Tensor] = []
    handles = []
    for block in model.get_submodule(blocks).children():
        handles.append(block.register_forward_hook(listen))
    try:
        with evaluating(model):
            for batch in loader:
                args, kwargs, _ = read_batch(batch, model)
                outputs.clear()
                model(*args, **kwargs)
                if len(outputs[0]) >= LEAST_BATCH:
                    sums.append(_unbiased_hsic(torch.stack([o @ o.T for o in outputs])))
    finally:
        for handle in handles:
            handle.remove()
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


def open_model(where: str) -> tuple[nn.Module, dict[str, Any], list[str]]:
    """Open what :func:`lsvit.predict.load` opens, or a model of timm with its weights.

    Returns:
        The model, how its images are read, and names of its classes, as
        :class:`lsvit.predict.Opened` says. timm's model has no names.

    Raises:
        ValueError: it is none of these, or its weights cannot be had.
    """
    if where in MICRO or where.startswith("hf-hub:") or Path(where).exists():
        return load(where)
    try:
        model = timm.create_model(where, pretrained=True)
    except Exception as error:  # timm and the hub's client raise many kinds
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{where}: not an exported folder, hf-hub:<repository>, {', '.join(MICRO)}, or a "
            f"model of timm whose weights can be had ({type(error).__name__}: {reason})"
        ) from None
    return model, resolve_model_data_config(model), []


def scan_folder(
    opened: tuple[nn.Module, dict[str, Any], list[str]],
    folder: Path,
    images: int,
    orders: int,
    seed: int,
    figure: Path,
    blocks: str | None = None,
) -> None:
    """Scan a model on the images below a folder, print the table and write the figure.

    The targets are those of :func:`find_targets`.

    Args:
        opened: what :func:`open_model` gives.
        folder: with images of any size.
        images: how many to take at most, evenly spread.
        orders, seed, blocks: as :func:`scan`.
        figure: written where matplotlib is installed, else a line says so.

    Raises:
        ValueError: there is no image, or one cannot be read, or the figure's folder does not exist;
            as :func:`scan`.
    """
    from PIL import Image

    if not figure.parent.is_dir():
        raise ValueError(f"{figure}: found no folder {figure.parent}, accepted: one that exists")
    model, data, classes = opened
    endings = Image.registered_extensions()
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in endings)
    if not files:
        raise ValueError(f"{folder}: found no image, accepted: a folder with images in it")
    every = -(-len(files) // images)
    targets = find_targets(model, classes, folder, files)
    batches = torch.stack([read_image(file, data) for file in files[::every]]).split(BATCH)
    loader: Iterable[Any] = batches
    if targets is not None:
        loader = list(zip(batches, targets[::every].split(BATCH), strict=True))
    result = scan(model, loader, orders, seed=seed, blocks=blocks)
    try:
        result.plot(figure)
        print(f"{figure}: written")
    except ImportError:
        print("no figure: matplotlib is not installed")


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
        parents.append(inside[0] if len(inside) > 1 else "")
    backbone: Any = getattr(model, "backbone", model)
    subset = infer_imagenet_subset(backbone)
    folder_names = [name.replace("/", "_") for name in classes]
    wordnet_names = ImageNetInfo(subset).label_names() if subset else []
    index_of: dict[str, int] = {}
    for names in (folder_names, wordnet_names):
        counts = Counter(names)  # two of ImageNet's classes are "crane"
        index_of |= {name: index for index, name in enumerate(names) if counts[name] == 1}
    folders = sorted(set(parents))
    if not index_of and "" not in folders and len(folders) == backbone.num_classes:
        index_of = {name: index for index, name in enumerate(folders)}
    for name in folders:
        if name not in index_of:
            known = ", ".join([*index_of][:SHOWN]) or f"{backbone.num_classes} folders, one a class"
            print(f"no accuracy: found images in {folder / name}, accepted: {known}")
            return None
    return torch.tensor([index_of[name] for name in parents])
