"""The reproduction ledger: how claims are decided on the result files, and the pages that say so.

A claim's measure gives one value a seed. The 95 % interval over the seeds decides, by the claim's
ranges. Beside the verdict stands what is left of it when all claims are corrected for their number
(Holm).
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Template

from pipeline.config.paper import LEFT_OUT
from pipeline.report.claims import MARGINS, Claim, Range, load_claims
from pipeline.report.evidence import (
    Counts,
    Evidence,
    NotComparable,
    NothingToTell,
    NotRun,
    NoVerdict,
    subtract,
)
from pipeline.report.statistics import LEVEL, METHOD, Estimate, estimate, holm, n_to_decide, p_value

if TYPE_CHECKING:
    from rich.table import Table

VERDICTS = ("holds", "does not hold", "weaker here", "undecided", "not comparable", "not run")
HOLDS, FAILS, WEAKER, UNDECIDED, NOT_COMPARABLE, NOT_RUN = VERDICTS
DECIDED = (HOLDS, FAILS, WEAKER)
ORDER = (FAILS, WEAKER, HOLDS, UNDECIDED, NOT_COMPARABLE, NOT_RUN)  # of a page's claims
UNITLESS = "of R², correlations and relative distances"
FAMILIES = ("claims of the papers", "questions of our own")
PAGE = Path(__file__).with_name("claims.md.j2")
PLURAL = {HOLDS: "hold", FAILS: "do not hold"}
COLOURS = {
    HOLDS: "green",
    FAILS: "red",
    WEAKER: "yellow",
    UNDECIDED: "cyan",
    NOT_COMPARABLE: "dim",
    NOT_RUN: "dim",
}
Measured = Counts | Estimate
Measures = Mapping[str, Callable[..., np.ndarray | Measured]]


def judge_claim(claim: Claim, measures: Measures, evidence: Evidence) -> dict[str, Any]:
    """Judge one claim.

    Args:
        claim: the claim.
        measures: functions of the evidence by name.
        evidence: the results of one cell.

    Returns:
        The ledger's entry: the claim, what was measured, the verdict and its reason.
    """
    evidence.orders = []
    measured: dict[str, Any] | None = None
    effect = None
    run = ""
    p = None
    try:
        values, interval = _measure(claim, measures, evidence)
        measured = _describe(claim, values, interval)
        centre = _centre(claim, evidence)
        if interval.n < 2:
            raise NothingToTell("one seed, or one model, gives no interval")
        distance = interval._replace(
            mean=interval.mean - centre, low=interval.low - centre, high=interval.high - centre
        )
        verdict, reason = _decide(claim, distance, measured["over"])
        p = round(p_value(distance, _nearest_border(claim, distance.mean)), 6)
        effect = _place_effect(claim, interval, centre)
        possible_reason = claim.reasons.get(evidence.cell["model"])
        if possible_reason and verdict in (FAILS, WEAKER):
            reason += f"; possible reason: {possible_reason}"
    except NoVerdict as missing:
        verdict = NOT_COMPARABLE if isinstance(missing, NotComparable) else NOT_RUN
        reason = str(missing)
        if claim.run and not isinstance(missing, NothingToTell):
            run = f"uv run dvc exp run {claim.run}"
    orders = evidence.orders
    return {
        "id": claim.id,
        "source": claim.source,
        "own": claim.own,
        "claim": claim.claim,
        "published": claim.published,
        "effect": effect,
        "quantity": claim.quantity,
        "rule": claim.rule,
        "measured": measured,
        "orders": {"min": min(orders), "max": max(orders)} if orders else None,
        "verdict": verdict,
        "reason": reason,
        "run": run,
        "p": p,
    }


def _measure(claim: Claim, measures: Measures, evidence: Evidence) -> tuple[Measured, Estimate]:
    """What the claim's quantity is measured as, its mean and interval within what is possible.

    Raises:
        NothingToTell: there is no mean.
    """
    measure: Any = measures[claim.measure]
    with np.errstate(divide="ignore", invalid="ignore"):
        values = measure(evidence, **claim.arguments)
        if claim.minus is not None:
            values = subtract(values, measure(evidence, **(claim.arguments | claim.minus)))
    if not isinstance(values, Measured):
        values = Counts(values)
    interval = values if isinstance(values, Estimate) else estimate(*values)
    if not math.isfinite(interval.mean):
        raise NothingToTell("the quantity is a quotient by zero")
    low, high = np.clip((interval.low, interval.high), *claim.possible)
    return values, interval._replace(low=low, high=high)


def _refuse_left_out(*_: object, **__: object) -> Measured:
    """Raise NotRun, of a paper that was left out."""
    raise NotRun(LEFT_OUT)


def _describe(claim: Claim, values: Measured, interval: Estimate) -> dict[str, Any]:
    """What was measured, as the ledger's file has it."""
    record: dict[str, Any] = {name: _round(number) for name, number in interval._asdict().items()}
    record["unit"] = claim.unit
    if isinstance(values, Estimate):
        return record | {"over": "images"}
    by_seed = [_round(float(value)) for value in values.values]
    return record | {"over": "seeds", "values": by_seed}


