"""The reproduction ledger: how a claim is decided on the result files, and the pages that say so.

A claim's rule (in a paper's claims.py) names a quantity with one value a seed, the range the claim says it lies in, and the range
outside which the claim is contradicted. The 95 % interval over the seeds decides; beside it stands what is left of the verdict when
all lines are corrected for their number (Holm).
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lsvit.routes import Order, count_routes
from pipeline.config.paper import Paper
from pipeline.jobs.rows import mean_rows
from pipeline.report.evaluations import label
from pipeline.report.results import Results
from pipeline.report.statistics import LEVEL, METHOD, Estimate, estimate, holm, n_to_decide, p_value
from pipeline.report.tables import console

VERDICTS = ("holds", "does not hold", "weaker here", "undecided", "not comparable", "not run")
HOLDS, FAILS, WEAKER, UNDECIDED, NOT_COMPARABLE, NOT_RUN = VERDICTS
PLURAL = {HOLDS: "hold", FAILS: "do not hold"}
RULES = (
    "Rules as of 2026-11-22: written when earlier results of the micro models, and one seed of a pre-trained ViT-S measured apart, were "
    "known; before the runs of vit_s14_56 and of scale hours. Those of layers on nodes as of 2026-11-23: written when the simulation's "
    "times were known, before any accuracy of LS there; how the scheduler waits, that nodes drop what nobody waits for, and that times and "
    "throughput are those of the steady load were changed afterwards. "
    "No range has moved since; the words of three rules, and the least spread of counts of few things, were corrected."
)
Range = tuple[float, float]
INF = math.inf
ABOVE_ZERO: Range = (0, INF)
SHARE: Range = (0, 100)
COLLAPSE: tuple[Range, Range] = (
    (-INF, 5),
    (-INF, 50),
)  # what is left, in %, where a paper says next to nothing; contradicted above
HOURS = "-S scale=hours"  # a claim's `run`
# (data-set preset, model preset) -> the paper's name of that cell
CELLS = {
    ("imagenet", "vit_b16"): ("ImageNet", "ViT-B/16"),
    ("imagenet", "deit_b16"): ("ImageNet", "DeiT-B dist."),
    ("cifar100", "vit_b16"): ("CIFAR-100", "ViT-B/16"),
    ("cifar100", "deit_b16"): ("CIFAR-100", "DeiT-B dist."),
}
FULL_SIZE = ("vit_b16", "deit_b16", "vit_b16_384")


class NotRun(Exception):
    """The results lack what a claim is about; the message says what."""


class CannotTell(NotRun):
    """They have it, and no more of it would tell."""


class NotComparable(NotRun):
    """They have it, for another data set or model than the published figure."""


class Evidence(Results):
    """The result files of one cell. Accessors give one value a seed, in the order of the seeds, or raise NotRun."""

    def __init__(self, folder: Path, papers: tuple[Paper, ...] = ()) -> None:
        super().__init__(folder, papers)
        self.orders: list[int] = []  # orders behind the values asked for since this was emptied
        self.variants: set[str] = set()  # whose accuracy was asked for, likewise
        self.asked: dict[str, set[str]] = {}  # the same by the id of the claim that asked

    @property
    def num_layers(self) -> int:
        """Of the chosen model."""
        return int(self.table("prune_eval")["keep"].max())

    def rows(self, name: str, what: str, **where: object) -> pd.DataFrame:
        """The rows of a table with these values in its columns, maybe none. Raises NotRun if it is empty: `what`, "exits are", it lacks."""
        rows = self.table(name)
        if rows.empty:
            raise NotRun(f"{what} not among the results")
        for column, value in where.items():
            rows = rows[rows[column] == value]
        return rows

    def by_seed(self, rows: pd.DataFrame, column: str, what: str) -> np.ndarray:
        """Mean of a column over the rows of each seed."""
        if rows.empty or rows[column].isna().any():
            raise NotRun(f"{what} is not among the results")
        return rows.groupby("seed", sort=False)[column].mean().to_numpy()

    def evaluations(self, variant: str, order: Order, keep: int | None) -> pd.DataFrame:
        """The rows of stage prune-eval behind a variant's accuracy with `keep` layers (None: all it has)."""
        self.variants.add(variant)
        rows = self.table("prune_eval")
        rows = rows[(rows["variant"] == variant) & (rows["order"] == order)]
        depth = rows["keep"].max()
        rows = mean_rows(rows[rows["keep"] == (depth if keep is None else keep)])
        if len(rows):
            drawn = int(rows.groupby("seed")["routes"].sum().iloc[0])
            self.orders.append(
                min(drawn, count_routes(depth, depth if keep is None else keep, order))
            )
        return rows

    def accuracy(self, variant: str, order: Order, keep: int | None = None) -> np.ndarray:
        """Accuracy in % with `keep` layers (default: all the variant has), mean over the routes."""
        what = f"{label(variant)}, {order}" + (f", {keep} layers" if keep else "")
        return 100 * self.by_seed(self.evaluations(variant, order, keep), "accuracy", what)

    def excess(self, values: np.ndarray, of: np.ndarray) -> np.ndarray:
        """Accuracy above chance in % of another accuracy above chance."""
        return 100 * (values - self.chance) / (of - self.chance)

    @property
    def is_published(self) -> bool:
        """Whether this is one of the paper's cells, at the paper's scale."""
        return (self.cell["dataset"], self.cell["model"]) in CELLS and self.cell[
            "scale"
        ] == "published"

    @property
    def is_full_size(self) -> bool:
        """Whether the model is one that papers use, trained as long as theirs."""
        return self.cell["model"] in FULL_SIZE and self.cell["scale"] == "published"

    def published_cell(self) -> tuple[str, str]:
        """The paper's name of this cell. Raises NotRun if it is none of the paper's."""
        key = (self.cell["dataset"], self.cell["model"])
        if not self.is_published:
            what = f"{' with '.join(key)} at scale {self.cell['scale']}"
            raise NotComparable(
                f"{what} is none of the paper's cells; the figure is shown for comparison"
            )
        return CELLS[key]


