"""The processes of one training that torchrun started: ranks, sums over all, mean gradients."""

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def rank_and_world() -> tuple[int, int]:
    """This process's number and how many there are; (0, 1) outside torchrun."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def sum_over_processes(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over all processes."""
    if dist.is_initialized():
        for tensor in tensors:
            dist.all_reduce(tensor)


def barrier() -> None:
    """Wait until every process is here."""
    if dist.is_initialized():
        dist.barrier()


def parallel(step: nn.Module) -> nn.Module:
    """The module with gradients averaged over the processes after each backward pass.

    Layers that a route leaves out, and heads that a reading does not use, have no gradient: DDP
    looks for them at every step. Inputs are on the right device already (`device_ids` would move
    them and wait).
    """
    return (
        DistributedDataParallel(step, find_unused_parameters=True)
        if dist.is_initialized()
        else step
    )


def without_averaging(step: nn.Module, skip: bool) -> AbstractContextManager:
    """Within it, if `skip`, gradients stay in this process until the next pass outside of it."""
    return step.no_sync() if skip and isinstance(step, DistributedDataParallel) else nullcontext()


def start(cuda: bool) -> None:
    """Join the processes that torchrun started: NCCL on CUDA, one GPU each; gloo on a CPU."""
    if cuda:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