def _round(number: float) -> float | None:
    return None if math.isnan(number) else round(number, 4)


def _centre(claim: Claim, evidence: Evidence) -> float:
    """What the claim's ranges are relative to.

    Raises:
        NotComparable: the published figure is about other data sets or models.
    """
    if not claim.centre:
        return 0.0
    dataset, model, scale = (evidence.cell[key] for key in ("dataset", "model", "scale"))
    if scale != "published":
        raise NotComparable(
            f"{dataset} with {model} at scale {scale} is none of the paper's cells; "
            "the figure is shown for comparison"
        )
    figure = claim.centre.get(dataset, {}).get(model)
    if figure is None:
        cells = [f"{data} with {name}" for data, names in claim.centre.items() for name in names]
        raise NotComparable(f"the figure is about {', '.join(cells)}")
    return figure


def _place_effect(claim: Claim, interval: Estimate, centre: float) -> str | None:
    """Where the interval lies: "inside" the published effects, "below" or "above" them.

    It is inside if it shares a value with them. None if no figure is published.
    """
    published = claim.effect
    if claim.centre and not published:
        published = (centre, centre)
    if not published:
        return None
    if interval.high < published[0]:
        return "below"
    return "above" if interval.low > published[1] else "inside"


def _nearest_border(claim: Claim, mean: float) -> float:
    """The border nearest to a mean, but for those that nothing can lie beyond."""
    borders = {*claim.holds_within, *claim.contradicted_outside}
    if not claim.centre:
        borders -= {*claim.possible}
    return min(borders, key=lambda border: abs(border - mean))


def _decide(claim: Claim, interval: Estimate, over: str) -> tuple[str, str]:
    """The verdict on an interval, and the reason if it is not `holds`."""
    low, high = interval.low, interval.high
    least, most = claim.contradicted_outside
    if _is_inside(low, high, claim.holds_within):
        return HOLDS, ""
    if high < least or low > most:
        margin = claim.least_effect
        if -margin <= low and high <= margin and not claim.holds[0] < 0 < claim.holds[1]:
            return FAILS, f"equivalent within {margin:g} {claim.unit}".strip()
        return FAILS, "the interval lies wholly outside"
    below = least <= low and high < claim.holds_within[0]
    above = claim.holds_within[1] < low and high <= most
    if below or above:
        return WEAKER, "between the two ranges"
    n = n_to_decide(interval, _nearest_border(claim, interval.mean))
    number = f"about {n}" if n else f"more than {20 * interval.n}"
    return UNDECIDED, f"the interval includes a border; {number} {over} would probably decide"


