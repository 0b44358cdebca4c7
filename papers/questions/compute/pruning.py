"""Models with fewer layers, chosen, merged or replaced in ways that calibration images decide."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from lsvit.routed import RoutedModel
from lsvit.routes import OneRoute, evaluation_routes, layers_of
from lsvit.weights import save_weights
from papers.questions.section import Pruning, PruningConfig, Row, Way, pruned_file, write_numbers
from pipeline.data.splits import Split
from pipeline.flops import count_variant
from pipeline.jobs.files import HELDOUT, read_meta
from pipeline.training.devices import Execution
from pipeline.training.scoring import Score, open_model, open_split, score

Blocks = list[nn.Module]
MERGED = 4  # layers that become one at a time, as in LaCo
UNFIT = ("random", "patch")  # ways whose models are not trained on: many, or no model of timm's


@dataclass
class Pruner:
    """Prunes one model in every way.

    Args:
        model: its blocks are exchanged, and stay as they are.
        images: for calibration.
        options: of the section.
        execution: how the model is run.
    """

    model: RoutedModel
    images: Split
    options: Pruning
    execution: Execution

    def __post_init__(self) -> None:
        self.blocks: Blocks = list(self.model.backbone.blocks)
        self.similarity = self.measure_similarity()

    def prune(self, way: Way) -> Iterator[tuple[int, list[Blocks]]]:
        """Give the numbers of layers kept, largest first, and what is left: several if random."""
        total = len(self.blocks)
        left = self.blocks
        for keep in sorted(self.options.keep, reverse=True):
            if way == "random":
                routes = evaluation_routes(
                    total, keep, "sequential", self.options.subsets, self.options.seed
                )
                yield keep, [[self.blocks[i] for i in layers_of(route)] for route in routes]
                continue
            if way == "first":
                left = self.blocks[:keep]
            elif way == "spaced":
                places = torch.linspace(0, total - 1, keep, dtype=torch.float64).round().int()
                left = [self.blocks[i] for i in places.tolist()]
            elif way == "influence":
                strongest = self.influence().argsort(descending=True, stable=True)[:keep]
                left = [self.blocks[i] for i in sorted(strongest.tolist())]
            elif way == "greedy":
                while len(left) > keep:
                    without = [left[:i] + left[i + 1 :] for i in range(len(left))]
                    left = min(without, key=lambda blocks: self.run(blocks, self.images).loss)
            elif way == "laco":
                while len(left) > keep:
                    left = self.merge_most_alike(left, min(MERGED, len(left) - keep + 1))
            else:
                left = self.patch(total - keep)
            yield keep, [left]

    def run(self, blocks: Blocks, images: Split) -> Score:
        """Run other blocks in the place of the model's."""
        self.model.backbone.blocks = nn.Sequential(*blocks)
        route = OneRoute(tuple(range(len(blocks))))
        return score(self.model, images, route, self.options.batch_size, self.execution)

    @torch.inference_mode()
    def states(self, blocks: Blocks) -> Iterator[list[Tensor]]:
        """By batch, the tokens (B, N, D) before each block and after the last."""
        self.model.eval()
        self.model.backbone.blocks = nn.Sequential(*blocks)
        for _, images, _ in self.images.in_order(self.options.batch_size):
            with self.execution.context():
                states = [state for _, state in self.model.states(images)]
            yield states

    def measure_similarity(self) -> Tensor:
        """Cosine of the tokens at two depths, mean over tokens and images: (L + 1, L + 1)."""
        depths = len(self.blocks) + 1
        sums = torch.zeros(depths, depths, dtype=torch.float64)
        for states in self.states(self.blocks):
            for i, before in enumerate(states):
                for j, after in enumerate(states[i + 1 :], i + 1):
                    cosine = cosine_similarity(before.float(), after.float(), dim=-1)
                    sums[i, j] += cosine.mean(1).sum().double().cpu()
        return sums / len(self.images)

    def influence(self) -> Tensor:
        """Block influence (ShortGPT, section 3.2): (L,)."""
        return 1 - self.similarity.diagonal(1)

    def merge_most_alike(self, blocks: Blocks, count: int) -> Blocks:
        """Merge that run of `count` blocks after which the last tokens are most like before."""
        ends = [states[-1] for states in self.states(self.blocks)]
        best = blocks
        most = -torch.inf
        for start in range(len(blocks) - count + 1):
            run = blocks[start : start + count]
            candidate = [*blocks[:start], collapse(run), *blocks[start + count :]]
            alike = 0.0
            for end, states in zip(ends, self.states(candidate), strict=True):
                cosine = cosine_similarity(end.float(), states[-1].float(), dim=-1)
                alike += cosine.mean(1).sum().item()
            if alike > most:
                best = candidate
                most = alike
        return best

    def patch(self, count: int) -> Blocks:
        """Replace those `count` blocks in a row that turn tokens least by an affine map."""
        start = int(self.similarity.diagonal(count).argmax())
        pairs = [(states[start], states[start + count]) for states in self.states(self.blocks)]
        linear = fit_linear(pairs).to(self.execution.device)
        return [*self.blocks[:start], linear, *self.blocks[start + count :]]


