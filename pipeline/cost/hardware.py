"""How fast named machines are, as `benchmarks/cost.py` measured them, and the time that counted work takes on them."""

from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from pipeline.errors import UserError

KNOWN_HARDWARE = Path("benchmarks/cost.json")


class Speed(BaseModel):
    """Constants of one process: seconds a batch, an operation, an element that one puts out; FLOP/s."""

    batch: float = Field(ge=0)
    operation: float = Field(ge=0)
    element: float = Field(ge=0)
    rate: float = Field(gt=0)


class Hardware(BaseModel):
    """A named machine of `benchmarks/cost.json`."""

    cores: int = 0
    gpus: int = 0
    training: Speed
    evaluation: Speed
    source: str

    def workers(self, threads: int) -> int:
        """Processes side by side, as `pipeline.jobs.pool` starts them: one a GPU, or one per `threads` cores."""
        return self.gpus or max(1, self.cores // threads)


def known_hardware(path: Path = KNOWN_HARDWARE) -> dict[str, Hardware]:
    """Named hardware and its constants. Raises UserError if the file is missing or is none of `benchmarks/cost.py`'s."""
    try:
        return TypeAdapter(dict[str, Hardware]).validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"{path}: not found; `python benchmarks/cost.py` makes it, or run in the repository's root"
        ) from None
    except ValidationError:
        raise UserError(
            f"{path}: not as `python benchmarks/cost.py` writes it; remove it and make it anew"
        ) from None


class Work(NamedTuple):
    """What one process runs of one kind: images, batches, and the operations, elements and FLOPs of their forward passes."""

    training: bool
    images: int
    batches: int
    operations: float
    elements: float
    flops: float  # of whole steps, if there is a backward pass
    to_input: bool = False  # each pass is followed by a backward pass to the input alone

    def seconds(self, hardware: Hardware) -> float:
        """Time on this hardware."""
        speed = hardware.training if self.training or self.to_input else hardware.evaluation
        return (
            self.batches * speed.batch
            + self.operations * speed.operation
            + self.elements * speed.element
            + self.flops / speed.rate
        )
