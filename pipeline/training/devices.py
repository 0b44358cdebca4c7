"""How a model runs on a processor: device, precision, attention kernel, compiled blocks, determinism."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.backends import cuda as backends

from pipeline.errors import UserError
from pipeline.jobs.configs import WIDE



def pick_device(name: str) -> torch.device:
    """The device of a `device:` value; "auto" leaves out MPS, on which nothing was tested. Raises UserError if it is absent."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(name, True):
        raise UserError(
            f"device: found '{name}', but this machine has no {name.upper()} device; accepted here: auto, cpu"
        )
    return torch.device(name if name != "auto" else "cuda" if there["cuda"] else "cpu")


def sums_type(device: torch.device) -> torch.dtype:
    """In which sums over many images are kept: float64, which MPS does not have."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass(frozen=True)
class Execution:
    """How the passes of one model are executed; `why` is set where `auto` chose the precision."""

    device: torch.device
    precision: str  # fp32 | tf32 | bf16
    compiled: bool = False
    deterministic: bool = False
    why: str = ""

    @property
    def plain_attention(self) -> bool:
        """Unfused attention: on a CPU in bf16 it is faster, on CUDA its backward pass is the one that repeats bit for bit."""
        return self.deterministic if self.device.type == "cuda" else self.precision == "bf16"

    def context(self) -> torch.autocast:
        """Within it, forward passes run in this precision."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def __str__(self) -> str:
        on_gpu = self.device.type == "cuda"
        name = (
            torch.cuda.get_device_name(self.device)
            if on_gpu
            else torch.cpu.get_capabilities().get("cpu_name", self.device.type.upper())
        )
        parts = [str(name), self.precision + (f" (auto: {self.why})" if self.why else "")]
        parts += (
            ["unfused attention"] * self.plain_attention
            + ["compiled blocks"] * self.compiled
            + ["deterministic"] * self.deterministic
        )
        return ", ".join(parts)


def has_bf16(device: torch.device) -> bool:
    """Whether the processor has instructions of its own for bf16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return bool(
        capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or capabilities.get("bf16")
    )


def settle(
    device: torch.device,
    width: int,
    precision: str,
    compile: str = "none",
    deterministic: bool = False,
) -> Execution:
    """Settle `auto` values for a model of this width, and set what holds for the whole process.

    That is TF32, deterministic algorithms, and the attention kernel: checkpointed blocks run again outside of any context.

    Raises:
        UserError: the processor does not have the precision.
    """
    wide, why = width >= WIDE[device.type], ""
    if precision == "auto":
        if not wide:
            precision, why = "fp32", f"width {width} is below {WIDE[device.type]}"
        elif has_bf16(device):
            precision, why = "bf16", "wide, and the processor has bf16"
        else:
            precision, why = (
                ("tf32" if device.type == "cuda" else "fp32"),
                "the processor has no bf16 instructions",
            )
    elif precision == "tf32" and device.type != "cuda":
        raise UserError("precision: found 'tf32', accepted on a CPU: auto, fp32, bf16")
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"  # of the patch embedding, a convolution
    if deterministic:
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # read when cuBLAS starts, which it has not yet
    torch.use_deterministic_algorithms(deterministic)
    compiled = compile == "blocks" or (compile == "auto" and wide and device.type == "cuda")
    execution = Execution(device, precision, compiled, deterministic, why)
    for enable in (
        backends.enable_flash_sdp,
        backends.enable_mem_efficient_sdp,
        backends.enable_cudnn_sdp,
    ):  # CPUs heed them too
        enable(not execution.plain_attention)
    return execution


def compile_blocks(blocks: Iterable[nn.Module], backend: str | Callable = "inductor") -> None:
    """Compile every block alone. They share their code, so one compilation serves all of them, in any order."""
    for block in blocks:
        block.compile(backend=backend)
