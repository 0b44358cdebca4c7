"""The reproduction ledger: how a claim is decided on the result files, and the pages that say so.

A claim's rule (in a paper's claims.py) names a quantity with one value a seed, the range the claim says it lies in, and the range
outside which the claim is contradicted. The 95 % interval over the seeds decides.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lsvit.config.papers import rooms
from lsvit.errors import UserError
from lsvit.jobs.rows import mean_rows
from lsvit.report.evaluations import label
from lsvit.report.results import Results
from lsvit.report.statistics import METHOD, estimate
from lsvit.report.tables import console
from lsvit.routes import Order, count_routes

HOLDS, FAILS, NOT_REACHED, NOT_RUN = VERDICTS = ("holds", "does not hold", "not reached at this scale", "not run")
Range = tuple[float, float]
INF = math.inf
ABOVE_ZERO: Range = (0, INF)
# (data-set preset, model preset) -> the paper's name of that cell
CELLS = {
    ("imagenet", "vit_b16"): ("ImageNet", "ViT-B/16"),
    ("imagenet", "deit_b16"): ("ImageNet", "DeiT-B dist."),
    ("cifar100", "vit_b16"): ("CIFAR-100", "ViT-B/16"),
    ("cifar100", "deit_b16"): ("CIFAR-100", "DeiT-B dist."),
}


class NotRun(Exception):
    """The results lack what a claim is about; the message says what."""


class Evidence(Results):
    """The result files of one cell. Accessors give one value a seed, in the order of the seeds, or raise NotRun."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.orders: list[int] = []  # orders behind the values asked for since this was emptied

    @property
    def num_layers(self) -> int:
        """Of the chosen model."""
        return int(self.table("prune_eval")["keep"].max())

    def by_seed(self, rows: pd.DataFrame, column: str, what: str) -> np.ndarray:
        """Mean of a column over the rows of each seed."""
        if rows.empty or rows[column].isna().any():
            raise NotRun(f"{what} is not among the results")
        return rows.groupby("seed", sort=False)[column].mean().to_numpy()

    def evaluations(self, variant: str, order: Order, keep: int | None) -> pd.DataFrame:
        """The rows of stage prune-eval behind a variant's accuracy with `keep` layers (None: all it has)."""
        rows = self.table("prune_eval")
        rows = rows[(rows["variant"] == variant) & (rows["order"] == order)]
        depth = rows["keep"].max()
        rows = mean_rows(rows[rows["keep"] == (depth if keep is None else keep)])
        if len(rows):
            drawn = int(rows.groupby("seed")["routes"].sum().iloc[0])
            self.orders.append(min(drawn, count_routes(depth, depth if keep is None else keep, order)))
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
        return (self.cell["dataset"], self.cell["model"]) in CELLS and self.cell["scale"] == "published"

    def published_cell(self) -> tuple[str, str]:
        """The paper's name of this cell. Raises NotRun if it is none of the paper's."""
        key = (self.cell["dataset"], self.cell["model"])
        if not self.is_published:
            what = f"{' with '.join(key)} at scale {self.cell['scale']}"
            raise NotRun(f"{what} is none of the paper's cells; the figure is shown for comparison")
        return CELLS[key]


