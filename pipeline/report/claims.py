"""The claims of the papers, as their `claims.yaml` states them."""

import math
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from pipeline.config.paper import Paper

Range = tuple[float, float]

# Effects up to this size count as none, by unit ("": R² and correlations). They were fixed before
# the runs that they decide. A claim may have its own.
MARGINS = {"points": 2.0, "%": 2.0, "": 0.05}


class Claim(BaseModel):
    """One claim of a paper and the rule that decides it.

    Attributes:
        id: names the claim in the ledger.
        source: the place in the paper. "beyond ..." makes it a question of our own.
        claim: what is claimed, in a sentence.
        published: the published figure, in words.
        effect: the smallest and the largest published figure, in the claim's unit, where there is
            one of this quantity. Default: that of `centre`.
        quote: the sentence of the source, word for word. None for what is beyond it.
        quantity: what is measured, in words.
        measure: the name of the function that measures it.
        arguments: of that function.
        minus: arguments with which the same function gives what is subtracted.
        holds: the range that the claim says the quantity lies in.
        plausible: the range outside which the claim is contradicted. Default: `holds`.
        margin: an effect up to this size counts as none. Default: MARGINS of the unit. A border at
            zero is moved there (:attr:`least_effect`).
        unit: of the quantity.
        centre: what the ranges are relative to, by data-set and model preset. Elsewhere the claim
            is not comparable.
        middle: the centre, where the paper gives one figure and the rule names it.
        possible: the range of all values that the quantity can have. No interval leaves it.
        reasons: why a model may not show it, by model preset.
        run: what `dvc exp run` takes to make the results, where the default run makes none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    source: str
    claim: str
    published: str
    effect: Range | None = None
    quote: str = ""
    quantity: str
    measure: str
    arguments: dict[str, Any] = {}
    minus: dict[str, Any] | None = None
    holds: Range
    plausible: Range | None = None
    margin: float | None = None
    unit: str = "points"
    centre: dict[str, dict[str, float]] = {}
    middle: float = 0
    possible: Range = (-math.inf, math.inf)
    reasons: dict[str, str] = {}
    run: str = ""

    @property
    def own(self) -> bool:
        """True if it is a question of our own, that no paper asks."""
        return self.source.startswith("beyond")

    @property
    def least_effect(self) -> float:
        """Up to where an effect counts as none: the margin.

        Zero where the ranges are around a published figure, or where a published effect is smaller
        than the margin: then the claim is about a sign alone.
        """
        margin = MARGINS.get(self.unit, 0.0) if self.margin is None else self.margin
        smallest = min(map(abs, self.effect)) if self.effect else math.inf
        return 0.0 if self.centre or smallest < margin else margin

    @property
    def holds_within(self) -> Range:
        """The range that the claim says the quantity lies in."""
        return self._from_least_effect(self.holds)

    @property
    def contradicted_outside(self) -> Range:
        """The range outside which the claim is contradicted."""
        return self._from_least_effect(self.plausible or self.holds)

    def _from_least_effect(self, bounds: Range) -> Range:
        """A range with its only border at zero, if there is one, moved to the least effect."""
        if bounds == (0, math.inf):
            return self.least_effect, math.inf
        if bounds == (-math.inf, 0):
            return -math.inf, -self.least_effect
        return bounds

    @property
    def rule(self) -> str:
        """The rule in words."""
        around = " around the published figure" if self.centre and not self.middle else ""
        within = _describe(self.holds_within, self.middle, self.unit, ("above", "below", "between"))
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
        headline: ids of the claims whose value `dvc metrics` shows.
        claims: in the order of the ledger.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rules: str = ""
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
    return ClaimFile.model_validate(yaml.safe_load((files(package) / name).read_text("utf-8")))