def _is_inside(low: float, high: float, bounds: Range) -> bool:
    """True if an interval lies in a range.

    A border belongs to the range unless it is the only one: zero is not "above zero".
    """
    least, most = bounds
    above = low > least if math.isinf(most) else low >= least
    below = high < most if math.isinf(least) else high <= most
    return above and below


def judge(evidence: Evidence) -> dict[str, Any]:
    """The ledger: every claim of the papers with rows among the evidence, judged on it."""
    entries = []
    run = [paper.name for paper in evidence.papers_here() if evidence.has_run(paper)]
    for paper in evidence.papers_here():
        measures = paper.import_reader("measures").MEASURES
        if paper.name not in run:
            measures = dict.fromkeys(measures, _refuse_left_out)
        for claim in load_claims(paper).claims:
            entry = judge_claim(claim, measures, evidence)
            if paper.name not in run:
                names = ",".join([*run, paper.name])
                command = f"uv run dvc exp run -S 'papers=[{names}]' {claim.run}"
                entry["run"] = command.strip()
            entries.append(entry)
    head = ("dataset", "model", "scale", "protocol", "seeds", "latin")
    ledger = {key: evidence.cell[key] for key in head} | {
        "interval": METHOD,
        "rules": " ".join(filter(None, (load_claims(paper).rules for paper in evidence.papers))),
        "claims": entries,
    }
    correct(ledger)
    return ledger


