"""The types that values of params.yaml have, and what every section shares. No torch here."""

import difflib
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from pipeline.config.samplers import PLAIN, Spec, split_spec


def refuse(key: str, value: Any, accepted: str) -> PydanticCustomError:
    """The error of a check across keys: the key below the section, its value, what is accepted."""
    context = {"key": key, "value": value, "accepted": accepted}
    return PydanticCustomError("refused", "{accepted}", context)


def _check_number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number")
    return value


# PyYAML reads 1e-4 as text where DVC reads a number: pydantic converts text that spells a number.
# It would take true and false too. NUMBER stands behind the bounds, which the schema then has.
NUMBER = BeforeValidator(_check_number)
Float = Annotated[FiniteFloat, NUMBER]
Positive = Annotated[FiniteFloat, Field(gt=0), NUMBER]
NonNegative = Annotated[FiniteFloat, Field(ge=0), NUMBER]
Fraction = Annotated[FiniteFloat, Field(ge=0, lt=1), NUMBER]
Share = Annotated[FiniteFloat, Field(ge=0, le=1), NUMBER]
Part = Annotated[FiniteFloat, Field(gt=0, le=1), NUMBER]
Count = Annotated[int, Field(ge=1), NUMBER]
Natural = Annotated[int, Field(ge=0), NUMBER]
Seed = Annotated[int, Field(ge=0, lt=10**9), NUMBER]  # scikit-learn takes none above 2**32 - 1
Per = Literal["batch", "sample", "latin"]
Layers = Annotated[list[Natural], Field(min_length=1)]
SCHEDULES = {"drop": ("constant", "linear"), "swap": ("growing",)}
PARAMETERS: dict[str, tuple[Any, str]] = {  # of samplers: the type, and how it is written
    "drop": (Fraction, "{drop: p} with 0 <= p < 1 (also schedule: constant or linear)"),
    "swap": (
        Annotated[float, Field(gt=0, lt=1), NUMBER] | Natural,
        "{swap: k}, a count or a share below 1 (also schedule: growing)",
    ),
    "order": (Layers, "{order: [layers]}"),
    "skip": (Layers, "{skip: [layers]}"),
    "fix_first": (Natural, "{fix_first: k}"),
    "fix_last": (Natural, "{fix_last: k}"),
}


def check_sampler(spec: Any) -> Spec:
    """Raises ValueError saying what is accepted."""
    if isinstance(spec, str) and spec in PLAIN:
        return spec
    keys = [str(key) for key in spec] if isinstance(spec, dict) else [str(spec)]
    if not isinstance(spec, dict) or not spec.keys() & PARAMETERS.keys():
        accepted = [*PLAIN, *(written for _, written in PARAMETERS.values())]
        near = difflib.get_close_matches("".join(keys[:1]), [*PLAIN, *PARAMETERS], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(", ".join(accepted) + hint)
    name, rest = split_spec(spec)
    kind, written = PARAMETERS[name]
    has_schedule = rest.get("schedule") in SCHEDULES.get(name, ())
    if set(rest) != ({"schedule"} if has_schedule else set()):
        raise ValueError(written)
    try:
        return {name: TypeAdapter(kind).validate_python(spec[name]), **rest}
    except ValidationError:
        raise ValueError(written) from None


Sampler = Annotated[Spec, BeforeValidator(check_sampler)]


@dataclass(frozen=True)
class NoEffect:
    """Marks a key that changes no result, such as how much goes through the memory at once.

    With `unless`, the key has an effect where that other key has one of `values`.
    """

    unless: str = ""
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Added:
    """Marks a key that came later: with `before`, finished jobs stay what they are.

    At this value the code does what it did without the key. Whatever the default is, or becomes.
    """

    before: Any


@dataclass(frozen=True)
class Merged:
    """Marks a mapping of which presets and scales change single keys; others they replace."""


@dataclass(frozen=True)
class AtMost:
    """Marks a key, or the numbers in its lists, that may not exceed what there is.

    `of` is a split ("train", "validation"), counted in images, or "layers" of the chosen model, or
    another key of the section. `less` is how much smaller the key must be than that.
    """

    of: str
    less: int = 0


Mark = TypeVar("Mark")
SectionT = TypeVar("SectionT", bound="Section")


class Section(BaseModel):
    """A part of params.yaml: immutable, unknown keys rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    name: ClassVar[str] = ""

    @classmethod
    def marks(cls, mark: type[Mark]) -> dict[str, Mark]:
        """The keys that are annotated with a mark of this type, and the marks."""
        return {
            key: data
            for key, field in cls.model_fields.items()
            for data in field.metadata
            if isinstance(data, mark)
        }

    def narrow(self, section: type[SectionT]) -> SectionT:
        """The keys that a smaller section has."""
        return section.model_validate({key: getattr(self, key) for key in section.model_fields})

    def effective(self) -> dict[str, Any]:
        """The values that can change a result, as JSON has them."""
        values: dict[str, Any] = {}
        added = self.marks(Added)
        no_effect = self.marks(NoEffect)
        for key in type(self).model_fields:
            value = getattr(self, key)
            if key in added and value == added[key].before:
                continue
            mark = no_effect.get(key)
            if mark and not (mark.unless and getattr(self, mark.unless) in mark.values):
                continue
            values[key] = _to_json(value)
        return values


def _to_json(value: Any) -> Any:
    if isinstance(value, Section):
        return value.effective()
    if isinstance(value, dict):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return value


def _check_increasing(depths: list[int]) -> list[int]:
    if sorted(set(depths)) != depths:
        raise ValueError("depths in increasing order, each once")
    return depths


Depths = Annotated[list[Count], Field(min_length=1), AfterValidator(_check_increasing)]
