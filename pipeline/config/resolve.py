"""How a value of params.yaml is found among all the places that set it."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from pipeline.config.types import AtMost, Merged, Section
from pipeline.errors import UserError, describe_error

SectionT = TypeVar("SectionT", bound=Section)
Overrides = dict[str, Any]
Sizes = tuple[int, int, int]  # images to train on, to validate on, held out


class Value(NamedTuple):
    """An effective value and the place in params.yaml it comes from."""

    value: Any
    source: str
    written: Any = None  # what stands there, where it was lowered to the images there are


def merge(section: type[Section], layers: Mapping[str, Overrides]) -> dict[str, Value]:
    """The values of a section, each from the last of the places that sets it."""
    merged = section.marks(Merged)
    values: dict[str, Value] = {}
    for place, overrides in layers.items():
        for key, value in overrides.items():
            if key in merged and key in values and isinstance(value, dict):
                value = values[key].value | value
            values[key] = Value(value, place)
    return values


def lower(
    section: type[Section],
    values: dict[str, Value],
    sizes: Sizes | None,
    scale: str,
    names: Iterable[str],
) -> dict[str, Value]:
    """Lower the values that exceed the images there are, where a section or its scale sets them.

    What a preset or a variant sets stays, to be refused. `names` are those of the sections.
    """
    places = {*names, *(f"scales.{scale}.{name}" for name in names)}
    for key, bound in section.marks(AtMost).items():
        value, source, _ = values[key]
        if source not in places or not isinstance(value, int):
            continue
        if bound.of in values and values[bound.of].written is None:
            continue
        most = find_most(bound, values, sizes)
        if most is not None and value > most:
            values[key] = Value(most, source, written=value)
    return values


def find_most(bound: AtMost, values: dict[str, Value], sizes: Sizes | None) -> int | None:
    """The largest value that images or another key allow; None if it is not known here."""
    most: Any = None
    if bound.of in values:
        most = values[bound.of].value
    elif sizes and bound.of == "train":
        most = sizes[0]
        if "images" in values and isinstance(values["images"].value, int):
            most = min(most, values["images"].value)
    elif sizes and bound.of == "validation":
        most = sizes[1]
    return max(most - bound.less, 1) if isinstance(most, int) else None


def resolved(section: type[SectionT], values: dict[str, Value]) -> SectionT:
    """The section with these values. Raises UserError naming the places that wrong ones come
    from."""
    try:
        return section.model_validate({key: value.value for key, value in values.items()})
    except ValidationError as error:
        lines = []
        for details in error.errors():
            key = str(details["loc"][0]) if details["loc"] else ""
            # A check across keys has no place of its own: the first one stands for it.
            value = values.get(key, next(iter(values.values())))
            line = describe_error(details, section, value.source)
            if value.written is not None:
                line += f"; {value.written} was lowered to the images there are"
            lines.append(line)
        raise UserError("\n".join(dict.fromkeys(lines))) from None
