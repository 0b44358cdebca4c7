"""How a model runs on a processor: device, precision, attention, compilation, determinism."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.backends import cuda as backends

from pipeline.errors import UserError
from pipeline.jobs.configs import WIDE
from pipeline.jobs.portable import only_avx2

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}  # precisions of autocast


def pick_device(name: str) -> torch.device:
    """The device of a `device:` value. "auto" leaves out MPS, on which nothing was tested.

    Raises:
        UserError: this machine does not have it.
    """
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    available = {"cpu": True, "cuda": has_cuda, "mps": torch.backends.mps.is_available()}
    if not available[name]:
        raise UserError(
            f"device: found '{name}', but this machine has no {name.upper()} device; "
            "accepted here: auto, cpu"
        )
    return torch.device(name)


def sums_type(device: torch.device) -> torch.dtype:
    """In which sums over many images are kept: float64, which MPS does not have."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass(frozen=True)
class Execution:
    """How the passes of one model are executed; `why` is set where `auto` chose the precision."""

    device: torch.device
    precision: str  # fp32 | tf32 | bf16 | fp16
    compiled: bool = False
    deterministic: bool = False
    why: str = ""

    @property
    def plain_attention(self) -> bool:
        """True for unfused attention.

        On a CPU it is faster in bf16; on CUDA its backward pass repeats bit for bit.
        """
        return self.deterministic if self.device.type == "cuda" else self.precision == "bf16"

    def context(self) -> torch.autocast:
        """Within it, forward passes run in this precision."""
        half = HALF.get(self.precision)
        return torch.autocast(self.device.type, half, enabled=half is not None)

    def __str__(self) -> str:
        if self.device.type == "cuda":
            name = torch.cuda.get_device_name(self.device)
        else:
            name = self.device.type.upper()  # not which: execution.txt is the same on all
        parts = [name, f"{self.precision} (auto: {self.why})" if self.why else self.precision]
        if self.plain_attention:
            parts.append("unfused attention")
        if self.compiled:
            parts.append("compiled blocks")
        if self.deterministic:
            parts.append("deterministic")
        return ", ".join(parts)


def has_bf16(device: torch.device) -> bool:
    """True if the processor has instructions of its own for bf16, and may use them."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if only_avx2():
        return False
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def settle(
    device: torch.device,
    width: int,
    precision: str,
    compile: str = "none",
    deterministic: bool = False,
) -> Execution:
    """Settle `auto` values for a model of this width, and set what holds for the whole process.

    That is TF32, deterministic algorithms, and the attention kernel: checkpointed blocks run again
    outside of any context.

    Raises:
        UserError: the processor does not have the precision.
    """
    wide = width >= WIDE[device.type]
    why = ""
    if precision == "auto":
        if not wide:
            precision = "fp32"
            why = f"width {width} is below {WIDE[device.type]}"
        elif has_bf16(device):
            precision = "bf16"
            why = "wide, and the processor has bf16"
        else:
            precision = "tf32" if device.type == "cuda" else "fp32"
            why = "no bf16 instructions in use"
    elif precision == "tf32" and device.type != "cuda":
        raise UserError("precision: found 'tf32', accepted on a CPU: auto, fp32, bf16, fp16")
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"  # of the patch embedding, a convolution
    if deterministic:
        # cuBLAS reads it when it starts, which it has not yet.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    compiled = compile == "blocks" or (compile == "auto" and wide and device.type == "cuda")
    execution = Execution(device, precision, compiled, deterministic, why)
    fused = not execution.plain_attention
    backends.enable_flash_sdp(fused)  # CPUs heed them too
    backends.enable_mem_efficient_sdp(fused)
    backends.enable_cudnn_sdp(fused)
    return execution


def compile_blocks(blocks: Iterable[nn.Module], backend: str | Callable = "inductor") -> None:
    """Compile every block alone. They share their code: one compilation serves all."""
    for block in blocks:
        block.compile(backend=backend)