def collapse(blocks: Sequence[nn.Module]) -> nn.Module:
    """Merge blocks: the first one's weights, and what each later one differs from it by (LaCo)."""
    merged = deepcopy(blocks[0])
    first, *later = [block.state_dict() for block in blocks]
    merged.load_state_dict(
        {name: own + sum(other[name] - own for other in later) for name, own in first.items()}
    )
    return merged


def fit_linear(pairs: Sequence[tuple[Tensor, Tensor]]) -> nn.Linear:
    """Fit an affine map to batches of inputs and outputs (B, N, D), by least squares."""
    products: Tensor | float = 0.0
    targets: Tensor | float = 0.0
    for before, after in pairs:
        inputs = nn.functional.pad(before.flatten(0, 1).double().cpu(), (0, 1), value=1.0)
        products = products + inputs.T @ inputs
        targets = targets + inputs.T @ after.flatten(0, 1).double().cpu()
    solution = torch.linalg.lstsq(products, targets, driver="gelsd").solution  # (D + 1, D)
    linear = nn.Linear(*solution[:-1].shape)
    linear.weight.data = solution[:-1].T.float().contiguous()
    linear.bias.data = solution[-1].float()
    return linear


def evaluate(
    config: PruningConfig, data: Path, weights: Path, folder: Path, report: Callable[[dict], None]
) -> None:
    """Evaluate one model pruned in every way, in its original order.

    Writes `rows.csv`, a row a number, and for each number of layers the weights of the model with
    the least loss on the calibration images, of those that can be trained on. `chosen` is the way
    with the least such loss of all but random ones.
    """
    torch.set_num_threads(1)
    options = config.options
    model, execution = open_model(config, data, weights)
    report({"text": f"runs on {execution}"})
    meta = read_meta(data)
    source = HELDOUT if HELDOUT in meta["counts"] else "train"
    calibration = open_split(config, data, source, model, options.calibration)
    split = open_split(config, data, "validation", model, options.images)
    pruner = Pruner(model, calibration, options, execution)
    flops = count_variant(config.model, len(meta["classes"]), config.variant)
    tokens = next(pruner.states(pruner.blocks))[0].shape[1]
    depth = flops.num_layers
    rows: list[Row] = [
        ("whole", depth, "flops", flops.whole(depth)),
        ("whole", depth, "accuracy", pruner.run(pruner.blocks, split).accuracy),
    ]
    least: dict[int, tuple[float, float]] = {}  # by number of layers: loss, accuracy
    trainable: dict[int, float] = {}  # likewise, the loss
    for way in options.ways:
        for keep, pruned in pruner.prune(way):
            accuracy = fmean(pruner.run(blocks, split).accuracy for blocks in pruned)
            loss = fmean(pruner.run(blocks, calibration).loss for blocks in pruned)
            cost = flops.whole(keep)
            if way == "patch":
                cost += 2 * tokens * flops.width**2
            rows += [
                (way, keep, "accuracy", accuracy),
                (way, keep, "calibration_loss", loss),
                (way, keep, "flops", cost),
            ]
            if way != "random" and (keep not in least or loss < least[keep][0]):
                least[keep] = loss, accuracy
            if way not in UNFIT and loss < trainable.get(keep, torch.inf):
                trainable[keep] = loss
                save_weights(model, folder / pruned_file(keep))  # its last blocks
        report({"cell": way})
    rows += [("chosen", keep, "accuracy", accuracy) for keep, (_, accuracy) in least.items()]
    write_numbers(folder, rows, len(split))