@dataclass(frozen=True)
class Claim:
    """One claim of a paper and the rule that decides it."""

    id: str
    source: str
    text: str
    published: str
    quantity: str  # what is measured, in words
    measure: Callable[[Evidence], np.ndarray]  # one value a seed
    holds: Range
    plausible: Range | None = None  # outside: contradicted; default: as `holds`
    unit: str = "points"
    centre: Callable[[Evidence], float] | None = None  # what the ranges are relative to, for claims about one cell alone
    scale: str = ""  # why a small model may not show it

    @property
    def rule(self) -> str:
        """The rule in words."""
        around = " around the published figure" if self.centre else ""
        text = f"holds if the interval of {self.quantity} lies {_within(self.holds, self.unit)}{around}, does not hold if "
        return text + f"it lies wholly {_outside(self.plausible or self.holds, self.unit)}{around}"

    def judge(self, evidence: Evidence) -> dict[str, Any]:
        """The ledger entry: the claim, what was measured, the verdict and its reason."""
        evidence.orders = []
        entry: dict[str, Any] = {"id": self.id, "source": self.source, "claim": self.text, "published": self.published,
                                 "quantity": self.quantity, "rule": self.rule}  # fmt: skip
        value, verdict, reason = None, NOT_RUN, ""
        try:
            with np.errstate(divide="ignore", invalid="ignore"):
                values = self.measure(evidence)
            if not np.isfinite(values).all():
                raise NotRun("the quantity is a quotient by zero")
            found = estimate(values)
            value = {name: _rounded(number) for name, number in found._asdict().items()} | {"unit": self.unit}
            centre = self.centre(evidence) if self.centre else 0.0
            if found.n < 2:
                raise NotRun("one seed, or one model, gives no interval")
            verdict, reason = self._verdict(found.low - centre, found.high - centre)
            if self.scale and verdict in (FAILS, NOT_REACHED) and not evidence.is_published:
                reason += f"; possible reason: {self.scale}"
        except NotRun as missing:
            reason = str(missing)
        orders = {"min": min(evidence.orders), "max": max(evidence.orders)} if evidence.orders else None
        return entry | {"measured": value, "orders": orders, "verdict": verdict, "reason": reason}

    def _verdict(self, low: float, high: float) -> tuple[str, str]:
        """The verdict on an interval, and the reason if it is not `holds`."""
        least, most = self.plausible or self.holds
        if _inside(low, high, self.holds):
            return HOLDS, ""
        if high < least or low > most:
            return FAILS, "the interval lies wholly outside"
        inside = (least <= low and high < self.holds[0]) or (self.holds[1] < low and high <= most)
        return NOT_REACHED, "between the two ranges" if inside else "the interval includes a border"


def _inside(low: float, high: float, bounds: Range) -> bool:
    """Whether an interval lies in a range, whose border counts unless it is the only one: zero is not "above zero"."""
    least, most = bounds
    return (low > least if math.isinf(most) else low >= least) and (high < most if math.isinf(least) else high <= most)


def _rounded(number: float) -> float | None:
    return None if math.isnan(number) else round(number, 4)


def _within(bounds: Range, unit: str) -> str:
    low, high = bounds
    if math.isinf(high):
        return f"above {low:g} {unit}".strip()
    return (f"below {high:g} {unit}" if math.isinf(low) else f"between {low:g} and {high:g} {unit}").strip()


def _outside(bounds: Range, unit: str) -> str:
    low, high = bounds
    if math.isinf(high):
        return f"below {low:g} {unit}".strip()
    return (f"above {high:g} {unit}" if math.isinf(low) else f"outside {low:g} to {high:g} {unit}").strip()


def all_claims() -> list[Claim]:
    """The claims of all papers."""
    return [claim for module in rooms("claims") for claim in module.CLAIMS]


def judge(folder: Path, claims: Sequence[Claim]) -> dict[str, Any]:
    """The ledger: every claim judged on the result files of `folder`."""
    evidence = Evidence(folder)
    head = {key: evidence.cell[key] for key in ("dataset", "model", "scale", "protocol", "seeds")}
    return head | {"interval": METHOD, "claims": [claim.judge(evidence) for claim in claims]}


def show_value(entry: dict[str, Any]) -> str:
    """What was measured, in words: "12.3 [11.9, 12.7] points, n = 5"."""
    value = entry["measured"]
    if value is None:
        return "–"
    digits = 2 if value["unit"] else 3
    interval = f" [{value['low']:.{digits}f}, {value['high']:.{digits}f}]" if value["low"] is not None else ""
    return f"{value['mean']:.{digits}f}{interval} {value['unit']}".strip() + f", n = {value['n']}"


