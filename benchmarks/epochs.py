"""What each process of scaling.py runs.

Epochs of the pipeline's own training loop, nothing else.
"""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from pipeline.jobs.configs import TrainConfig
from pipeline.training.augmentation import Augmentation
from pipeline.training.distributed import barrier, parallel
from pipeline.training.loop import TrainingStep, train_epoch
from pipeline.training.optimisation import make_optimizer, make_scheduler
from pipeline.training.scoring import open_model, open_split


def timed(config: TrainConfig, data: Path, folder: Path, report: Callable[[dict], None]) -> None:
    """Report the seconds of every epoch, processes in step at its begin and its end."""
    torch.set_num_threads(config.options.threads)
    model, execution = open_model(config, data, None)
    split = open_split(config, data, "train", model)
    optimizer = make_optimizer(model, config.options)
    scheduler = make_scheduler(optimizer, config.options, 1)
    step = parallel(TrainingStep(model, config.options.position_weight, execution))
    augment = Augmentation(config.variant, model.backbone, execution.device)
    for epoch in range(1, config.options.epochs + 1):
        barrier()
        begin = time.perf_counter()
        train_epoch(
            step, split, augment, config, model.num_layers, epoch, optimizer, scheduler, report
        )
        barrier()
        report({"epoch": epoch, "seconds": time.perf_counter() - begin})
