"""What each process of scaling.py runs.

Epochs of the pipeline's own training loop, nothing else.
"""

import time
from collections.abc import Callable
from pathlib import Path

from pipeline.jobs.configs import TrainConfig
from pipeline.training.distributed import barrier
from pipeline.training.loop import Run, train_epoch


def timed(config: TrainConfig, data: Path, folder: Path, report: Callable[[dict], None]) -> None:
    """Report the seconds of every epoch, processes in step at its begin and its end."""
    run = Run(config, data, None, report)
    for epoch in range(1, config.options.epochs + 1):
        barrier()
        begin = time.perf_counter()
        train_epoch(run, epoch)
        barrier()
        report({"epoch": epoch, "seconds": time.perf_counter() - begin})
