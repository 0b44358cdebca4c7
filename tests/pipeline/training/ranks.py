"""What the processes of test_distributed.py run."""

from collections.abc import Callable
from pathlib import Path

import torch

from pipeline.jobs.configs import TrainConfig
from pipeline.training.augmentation import Batch
from pipeline.training.devices import compile_blocks
from pipeline.training.distributed import parallel, rank_and_world
from pipeline.training.loop import TrainingStep, draw_route, freeze, train_step
from pipeline.training.scoring import open_model, open_split

STEPS, PATCHES = 3, 4


def gradients(
    config: TrainConfig, data: Path, folder: Path, report: Callable[[dict], None]
) -> None:
    """Write the gradients of a few steps, all from the same weights, to `gradients_<rank>.pt`."""
    torch.manual_seed(config.seed)
    model, execution = open_model(config, data, None)
    model.checkpointing = config.options.checkpointing
    freeze(model)
    if execution.compiled:
        compile_blocks(model.backbone.blocks, "aot_eager")
    split = open_split(config, data, "train", model)
    step = parallel(
        TrainingStep(model, config.options.position_weight, execution, config.variant.losses)
    )
    found = []
    batches = split.shuffled(config.options.batch_size, config.seed, 1, *rank_and_world())
    for i, (images, labels) in zip(range(STEPS), batches, strict=False):
        model.zero_grad()
        patches = (
            labels.unsqueeze(1).expand(-1, PATCHES) if config.variant.losses.mixing else None
        )  # nothing that processes draw
        train_step(
            step,
            Batch(images, labels, patches),
            draw_route(config, model.num_layers, 1, i),
            config.options,
        )
        found.append(
            {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        )
    torch.save(found, folder / f"gradients_{rank_and_world()[0]}.pt")
    report({"text": "done"})
