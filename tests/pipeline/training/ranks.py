"""What the processes of test_distributed.py run."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline.training import loop
from pipeline.training.devices import compile_blocks
from pipeline.training.distributed import rank_and_world
from pipeline.training.loop import Report, Run, draw_route
from pipeline.training.objectives import Batch
from pipeline.training.step import backward_in_parts

STEPS = 3
PATCHES = 4


def gradients(config: Any, data: Path, weights: None, folder: Path, report: Report) -> None:
    """Write the gradients of a few steps, all from the same weights, to `gradients_<rank>.pt`."""
    loop.compile_blocks = partial(compile_blocks, backend="aot_eager")
    rank, world = rank_and_world()
    run = Run(config, data, None, report)
    options = config.options
    found = []
    batches = run.train_split.shuffled(options.batch_size, config.seed, 1, rank, world)
    for i, (images, labels) in zip(range(STEPS), batches, strict=False):
        run.model.zero_grad()
        # Each patch has its image's label: nothing that processes draw.
        extras = {"patch_labels": labels.unsqueeze(1).expand(-1, PATCHES)}
        routes = draw_route(config, run.model.num_layers, 1, i)
        backward_in_parts(run.step, Batch(images, labels, extras), routes, options)
        parameters = run.model.named_parameters()
        found.append({name: p.grad.clone() for name, p in parameters if p.grad is not None})
    torch.save(found, folder / f"gradients_{rank}.pt")
    report({"text": "done"})
