"""Weights that the second step of the layer-wise strategy starts from (multi-exit ViT, IV-B)."""

from collections.abc import Callable
from pathlib import Path

import torch

from lsvit.weights import BACKBONE, save_weights
from papers.exits.training import ExitTraining
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import WEIGHTS, read_meta
from pipeline.models.weights import build, read_tensors


@torch.no_grad()
def join(
    config: TrainConfig,
    data: Path,
    weights: Path,
    later: Path | None,
    folder: Path,
    report: Callable[[dict], None],
) -> None:
    """Write weights whose part up to the first exit is that of `weights`, the first step's.

    The later layers are those of the file `later`, or drawn from the seed.
    """
    torch.manual_seed(config.seed)
    model = build(config.model, len(read_meta(data)["classes"]), config.variant, later)
    ExitTraining(config.variant).freeze(model)
    first = read_tensors(weights)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.copy_(first[name.removeprefix(BACKBONE)])
    save_weights(model, folder / WEIGHTS)
    report({"text": "joined"})
