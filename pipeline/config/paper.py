"""What a paper brings to the pipeline, as one object. Importing it needs no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, Literal, NamedTuple

from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Optimisation, PaperSection
from pipeline.config.variant import PLAIN, Variant

LEFT_OUT = "not run, `papers` in params.yaml leaves it out"
Reader = Literal["tables", "figures", "charts", "measures"]


class Work(NamedTuple):
    """Models of one kind, which a stage trains or runs: what `lsvit cost` counts."""

    stage: str
    name: str
    models: int
    preset: ModelPreset
    variant: Variant = PLAIN
    training: Optimisation | None = None  # options of each; None: the models are not trained
    passes: Sequence[int] = ()  # over images without training: how many layers each executes
    images: int | None = None  # of a pass, at most; None: all validation images
    sizes: tuple[int, int, int] | None = None  # train, validation, held out; None: the data set's


def find_label(variant: str, labels: Mapping[str, str]) -> str:
    """A variant's name in figures and tables: its label, or its key with hyphens."""
    return labels.get(variant, variant.replace("_", "-"))


@dataclass(frozen=True)
class VariantKey:
    """A key that a paper adds to the variants of params.yaml.

    `default` is the value of a variant without the key, and acts on nothing. `extension` is the
    "module:class" of the paper's :class:`pipeline.models.extensions.Extension` that acts on the
    key; jobs import it when a variant sets the key. `part` is what the extension attaches to a
    model that is no start for another one: the name that its tensors' names begin with.
    """

    name: str
    type: Any
    default: Any
    extension: str
    part: str = ""


@dataclass(frozen=True)
class Paper:
    """A paper: its folder `papers/<name>/`, what it declares, and where its parts are.

    Functions are given as "module:function" and modules by name; both are imported when they are
    used, so that importing a paper imports its sections alone.
    """

    name: str
    title: str
    sections: tuple[type[PaperSection], ...]
    rows: str  # the paper has results where results/<rows>.csv exists
    main: bool = False  # always runs; for given weights it runs alone unless others are asked for
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)  # of variants, by name
    without_colour: tuple[str, ...] = ()  # variants, or patterns, whose figures need none
    trained: tuple[str, ...] = ()  # folders of outs/ with its trainings, beside outs/<name>
    variant_keys: tuple[VariantKey, ...] = ()
    check: str | None = None  # (params) -> lines, one a mistake
    check_layers: str | None = None  # (params, num_layers of the chosen model) -> lines
    build: str | None = None  # (params, backbone) -> lines; makes the models on the meta device
    work: str | None = None  # (params, num_layers) -> list[Work]: what `lsvit cost` counts
    tables: str | None = None
    figures: str | None = None
    charts: str | None = None
    claims: str | None = None  # "package:file"
    measures: str | None = None

    def import_reader(self, reader: Reader) -> Any:
        """Import the module that reads the paper's results in this way; None if there is none."""
        place = getattr(self, reader)
        return resolve_name(place) if place else None

    def run(self, name: Literal["check", "check_layers", "build", "work"], *args: Any) -> list[Any]:
        """Import and run one of the paper's functions; [] if the paper does not have it."""
        place = getattr(self, name)
        return list(resolve_name(place)(*args)) if place else []
