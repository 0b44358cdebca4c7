"""The reproduction ledger: how a claim is decided on the result files, and the pages that say so.

A claim's rule (in a paper's claims.py) names a quantity with one value a seed, the range the claim says it lies in, and the range
outside which the claim is contradicted. The 95 % interval over the seeds decides; beside it stands what is left of the verdict when
all lines are corrected for their number (Holm).
"""

import json
import math
import subprocess
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lsvit.errors import UserError
from lsvit.jobs.rows import mean_rows
from lsvit.report.evaluations import label
from lsvit.report.results import Results
from lsvit.report.statistics import LEVEL, METHOD, Estimate, estimate, holm, n_to_decide, p_value
from lsvit.report.tables import console
from lsvit.routes import Order, count_routes

HOLDS, FAILS, WEAKER, UNDECIDED, NOT_RUN = VERDICTS = ("holds", "does not hold", "weaker here", "undecided", "not run")
RULES = (
    "Rules as of 2026-11-22: written when earlier results of the micro models, and one seed of a pre-trained ViT-S measured apart, were "
    "known; before the runs of vit_s14_56 and of scale hours."
)
Range = tuple[float, float]
INF = math.inf
ABOVE_ZERO: Range = (0, INF)
SHARE: Range = (0, 100)
COLLAPSE: tuple[Range, Range] = (-INF, 5), (-INF, 50)  # what is left, in %, where a paper says next to nothing; contradicted above
HOURS = "-S scale=hours"  # a claim's `run`
# (data-set preset, model preset) -> the paper's name of that cell
CELLS = {
    ("imagenet", "vit_b16"): ("ImageNet", "ViT-B/16"),
    ("imagenet", "deit_b16"): ("ImageNet", "DeiT-B dist."),
    ("cifar100", "vit_b16"): ("CIFAR-100", "ViT-B/16"),
    ("cifar100", "deit_b16"): ("CIFAR-100", "DeiT-B dist."),
}


class NotRun(Exception):
    """The results lack what a claim is about; the message says what."""


class CannotTell(NotRun):
    """They have it, and no more of it would tell."""


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
    measure: Callable[[Evidence], np.ndarray | Estimate]  # one value a seed, or what else is averaged over
    holds: Range
    plausible: Range | None = None  # outside: contradicted; default: as `holds`
    unit: str = "points"
    centre: Callable[[Evidence], float] | None = None  # what the ranges are relative to, for claims about one cell alone
    scale: str = ""  # why a small model may not show it
    possible: Range = (-INF, INF)  # of the quantity; no interval leaves it
    over: str = "seeds"  # what the interval is over
    run: str = ""  # what `dvc exp run` takes to make the results, where the default run does not

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
        verdict, reason, run, p = NOT_RUN, "", "", None
        value: dict[str, Any] | None = None
        try:
            with np.errstate(divide="ignore", invalid="ignore"):
                values = self.measure(evidence)
            found = values if isinstance(values, Estimate) else estimate(values)
            if not math.isfinite(found.mean):
                raise CannotTell("the quantity is a quotient by zero")
            low, high = np.clip((found.low, found.high), *self.possible)
            found = found._replace(low=low, high=high)
            value = {name: _rounded(number) for name, number in found._asdict().items()} | {"unit": self.unit, "over": self.over}
            if not isinstance(values, Estimate):
                value["values"] = [_rounded(float(each)) for each in values]
            centre = self.centre(evidence) if self.centre else 0.0
            if found.n < 2:
                raise CannotTell("one seed, or one model, gives no interval")
            found = found._replace(mean=found.mean - centre, low=low - centre, high=high - centre)
            verdict, reason = self._verdict(found)
            p = round(p_value(found, self._nearest(found.mean)), 6)
            if self.scale and verdict in (FAILS, WEAKER) and not evidence.is_published:
                reason += f"; possible reason: {self.scale}"
        except NotRun as missing:
            reason = str(missing)
            if self.run and not isinstance(missing, CannotTell):
                run = f"uv run dvc exp run {self.run}"
        orders = {"min": min(evidence.orders), "max": max(evidence.orders)} if evidence.orders else None
        return entry | {"measured": value, "orders": orders, "verdict": verdict, "reason": reason, "run": run, "p": p}

    def _nearest(self, mean: float) -> float:
        """The border nearest to a mean, but for those that nothing can lie beyond."""
        borders = {*self.holds, *(self.plausible or ())} - {*self.possible}
        return min(borders, key=lambda border: abs(border - mean))

    def _verdict(self, found: Estimate) -> tuple[str, str]:
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
        return UNDECIDED, f"the interval includes a border; {many} {self.over} would probably decide"


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


def judge(folder: Path) -> dict[str, Any]:
    """The ledger: every claim of the papers with rows in `folder`, judged on the result files there."""
    evidence = Evidence(folder)
    head = {key: evidence.cell[key] for key in ("dataset", "model", "scale", "protocol", "seeds")}
    entries = [claim.judge(evidence) for module in evidence.readers("claims") for claim in module.CLAIMS]
    corrected = iter(holm([entry["p"] for entry in entries if entry["p"] is not None]))
    for entry in entries:
        sure = entry["p"] is None or next(corrected) <= 1 - LEVEL
        entry["corrected"] = entry["verdict"] if sure else UNDECIDED
    return head | {"latin": evidence.cell["latin"], "interval": METHOD, "rules": RULES, "claims": entries}