@dataclass(frozen=True)
class Claim:
    """One claim of a paper and the rule that decides it."""

    id: str
    source: str
    text: str
    published: str
    quantity: str  # what is measured, in words
    measure: Callable[
        [Evidence], np.ndarray | Estimate
    ]  # one value a seed, or the mean of one model over images
    holds: Range
    plausible: Range | None = None  # outside: contradicted; default: as `holds`
    unit: str = "points"
    centre: Callable[[Evidence], float] | None = (
        None  # what the ranges are relative to, for claims about one cell alone
    )
    middle: float = 0  # the centre, where it is no published figure
    scale: str = ""  # why a small model may not show it
    possible: Range = (-INF, INF)  # of the quantity; no interval leaves it
    step: Callable[[Evidence], float] | None = (
        None  # of a count of few things: the next value is so far away
    )
    run: str = ""  # what `dvc exp run` takes to make the results, where the default run does not
    quote: str = ""  # the sentence of the source, word for word; none for what is beyond it

    @property
    def rule(self) -> str:
        """The rule in words."""
        around = " around the published figure" if self.centre and not self.middle else ""
        holds, plausible = (
            (low + self.middle, high + self.middle)
            for low, high in (self.holds, self.plausible or self.holds)
        )
        text = f"holds if the interval of {self.quantity} lies {_within(holds, self.unit)}{around}, does not hold if "
        return text + f"it lies wholly {_outside(plausible, self.unit)}{around}"

    def judge(self, evidence: Evidence) -> dict[str, Any]:
        """The ledger entry: the claim, what was measured, the verdict and its reason."""
        evidence.orders, evidence.variants = [], set()
        evidence.asked[self.id] = evidence.variants
        entry: dict[str, Any] = {
            "id": self.id,
            "source": self.source,
            "claim": self.text,
            "published": self.published,
            "quantity": self.quantity,
            "rule": self.rule,
        }
        run, p = "", None
        value: dict[str, Any] | None = None
        try:
            with np.errstate(divide="ignore", invalid="ignore"):
                values = self.measure(evidence)
            step = self.step(evidence) if self.step else 0
            found, over = (
                (values, "images")
                if isinstance(values, Estimate)
                else (estimate(values, step), "seeds")
            )
            if not math.isfinite(found.mean):
                raise CannotTell("the quantity is a quotient by zero")
            low, high = np.clip((found.low, found.high), *self.possible)
            found = found._replace(low=low, high=high)
            value = {name: _rounded(number) for name, number in found._asdict().items()} | {
                "unit": self.unit,
                "over": over,
            }
            if over == "seeds":
                value["values"] = [_rounded(float(each)) for each in values]
            centre = self.centre(evidence) if self.centre else 0.0
            if found.n < 2:
                raise CannotTell("one seed, or one model, gives no interval")
            found = found._replace(mean=found.mean - centre, low=low - centre, high=high - centre)
            verdict, reason = self._verdict(found, over)
            p = round(p_value(found, self._nearest(found.mean)), 6)
            if self.scale and verdict in (FAILS, WEAKER) and not evidence.is_full_size:
                reason += f"; possible reason: {self.scale}"
        except NotRun as missing:
            verdict, reason = (
                NOT_COMPARABLE if isinstance(missing, NotComparable) else NOT_RUN,
                str(missing),
            )
            run = (
                f"uv run dvc exp run {self.run}"
                if self.run and not isinstance(missing, CannotTell)
                else ""
            )
        orders = (
            {"min": min(evidence.orders), "max": max(evidence.orders)} if evidence.orders else None
        )
        return entry | {
            "measured": value,
            "orders": orders,
            "verdict": verdict,
            "reason": reason,
            "run": run,
            "p": p,
        }

    def _nearest(self, mean: float) -> float:
        """The border nearest to a mean, but for those that nothing can lie beyond."""
        borders = {*self.holds, *(self.plausible or ())} - (
            {*self.possible} if self.centre is None else set()
        )
        return min(borders, key=lambda border: abs(border - mean))

    def _verdict(self, found: Estimate, over: str) -> tuple[str, str]:
        """The verdict on an interval, and the reason if it is not `holds`."""
        (least, most), low, high = self.plausible or self.holds, found.low, found.high
        if _inside(low, high, self.holds):
            return HOLDS, ""
        if high < least or low > most:
            return FAILS, "the interval lies wholly outside"
        if (least <= low and high < self.holds[0]) or (self.holds[1] < low and high <= most):
            return WEAKER, "between the two ranges"
        n = n_to_decide(found, self._nearest(found.mean))
        many = f"about {n}" if n else f"more than {20 * found.n}"
        return UNDECIDED, f"the interval includes a border; {many} {over} would probably decide"


