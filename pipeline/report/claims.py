"""The claims of the papers, as their `claims.yaml` states them."""

import math
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from pipeline.config.paper import Paper

Range = tuple[float, float]


class Claim(BaseModel):
    """One claim of a paper and the rule that decides it.

    Attributes:
        id: names the claim in the ledger.
        source: the place in the paper, or "beyond the paper".
        claim: what is claimed, in a sentence.
        published: the published figure, in words.
        quote: the sentence of the source, word for word. None for what is beyond it.
        quantity: what is measured, in words.
        measure: the name of the function that measures it.
        arguments: of that function.
        minus: arguments with which the same function gives what is subtracted.
        holds: the range that the claim says the quantity lies in.
        plausible: the range outside which the claim is contradicted. Default: `holds`.
        unit: of the quantity.
        centre: what the ranges are relative to, by data-set and model preset. Elsewhere the claim
            is not comparable.
        middle: the centre, where the paper gives one figure and the rule names it.
        possible: the range of all values that the quantity can have. No interval leaves it.
        scale: why a small model may not show it.
        run: what `dvc exp run` takes to make the results, where the default run makes none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    source: str
    claim: str
    published: str
    quote: str = ""
    quantity: str
    measure: str
    arguments: dict[str, Any] = {}
    minus: dict[str, Any] | None = None
    holds: Range
    plausible: Range | None = None
    unit: str = "points"
    centre: dict[str, dict[str, float]] = {}
    middle: float = 0
    possible: Range = (-math.inf, math.inf)
    scale: str = ""
    run: str = ""

    @property
    def contradicted_outside(self) -> Range:
        """The range outside which the claim is contradicted."""
        return self.plausible or self.holds

    @property
    def rule(self) -> str:
        """The rule in words."""
        around = " around the published figure" if self.centre and not self.middle else ""
        within = _describe(self.holds, self.middle, self.unit, ("above", "below", "between"))
        outside = _describe(
            self.contradicted_outside, self.middle, self.unit, ("below", "above", "outside")
        )
        return (
            f"holds if the interval of {self.quantity} lies {within}{around}, "
            f"does not hold if it lies wholly {outside}{around}"
        )


def _describe(bounds: Range, middle: float, unit: str, words: tuple[str, str, str]) -> str:
    """A range in words: "above 5 points", "between 0 and 5 points", "outside 0 to 5 points"."""
    low, high = bounds[0] + middle, bounds[1] + middle
    from_low, from_high, from_both = words
    if math.isinf(high):
        text = f"{from_low} {low:g}"
    elif math.isinf(low):
        text = f"{from_high} {high:g}"
    else:
        to = "and" if from_both == "between" else "to"
        text = f"{from_both} {low:g} {to} {high:g}"
    return f"{text} {unit}".strip()


class ClaimFile(BaseModel):
    """The claims of a paper.

    Attributes:
        rules: when the rules were written, and what was known by then.
        full_size: model presets of the size that papers use, at scale `published`.
        headline: ids of the claims whose value `dvc metrics` shows.
        claims: in the order of the ledger.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rules: str = ""
    full_size: tuple[str, ...] = ()
    headline: tuple[str, ...] = ()
    claims: tuple[Claim, ...]


@cache
def load_claims(paper: Paper) -> ClaimFile:
    """Read the claims of a paper.

    Raises:
        pydantic.ValidationError: a key is missing, unknown or of another type.
    """
    if paper.claims is None:
        return ClaimFile(claims=())
    package, _, name = paper.claims.partition(":")
    return ClaimFile.model_validate(yaml.safe_load((files(package) / name).read_text()))