def headline(found: dict[str, Any], shown: Collection[str]) -> dict[str, Any]:
    """Few numbers for `dvc metrics` and MLflow: claims by verdict, and what was measured for some of them."""
    verdicts = [entry["verdict"] for entry in found["claims"]]
    measured = {entry["id"]: entry["measured"]["mean"] for entry in found["claims"] if entry["id"] in shown and entry["measured"]}
    return {"claims": {verdict: verdicts.count(verdict) for verdict in VERDICTS}} | measured


def show_value(entry: dict[str, Any]) -> str:
    """What was measured, in words: "12.3 [11.9, 12.7] points, n = 5"."""
    value = entry["measured"]
    if value is None:
        return "–"
    digits = 2 if value["unit"] else 3
    interval = f" [{value['low']:.{digits}f}, {value['high']:.{digits}f}]" if value["low"] is not None else ""
    over = "" if value["over"] == "seeds" else f" {value['over']}"
    return f"{value['mean']:.{digits}f}{interval} {value['unit']}".strip() + f", n = {value['n']}{over}"


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
        f"Measured: mean and {found['interval']} (or over images, where n says so). {_count(found)}. {found['rules']} In brackets: where "
        f"correcting all lines for their number (Holm) leaves a verdict undecided. {_forms(found)}", "",
        "| id | claim | published | what is measured | value | orders | verdict |", "|:--|:--|:--|:--|:--|:--|:--|",
    ]  # fmt: skip
    for entry in found["claims"]:
        verdict = f"**{entry['verdict']}**{_holm(entry)}" + (f": {entry['reason']}" if entry["reason"] else "")
        verdict += f"; `{entry['run']}` runs it" if entry["run"] else ""
        cells = (entry["id"], entry["claim"], entry["published"], entry["quantity"], show_value(entry), show_orders(entry), verdict)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Rules", ""] + [f"- `{entry['id']}` ({entry['source']}): {entry['rule']}." for entry in found["claims"]]
    return "\n".join(lines) + "\n"


def show(found: dict[str, Any]) -> None:
    """Print the ledger as a table."""
    from rich.markup import escape
    from rich.table import Table

    colours = {HOLDS: "green", FAILS: "red", WEAKER: "yellow", UNDECIDED: "cyan", NOT_RUN: "dim"}
    title = f"{found['dataset']}, {found['model']}, {found['scale']}, protocol {found['protocol']}; measured: mean and {found['interval']}"
    table = Table("claim", "published", "measured", "orders", "verdict", title=title, title_justify="left", show_lines=True)
    for entry in found["claims"]:
        reason = f"\n[dim]{entry['reason']}[/]" if entry["reason"] else ""
        verdict = f"[{colours[entry['verdict']]}]{entry['verdict']}[/]{_holm(entry)}{reason}"
        claim = f"{entry['claim']}\n[dim]{entry['id']}: {entry['source']}[/]"
        table.add_row(claim, entry["published"], f"{escape(show_value(entry))}\n[dim]{entry['quantity']}[/]", show_orders(entry), verdict)
    console(140).print(table, _count(found))


def _forms(found: dict[str, Any]) -> str:
    names = ", ".join(label(variant) for variant in found["latin"])
    return f"Trained with Latin orders, other than published: {names}." if names else "Trained with one order a batch, as published."


def _holm(entry: dict[str, Any]) -> str:
    return " (Holm: undecided)" if entry["corrected"] != entry["verdict"] else ""


def _count(found: dict[str, Any]) -> str:
    plain, corrected = ([entry[key] for entry in found["claims"]] for key in ("verdict", "corrected"))
    counts = ", ".join(f"{plain.count(verdict)} {verdict}" for verdict in VERDICTS)
    return f"{len(plain)} claims: {counts}; after Holm's correction {corrected.count(HOLDS)} hold and {corrected.count(FAILS)} do not"


def changes(found: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Ids of the claims whose entries differ."""
    theirs = {entry["id"]: entry for entry in other["claims"]}
    return [entry["id"] for entry in found["claims"] if theirs.get(entry["id"]) != entry]


def same_cell(found: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two ledgers are about the same data set, model and scale."""
    return all(found[key] == other.get(key) for key in ("dataset", "model", "scale"))


def moved(found: dict[str, Any], other: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What two ledgers of a cell say differently, a line a claim: those that both decide, by the same rule, and the rest."""
    ours, theirs = ({entry["id"]: entry for entry in each["claims"]} for each in (found, other))
    contradicting: list[str] = []
    marginal: list[str] = []
    for name in ours | theirs:
        mine, yours = ours.get(name, {"verdict": "no such claim"}), theirs.get(name, {"verdict": "no such claim"})
        if mine["verdict"] != yours["verdict"]:
            decided = {mine["verdict"], yours["verdict"]} <= {HOLDS, FAILS, WEAKER} and mine["rule"] == yours["rule"]
            line = f"{name}: {mine['verdict']}, in the other ledger: {yours['verdict']}"
            (contradicting if decided else marginal).append(line)
    return contradicting, marginal


def other_ledger(file: Path, against: Path | None) -> dict[str, Any] | None:
    """The ledger to compare with: of a file, or else that of the last commit, if there is one. Raises UserError if it is no ledger."""
    if against is None:
        shown = subprocess.run(["git", "show", f"HEAD:./{file}"], capture_output=True, text=True, check=False)
        return None if shown.returncode else json.loads(shown.stdout)
    try:
        found = json.loads(against.read_text())
    except ValueError:
        found = None
    if not isinstance(found, dict) or not {"claims", "dataset", "model"} <= found.keys():
        raise UserError(f"{against}: found no ledger, accepted: the claims.json of a run")
    return found


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