def _inside(low: float, high: float, bounds: Range) -> bool:
    """Whether an interval lies in a range, whose border counts unless it is the only one: zero is not "above zero"."""
    least, most = bounds
    return (low > least if math.isinf(most) else low >= least) and (
        high < most if math.isinf(least) else high <= most
    )


def _rounded(number: float) -> float | None:
    return None if math.isnan(number) else round(number, 4)


def _within(bounds: Range, unit: str) -> str:
    low, high = bounds
    if math.isinf(high):
        return f"above {low:g} {unit}".strip()
    return (
        f"below {high:g} {unit}" if math.isinf(low) else f"between {low:g} and {high:g} {unit}"
    ).strip()


def _outside(bounds: Range, unit: str) -> str:
    low, high = bounds
    if math.isinf(high):
        return f"below {low:g} {unit}".strip()
    return (
        f"above {high:g} {unit}" if math.isinf(low) else f"outside {low:g} to {high:g} {unit}"
    ).strip()


def judge(evidence: Evidence) -> dict[str, Any]:
    """The ledger: every claim of the papers with rows among the evidence, judged on it."""
    head = {key: evidence.cell[key] for key in ("dataset", "model", "scale", "protocol", "seeds")}
    entries = [
        claim.judge(evidence) for module in evidence.readers("claims") for claim in module.CLAIMS
    ]
    corrected = iter(holm([entry["p"] for entry in entries if entry["p"] is not None]))
    for entry in entries:
        sure = entry["p"] is None or next(corrected) <= 1 - LEVEL
        entry["corrected"] = entry["verdict"] if sure else UNDECIDED
    return head | {
        "latin": evidence.cell["latin"],
        "interval": METHOD,
        "rules": RULES,
        "claims": entries,
    }


def headline(found: dict[str, Any], shown: Collection[str]) -> dict[str, Any]:
    """Few numbers for `dvc metrics` and MLflow: claims by verdict, and what was measured for some of them."""
    verdicts = [entry["verdict"] for entry in found["claims"]]
    measured = {
        entry["id"]: entry["measured"]["mean"]
        for entry in found["claims"]
        if entry["id"] in shown and entry["measured"]
    }
    return {"claims": {verdict: verdicts.count(verdict) for verdict in VERDICTS}} | measured


