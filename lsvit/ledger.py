"""The reproduction ledger: how a claim is decided on the result files, and the pages that say so.

A claim's rule is written (in claims.py) before its result is looked at. It names a quantity with one value a seed, the range the claim
says it lies in, and the range outside which the claim is contradicted. The 95 % interval over the seeds decides.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lsvit.errors import UserError
from lsvit.params import BASELINE
from lsvit.routes import ORDERS, Order, count_routes
from lsvit.stats import METHOD, estimate
from lsvit.tables import CELLS, console, label, mean_rows

HOLDS, FAILS, NOT_REACHED, NOT_RUN = VERDICTS = ("holds", "does not hold", "not reached at this scale", "not run")
Range = tuple[float, float]


class NotRun(Exception):
    """The results lack what a claim is about; the message says what."""


def _table_if_any(path: Path) -> pd.DataFrame:
    """A result file of stage `exits`, `smoothing` or `inversion`; empty where the stage did not run, or not the part that fills it."""
    try:
        return pd.read_csv(path, dtype={"placement": str})
    except (FileNotFoundError, pd.errors.EmptyDataError):
        return pd.DataFrame()


class Evidence:
    """The result files of one cell. Accessors give one value a seed, in the order of the seeds, or raise NotRun."""

    def __init__(self, folder: Path) -> None:
        self.cell: dict[str, Any] = json.loads((folder / "cell.json").read_text())
        self.rows = pd.read_csv(folder / "prune_eval.csv", dtype={"route": str})
        self.samplers = pd.read_csv(folder / "samplers.csv")
        self.protocols = pd.read_csv(folder / "protocols.csv")
        self.analysis = json.loads((folder / "analysis.json").read_text())
        self.pretrain = pd.read_csv(folder / "pretrain.csv")
        self.exits, self.dynamic = (_table_if_any(folder / f"{name}.csv") for name in ("exits", "exits_dynamic"))
        self.smoothing = _table_if_any(folder / "smoothing.csv")
        self.inversion, self.class_images = (_table_if_any(folder / f"{name}.csv") for name in ("inversion", "class_images"))
        self.chance = 100 / self.cell["classes"]
        self.num_layers = int(self.rows["keep"].max())
        self.orders: list[int] = []  # orders behind the values asked for since this was emptied

    def _by_seed(self, rows: pd.DataFrame, column: str, what: str) -> np.ndarray:
        if rows.empty or rows[column].isna().any():
            raise NotRun(f"{what} is not among the results")
        return rows.groupby("seed", sort=False)[column].mean().to_numpy()

    def _cell(self, variant: str, order: Order, keep: int | None) -> pd.DataFrame:
        rows = self.rows[(self.rows["variant"] == variant) & (self.rows["order"] == order)]
        depth = rows["keep"].max()
        rows = mean_rows(rows[rows["keep"] == (depth if keep is None else keep)])
        if len(rows):
            drawn = int(rows.groupby("seed")["routes"].sum().iloc[0])
            self.orders.append(min(drawn, count_routes(depth, depth if keep is None else keep, order)))
        return rows

    def accuracy(self, variant: str, order: Order, keep: int | None = None) -> np.ndarray:
        """Accuracy in % with `keep` layers (default: all the variant has), mean over the routes."""
        what = f"{label(variant)}, {order}" + (f", {keep} layers" if keep else "")
        return 100 * self._by_seed(self._cell(variant, order, keep), "accuracy", what)

    def without(self, variant: str, order: Order, route: str) -> np.ndarray:
        """Accuracy in % with all layers, one route left out of the mean."""
        rows = self._cell(variant, order, None)
        if route not in set(rows["route"]):
            raise NotRun(f"{label(variant)}, {order}: its routes were not evaluated one by one")
        return 100 * self._by_seed(rows[rows["route"] != route], "accuracy", f"{label(variant)}, {order}")

    def starting_accuracy(self) -> float:
        """Accuracy in % of the starting weights in the original order, where this project trained them."""
        judges = [f"{judge}/sequential/loss" for judge in ("heldout", "validation") if f"{judge}/sequential/loss" in self.pretrain]
        if not judges:
            raise NotRun("the accuracy of the starting weights is not among the results")
        return 100 * self.pretrain.loc[self.pretrain[judges[0]].idxmin(), "validation/sequential/accuracy"]

    def position_accuracy(self) -> np.ndarray:
        """How often LS-pred names a layer's position under arbitrary orders, in %."""
        return 100 * self._by_seed(self._cell("ls_pred", "arbitrary", None), "position_accuracy", "LS-pred's position accuracy")

    def sampled(self, variant: str, sampler: str) -> np.ndarray:
        """Accuracy in % under a sampler, an order per image."""
        rows = self.samplers[(self.samplers["variant"] == variant) & (self.samplers["sampler"] == sampler)]
        if len(rows):
            self.orders.append(int(rows["images"].iloc[0]))
        return 100 * self._by_seed(rows, "accuracy", f"{label(variant)} under {sampler}")

    def number(self, model: str, name: str) -> np.ndarray:
        """A number of the analysis, in which every image has an order of its own."""
        if model not in self.analysis["models"]:
            raise NotRun(f"the analysis of {label(model)} is not among the results")
        self.orders.append(self.analysis["images"])
        return np.array(list(self.analysis["models"][model][name]["seeds"].values()))

    def excess(self, values: np.ndarray, of: np.ndarray) -> np.ndarray:
        """Accuracy above chance in % of another accuracy above chance."""
        return 100 * (values - self.chance) / (of - self.chance)

    def protocol_change(self) -> np.ndarray:
        """Largest change of a row of Table 1, in points, when held-out images choose the epoch."""
        if set(self.protocols["protocol"]) != {"paper", "heldout"}:
            raise NotRun("no images were held out")
        for order in ORDERS:
            self._cell(BASELINE, order, None)
        table = self.protocols.set_index(["protocol", "variant", "seed"])[["sequential", "arbitrary"]]
        change = (100 * (table.loc["heldout"] - table.loc["paper"])).abs().max(axis=1)
        return change.groupby("seed", sort=False).max().to_numpy()

    @property
    def is_published(self) -> bool:
        """Whether this is one of the paper's cells."""
        return (self.cell["dataset"], self.cell["model"]) in CELLS

    def published_cell(self) -> tuple[str, str]:
        """The paper's name of this cell. Raises NotRun if it is none of the paper's."""
        key = (self.cell["dataset"], self.cell["model"])
        if not self.is_published:
            raise NotRun(f"{' with '.join(key)} is none of the paper's cells; the figure is shown for comparison")
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


def judge(folder: Path, claims: Sequence[Claim]) -> dict[str, Any]:
    """The ledger: every claim judged on the result files of `folder`."""
    evidence = Evidence(folder)
    head = {key: evidence.cell[key] for key in ("dataset", "model", "protocol", "seeds")}
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
        f"Data set {found['dataset']}, model {found['model']}, protocol {found['protocol']}, {len(found['seeds'])} seeds. "
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
    title = f"{found['dataset']}, {found['model']}, protocol {found['protocol']}; measured: mean and {found['interval']}"
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
    """Whether two ledgers are about the same data set and model."""
    return all(found[key] == other[key] for key in ("dataset", "model"))


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