def by_id(ledger: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries by the ids of their claims."""
    return {entry["id"]: entry for entry in ledger["claims"]}


def families(ledger: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The entries of the papers' claims and of our own questions, by FAMILIES."""
    published, own = FAMILIES
    return {
        published: [entry for entry in ledger["claims"] if not entry["own"]],
        own: [entry for entry in ledger["claims"] if entry["own"]],
    }


def count_verdicts(entries: list[dict[str, Any]], key: str = "verdict") -> dict[str, int]:
    """Entries by verdict, or by what is left of it ("corrected")."""
    found = [entry[key] for entry in entries]
    return {verdict: found.count(verdict) for verdict in VERDICTS}


def by_verdict(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort entries: those that do not hold come first."""
    return sorted(entries, key=lambda entry: ORDER.index(entry["verdict"]))


def correct(ledger: dict[str, Any]) -> None:
    """Add to the entries what is left of their verdicts after Holm's correction of each family."""
    for family in families(ledger).values():
        with_p = [entry for entry in family if entry["p"] is not None]
        for entry in family:
            entry["corrected"] = entry["verdict"]
        for entry, p in zip(with_p, holm([entry["p"] for entry in with_p]), strict=True):
            if p > 1 - LEVEL:
                entry["corrected"] = UNDECIDED


def headline(ledger: dict[str, Any], shown: Collection[str]) -> dict[str, Any]:
    """Few numbers for `dvc metrics` and MLflow: verdicts by family, means of some claims."""
    numbers: dict[str, Any] = {
        name: count_verdicts(family) for name, family in families(ledger).items()
    }
    for entry in ledger["claims"]:
        if entry["id"] in shown and entry["measured"]:
            numbers[entry["id"]] = entry["measured"]["mean"]
    return numbers


def show_value(entry: dict[str, Any]) -> str:
    """What was measured, in words: "12.3 [11.9, 12.7] points, n = 5"."""
    value = entry["measured"]
    if value is None:
        return "–"
    digits = 2 if value["unit"] else 3
    text = f"{value['mean']:.{digits}f}"
    if value["low"] is not None:
        text += f" [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"
    text = f"{text} {value['unit']}".strip() + f", n = {value['n']}"
    return text if value["over"] == "seeds" else f"{text} {value['over']}"


def show_effect(entry: dict[str, Any]) -> str:
    """Whether the published effect lies inside the interval, in words."""
    where = entry["effect"]
    if where is None:
        return "–"
    return "inside the interval" if where == "inside" else f"outside: the interval is {where} it"


def show_orders(entry: dict[str, Any]) -> str:
    """How many different orders a seed is behind the value, in words: "20", "1 to 2000"."""
    if entry["orders"] is None:
        return "–"
    least, most = entry["orders"]["min"], entry["orders"]["max"]
    return str(least) if least == most else f"{least} to {most}"


def markdown(
    ledger: dict[str, Any],
    label: Callable[[str], str],
    cells: Mapping[str, dict[str, Any]] | None = None,
) -> str:
    """The ledger as a page.

    Args:
        ledger: of one cell.
        label: names a variant.
        cells: ledgers of other cells by the folders' names, for the table of what they decide
            differently. None: the page has no such table.
    """
    ledgers = [ledger, *(cells or {}).values()]
    template = Template(PAGE.read_text("utf-8"), trim_blocks=True, keep_trailing_newline=True)
    return template.render(
        ledger=ledger,
        cells=cells,
        different=decided_differently(*ledgers),
        margins=", ".join(f"{size:g} {unit or UNITLESS}" for unit, size in MARGINS.items()),
        count=_count(ledger),
        families={name: by_verdict(entries) for name, entries in families(ledger).items()},
        latin=[label(variant) for variant in ledger["latin"]],
        value=show_value,
        effect=show_effect,
        orders=show_orders,
        holm=_holm,
    )


def decided_differently(*ledgers: dict[str, Any]) -> list[list[dict[str, Any] | None]]:
    """The claims of the first ledger that two of the ledgers both decide, and not alike.

    Returns:
        For each such claim its entries, one a ledger. None where the ledger lacks the claim.
    """
    different = []
    tables = [by_id(ledger) for ledger in ledgers]
    for name in tables[0]:
        entries = [table.get(name) for table in tables]
        verdicts = {entry["verdict"] for entry in entries if entry}
        if len(verdicts.intersection(DECIDED)) > 1:
            different.append(entries)
    return different


def tabulate(ledger: dict[str, Any], only: Collection[str]) -> tuple["Table", str]:
    """The ledger as a table to print, and its count of verdicts.

    The table has the claims with the ids `only`. All are counted.
    """
    from rich.markup import escape
    from rich.table import Table

    cell = ", ".join(ledger[key] for key in ("dataset", "model", "scale"))
    title = f"{cell}, protocol {ledger['protocol']}; measured: mean and {ledger['interval']}"
    columns = ("claim", "published", "measured", "published effect", "orders", "verdict")
    table = Table(title=title, title_justify="left", show_lines=True)
    entries = [entry for entry in by_verdict(ledger["claims"]) if entry["id"] in only]
    for column in columns:
        table.add_column(column, overflow="fold")
    id_width = max((len(entry["id"]) for entry in entries), default=0)
    table.columns[0].min_width = id_width + 1  # an id is not cut off
    for entry in entries:
        verdict = f"[{COLOURS[entry['verdict']]}]{entry['verdict']}[/]{_holm(entry)}"
        if entry["reason"]:
            verdict += f"\n[dim]{entry['reason']}[/]"
        table.add_row(
            f"{entry['claim']}\n[dim]{entry['id']}: {entry['source']}[/]",
            entry["published"],
            f"{escape(show_value(entry))}\n[dim]{entry['quantity']}[/]",
            show_effect(entry),
            show_orders(entry),
            verdict,
        )
    return table, f"in all: {_count(ledger)}"


def _holm(entry: dict[str, Any]) -> str:
    return " (Holm: undecided)" if entry["corrected"] != entry["verdict"] else ""


def _count(ledger: dict[str, Any]) -> str:
    """The verdicts of each family, in words."""
    sentences = []
    for name, family in families(ledger).items():
        counts = [
            f"{count} {PLURAL.get(word, word)}" for word, count in count_verdicts(family).items()
        ]
        corrected = count_verdicts(family, "corrected")
        sentences.append(
            f"{len(family)} {name}: {', '.join(counts)}; after Holm's correction "
            f"{corrected[HOLDS]} hold and {corrected[FAILS]} do not"
        )
    return ". ".join(sentences)
