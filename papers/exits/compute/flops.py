"""FLOPs of one image up to an early exit."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from papers.exits.branches import make_branch
from papers.exits.section import EXIT_COSTS, LAST_EXIT, BranchName, BranchSizes, ExitConfig
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import PLAIN, Variant
from pipeline.files import write_json
from pipeline.flops import ModelFlops, count, count_model, countable, meta_model
from pipeline.jobs.files import read_meta
from pipeline.models.tokens import TokenShape, token_shape


class ExitFlops(NamedTuple):
    """FLOPs of one image in a model and in each branch."""

    model: ModelFlops
    branches: dict[str, int]

    def at(self, branch: str, depth: int) -> int:
        """FLOPs up to and including the branch after `depth` blocks, or the model's own head.

        Raises:
            KeyError: the branch was not counted.
        """
        if branch == LAST_EXIT:
            return self.model.whole(depth)
        return self.model.embed + depth * self.model.block + self.branches[branch]


def count_branch(branch: BranchName, shape: TokenShape, outputs: int, sizes: BranchSizes) -> int:
    """FLOPs of a branch on one image's tokens (1, N, D). Raises UserError as `make_branch` does."""
    with torch.device("meta"):
        module = make_branch(branch, shape, outputs, sizes)
        tokens = torch.empty(1, shape.length, shape.width)
    return count(countable(module), tokens)


def count_exits(
    preset: ModelPreset,
    num_classes: int,
    branches: Sequence[BranchName],
    sizes: BranchSizes,
    variant: Variant = PLAIN,
) -> ExitFlops:
    """Count a variant of the preset's model and each of these branches.

    A branch has as many outputs as the model. What the paper's Table I lists as FLOPS up to an exit
    are multiply-adds: half of these.

    Raises:
        UserError: timm does not know the model, its tokens are no grid, or a branch does not fit.
    """
    model = meta_model(preset, num_classes, variant)
    if "predict" in model.position:  # an exit does not ask where layers are
        del model.position["predict"]
    shape = token_shape(model.backbone)
    outputs = model.backbone.num_classes
    counted: dict[str, int] = {}
    for branch in branches:
        counted[branch] = count_branch(branch, shape, outputs, sizes)
    return ExitFlops(count_model(model, preset), counted)


def write_flops(
    config: ExitConfig, data: Path, folder: Path, report: Callable[[dict], None]
) -> None:
    """Write `costs.json`: FLOPs up to every exit, lists by branch, in the order of the depths."""
    num_classes = len(read_meta(data)["classes"])
    options = config.options
    counted = count_exits(config.model, num_classes, options.branches, options, config.variant)
    depths = range(1, counted.model.num_layers + 1)
    flops = {}
    for branch in (*options.branches, LAST_EXIT):
        flops[branch] = [counted.at(branch, depth) for depth in depths]
    write_json(folder / EXIT_COSTS, flops)
    report({"cell": f"{len(flops)} kinds of exits"})