def show_orders(entry: dict[str, Any]) -> str:
    """How many different orders a seed is behind the value, in words: "20", "1 to 2000"."""
    orders = entry["orders"]
    return "–" if orders is None else " to ".join(map(str, dict.fromkeys(orders.values())))


def markdown(found: dict[str, Any]) -> str:
    """The ledger as a page."""
    lines = [
        "# Claims", "",
        f"Data set {found['dataset']}, model {found['model']}, scale {found['scale']}, protocol {found['protocol']}, "
        f"{len(found['seeds'])} seeds. "
        f"Measured: mean and {found['interval']}. {_count(found)}.", "",
        "| id | claim | published | what is measured | value | orders | verdict |", "|:--|:--|:--|:--|:--|:--|:--|",
    ]  # fmt: skip
    for entry in found["claims"]:
        verdict = f"**{entry['verdict']}**" + (f": {entry['reason']}" if entry["reason"] else "")
        cells = (entry["id"], entry["claim"], entry["published"], entry["quantity"], show_value(entry), show_orders(entry), verdict)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Rules", ""] + [f"- `{entry['id']}` ({entry['source']}): {entry['rule']}." for entry in found["claims"]]
    return "\n".join(lines) + "\n"


def show(found: dict[str, Any]) -> None:
    """Print the ledger as a table."""
    from rich.markup import escape
    from rich.table import Table

    colours = {HOLDS: "green", FAILS: "red", NOT_REACHED: "yellow", NOT_RUN: "dim"}
    title = f"{found['dataset']}, {found['model']}, {found['scale']}, protocol {found['protocol']}; measured: mean and {found['interval']}"
    table = Table("claim", "published", "measured", "orders", "verdict", title=title, title_justify="left", show_lines=True)
    for entry in found["claims"]:
        verdict = f"[{colours[entry['verdict']]}]{entry['verdict']}[/]" + (f"\n[dim]{entry['reason']}[/]" if entry["reason"] else "")
        claim = f"{entry['claim']}\n[dim]{entry['id']}: {entry['source']}[/]"
        table.add_row(claim, entry["published"], f"{escape(show_value(entry))}\n[dim]{entry['quantity']}[/]", show_orders(entry), verdict)
    console(140).print(table, _count(found))


def _count(found: dict[str, Any]) -> str:
    verdicts = [entry["verdict"] for entry in found["claims"]]
    return f"{len(verdicts)} claims: " + ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS)


def changes(found: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Ids of the claims whose entries differ."""
    theirs = {entry["id"]: entry for entry in other["claims"]}
    return [entry["id"] for entry in found["claims"] if theirs.get(entry["id"]) != entry]


def same_cell(found: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two ledgers are about the same data set, model and scale."""
    return all(found[key] == other.get(key) for key in ("dataset", "model", "scale"))


def stopped_holding(found: dict[str, Any], committed: dict[str, Any]) -> list[str]:
    """Claims that held in the committed ledger of the same cell and no longer do."""
    now = {entry["id"]: entry["verdict"] for entry in found["claims"]}
    return [
        f"{entry['id']}: held in the committed ledger, now: {now.get(entry['id'], 'no such claim')}"
        for entry in committed["claims"]
        if entry["verdict"] == HOLDS and now.get(entry["id"]) != HOLDS
    ]


def edited(folder: str = "results") -> list[str]:
    """Result files that are not what dvc.lock says the stages wrote. Raises UserError if DVC cannot tell."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo() as repo:
            status = repo.status()
    except DvcException as error:
        raise UserError(f"DVC cannot tell what has changed: {error}") from None
    outs = [change["changed outs"] for stage in status.values() for change in stage if "changed outs" in change]
    found = {path: state for changed in outs for path, state in changed.items() if state != "not in cache"}
    return [f"{path}: {state} since its stage wrote it" for path, state in found.items() if path.startswith(f"{folder}/")]