def show_value(entry: dict[str, Any]) -> str:
    """What was measured, in words: "12.3 [11.9, 12.7] points, n = 5"."""
    value = entry["measured"]
    if value is None:
        return "–"
    digits = 2 if value["unit"] else 3
    interval = (
        f" [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"
        if value["low"] is not None
        else ""
    )
    over = "" if value["over"] == "seeds" else f" {value['over']}"
    return (
        f"{value['mean']:.{digits}f}{interval} {value['unit']}".strip()
        + f", n = {value['n']}{over}"
    )


def show_orders(entry: dict[str, Any]) -> str:
    """How many different orders a seed is behind the value, in words: "20", "1 to 2000"."""
    orders = entry["orders"]
    return "–" if orders is None else " to ".join(map(str, dict.fromkeys(orders.values())))


def markdown(found: dict[str, Any]) -> str:
    """The ledger as a page."""
    lines = [
        "# Claims",
        "",
        f"Data set {found['dataset']}, model {found['model']}, scale {found['scale']}, protocol {found['protocol']}, "
        f"{len(found['seeds'])} seeds. "
        f"Measured: mean and {found['interval']} (or over images, where n says so). {_count(found)}. {found['rules']} In brackets: where "
        f"correcting all lines for their number (Holm) leaves a verdict undecided. {_forms(found)}",
        "",
        "| id | claim | published | what is measured | value | orders | verdict |",
        "|:--|:--|:--|:--|:--|:--|:--|",
    ]
    for entry in found["claims"]:
        verdict = f"**{entry['verdict']}**{_holm(entry)}" + (
            f": {entry['reason']}" if entry["reason"] else ""
        )
        verdict += f"; `{entry['run']}` runs it" if entry["run"] else ""
        cells = (
            entry["id"],
            entry["claim"],
            entry["published"],
            entry["quantity"],
            show_value(entry),
            show_orders(entry),
            verdict,
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Rules", ""] + [
        f"- `{entry['id']}` ({entry['source']}): {entry['rule']}." for entry in found["claims"]
    ]
    return "\n".join(lines) + "\n"


def show(found: dict[str, Any]) -> None:
    """Print the ledger as a table."""
    from rich.markup import escape
    from rich.table import Table

    colours = {
        HOLDS: "green",
        FAILS: "red",
        WEAKER: "yellow",
        UNDECIDED: "cyan",
        NOT_COMPARABLE: "dim",
        NOT_RUN: "dim",
    }
    title = f"{found['dataset']}, {found['model']}, {found['scale']}, protocol {found['protocol']}; measured: mean and {found['interval']}"
    table = Table(
        "claim",
        "published",
        "measured",
        "orders",
        "verdict",
        title=title,
        title_justify="left",
        show_lines=True,
    )
    for entry in found["claims"]:
        reason = f"\n[dim]{entry['reason']}[/]" if entry["reason"] else ""
        verdict = f"[{colours[entry['verdict']]}]{entry['verdict']}[/]{_holm(entry)}{reason}"
        claim = f"{entry['claim']}\n[dim]{entry['id']}: {entry['source']}[/]"
        table.add_row(
            claim,
            entry["published"],
            f"{escape(show_value(entry))}\n[dim]{entry['quantity']}[/]",
            show_orders(entry),
            verdict,
        )
    console(140).print(table, _count(found))


def _forms(found: dict[str, Any]) -> str:
    names = ", ".join(label(variant) for variant in found["latin"])
    return (
        f"Trained with Latin orders, other than published: {names}."
        if names
        else "Trained with one order a batch, as published."
    )


def _holm(entry: dict[str, Any]) -> str:
    return " (Holm: undecided)" if entry["corrected"] != entry["verdict"] else ""


def _count(found: dict[str, Any]) -> str:
    plain, corrected = (
        [entry[key] for entry in found["claims"]] for key in ("verdict", "corrected")
    )
    counts = ", ".join(
        f"{plain.count(verdict)} {PLURAL.get(verdict, verdict)}" for verdict in VERDICTS
    )
    return f"{len(plain)} claims: {counts}; after Holm's correction {corrected.count(HOLDS)} hold and {corrected.count(FAILS)} do not"
