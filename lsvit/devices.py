"""How a model runs on a processor: device, precision."""

import torch

from lsvit.errors import UserError


def pick_device(name: str) -> torch.device:
    """The device of a `device:` value. Raises UserError if CUDA is asked for and absent."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device: found 'cuda', but this machine has no CUDA device; accepted here: auto, cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The autocast context of a `precision:` value (fp32 or bf16)."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
