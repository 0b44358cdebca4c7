"""The optimiser, the learning rate over a training, and when it stops."""

from collections.abc import Sequence
from typing import Any

import torch

from pipeline.config.sections import Optimisation


def make_optimizer(model: torch.nn.Module, options: Optimisation) -> torch.optim.Optimizer:
    """Adam or AdamW, one fused step for all parameters."""
    optimizer = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[options.optimizer]
    return optimizer(
        model.parameters(),
        lr=options.lr,
        betas=options.betas,
        eps=options.eps,
        weight_decay=options.weight_decay,
        fused=True,
    )


def make_scheduler(optimizer: torch.optim.Optimizer, options: Optimisation, steps: int) -> Any:
    """The learning rate over `steps` optimiser steps.

    Under `plateau` it is told a loss after every epoch instead.
    """
    schedulers = torch.optim.lr_scheduler
    if options.schedule == "plateau":
        return schedulers.ReduceLROnPlateau(
            optimizer,
            factor=options.plateau_factor,
            patience=options.plateau_patience,
            threshold=0.0,
        )
    if options.schedule == "linear":
        return schedulers.LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=steps)
    if options.schedule == "cosine":  # DeiT's; the first step of the warm-up has a rate above 0
        warm = steps * min(options.warmup_epochs, options.epochs - 1) // options.epochs
        parts = [
            schedulers.LinearLR(optimizer, 1 / (warm + 1), total_iters=warm),
            schedulers.CosineAnnealingLR(optimizer, steps - warm),
        ]
        return schedulers.SequentialLR(optimizer, parts, [warm])
    if options.schedule == "one_cycle" and steps > 1:  # a single one would begin near 0
        return schedulers.OneCycleLR(
            optimizer, max_lr=options.lr, total_steps=steps, cycle_momentum=False
        )
    return schedulers.ConstantLR(optimizer, factor=1.0)


def stops(losses: Sequence[float], patience: int | None) -> bool:
    """Early stopping: True if the last `patience` epochs brought no gain in the epochs' losses."""
    if patience is None or len(losses) <= patience:
        return False
    return min(losses[-patience:]) >= min(losses[:-patience])
