"""What every job, and what a training depends on. No torch here."""

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, SerializeAsAny

from pipeline.config.params import Engine
from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Optimisation
from pipeline.config.types import Added, NoEffect, Per, Section
from pipeline.config.variant import Variant, read_variant


def _with_papers_keys(variant: Any) -> Any:
    return read_variant(variant) if isinstance(variant, dict) else variant


AnyVariant = Annotated[SerializeAsAny[Variant], BeforeValidator(_with_papers_keys)]

# Width from which low precision and compiled blocks pay. CPU: with avx512_bf16 ViT-B/16 (768)
# trains and evaluates 1.8 times faster in bf16, width 64 at half the speed; between them nothing
# was measured. CUDA: ViT-S; narrower ones wait for kernel launches. MPS: nothing was measured.
WIDE = {"cpu": 768, "cuda": 384, "mps": math.inf}


class RunConfig(Section):
    """What every job depends on; the digests stand for the data and the weights."""

    title: Annotated[str, NoEffect()] = ""  # the variant's name
    dataset: Annotated[str, NoEffect()]
    model_name: Annotated[str, NoEffect()]
    model: ModelPreset
    variant: AnyVariant
    device: str
    engine: Annotated[Engine, NoEffect()] = "local"
    deterministic: bool = False
    portable: Annotated[bool, Added(False)] = True
    data_sha256: str
    weights_sha256: str | None

    def modules(self) -> tuple[str, ...]:
        """Modules that act on the model beside the job's own: of papers' keys of the variant."""
        return tuple(place.split(":")[0] for place in self.variant.extension_places())


class TrainConfig(RunConfig):
    """One training; `weights` are the starting weights."""

    options: Optimisation
    seed: int
    per: Per = "batch"  # what a random route is drawn for
    teacher: Annotated[AnyVariant | None, Added(None)] = None  # what the refined baseline is
    teacher_sha256: Annotated[str | None, Added(None)] = None
    world_size: int = 1  # processes of one training
    routes: Literal["shared", "own"] = "shared"  # by the processes

    @property
    def precision(self) -> str:
        """Of the training."""
        return self.options.precision


class MeasureConfig(RunConfig):
    """Something measured on one model; `weights` are the model's."""

    precision: str
