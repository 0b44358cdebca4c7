"""The types that values of params.yaml have, and what every section shares. No torch here."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from pipeline.config.samplers import check_sampler


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number")
    return value


# PyYAML reads 1e-4 as text where DVC reads a number: text that spells a number is converted, true and false are not. Behind the bounds,
# which the JSON schema has then.
NUMBER = BeforeValidator(_number)
Float = Annotated[float, Field(allow_inf_nan=False), NUMBER]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER]
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), NUMBER]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), NUMBER]
Int = Annotated[int, NUMBER]
Count = Annotated[int, Field(ge=1), NUMBER]
Seed = Annotated[int, Field(ge=0), NUMBER]
Per = Literal["batch", "sample", "latin"]
Sampler = Annotated[str | dict[str, Any], BeforeValidator(check_sampler)]


class Section(BaseModel):
    """A part of params.yaml: immutable, unknown keys rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str] = ""
    merged: ClassVar[
        tuple[str, ...]
    ] = ()  # mappings of which a preset changes single keys; it replaces others
    within: ClassVar[dict[str, str]] = {}  # keys that are at most the number of images of a split

    def without_effect(self) -> set[str]:
        """Keys that change no result: names, and how much goes through the memory at once."""
        return set()

    def effective(self, defaults: bool = True) -> dict[str, Any]:
        """The values that can change a result, as JSON has them; without `defaults`, only those that are no field's default."""
        shown = {
            name: field
            for name, field in type(self).model_fields.items()
            if name not in self.without_effect()
        }
        if not defaults:
            shown = {
                n: f
                for n, f in shown.items()
                if f.is_required() or getattr(self, n) != f.get_default(call_default_factory=True)
            }
        return {name: _plain(getattr(self, name), defaults) for name in shown}


def _plain(value: Any, defaults: bool) -> Any:
    if isinstance(value, Section):
        return value.effective(defaults)
    if isinstance(value, dict):
        return {key: _plain(each, defaults) for key, each in value.items()}
    return [_plain(each, defaults) for each in value] if isinstance(value, list | tuple) else value


def _increasing(depths: list[int]) -> list[int]:
    if sorted(set(depths)) != depths:
        raise ValueError("depths in increasing order, each once")
    return depths


Depths = Annotated[list[Count], Field(min_length=1), AfterValidator(_increasing)]
