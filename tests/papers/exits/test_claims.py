"""The claims about early exits."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pandas as pd
import pytest

from papers.exits import PAPER
from papers.exits.measures import BRANCHES
from papers.exits.tables import FORMS, PUBLISHED
from pipeline.report.evidence import Evidence
from pipeline.report.ledger import FAILS, HOLDS, NOT_COMPARABLE, NOT_RUN, WEAKER
from tests.papers.claim_suite import Change, ClaimSuite, Tables, add, judged, made_up, put

DATASET = "fashion_mnist_10k"
LAYERS, KEEP = 12, 9
SEEDS = range(5)  # as many as tell seven architectures from six
LS_BRANCHES = ("mlp", "cnn_ignore", "vit")
CNNS = ("cnn_ignore", "cnn_add", "cnn_project")
LAYER_WISE = ("layer_wise_none", "layer_wise_original", "layer_wise_end_to_end")
MLP, MIXER, VIT, RESMLP = "mlp", "mixer", "vit", "resmlp"
EARLY = (1, 2, 3)
Row = dict[str, Any]


def frozen(
    variant: str, order: str, score: Callable[[str, int], float], names: tuple[str, ...] = BRANCHES
) -> list[Row]:
    """Exits after every layer, and the last; the score is an accuracy in %, counting an error."""
    row = {"variant": variant, "strategy": "classifier_wise", "order": order}
    row |= {"placement": "all", "architecture": "all"}
    row |= {"dataset": "counting" if variant == "counting" else DATASET}
    depths = range(1, KEEP + 1 if order == "pruned" else LAYERS)
    places = [(name, depth) for name in names for depth in depths] + [("final", LAYERS)]
    return [row | {"branch": b, "depth": depth, "score": score(b, depth)} for b, depth in places]


def trained(
    name: str,
    placement: tuple[int, ...],
    scores: list[float],
    strategy: str = "end_to_end",
    data: str = DATASET,
) -> list[Row]:
    """Exits of one model and its last."""
    row = {"variant": "none", "strategy": strategy, "architecture": name, "order": "sequential"}
    row |= {"dataset": data, "placement": "-".join(map(str, placement)) or "none"}
    places = [*((name, depth) for depth in placement), ("final", LAYERS)]
    return [
        row | {"branch": branch, "depth": depth, "score": score}
        for (branch, depth), score in zip(places, scores, strict=True)
    ]


def finish(rows: list[Row]) -> pd.DataFrame:
    """Rows of every seed as in exits.csv; seeds differ by the same for all exits."""
    frame = pd.DataFrame(rows)
    counts, score = frame["dataset"] == "counting", frame.pop("score")
    dearer = frame["branch"].map({name: place for place, name in enumerate(BRANCHES)}).fillna(0)
    frame = frame.assign(
        accuracy=(score / 100).where(~counts),
        judge=score.where(counts, score / 100),
        flops=100 * frame["depth"] + dearer,
        practical=frame["depth"] == 1,
    )
    seeds = [frame.assign(seed=s, mae=(score + 0.01 * s).where(counts)) for s in SEEDS]
    return pd.concat(seeds, ignore_index=True)


def baseline(name: str, depth: int) -> float:
    early = {MLP: -5, "cnn_ignore": 3, "cnn_add": 1, "cnn_project": 2}
    score = 60 + depth
    if depth in EARLY:
        score += early.get(name, 0)
    if name == RESMLP and 4 <= depth <= 6:
        score += 2
    return score


def counting(name: str, depth: int) -> float:
    if name == "final":
        return 3.9
    error = 5 - 0.1 * depth
    if name == MIXER:
        error -= 0.2
    if name == VIT and depth >= 4:
        error -= 0.5
    return error


def together(name: str) -> dict[tuple[int, ...], list[float]]:
    off = 1 if name == VIT else -1 if name in CNNS else 0
    return {
        (6,): [85 + off, 89],
        (3, 6, 9): [80 + off, 85 + off, 88 + off, 88.5 + max(off, 0)],
    }


def exits() -> pd.DataFrame:
    rows = [
        *frozen("baseline", "sequential", baseline),
        *frozen("baseline", "arbitrary", lambda name, depth: 12),
        *frozen("ls", "sequential", lambda name, depth: 60, LS_BRANCHES),
        *frozen("ls", "arbitrary", lambda name, depth: 57, LS_BRANCHES),
        *frozen("ls", "pruned", lambda name, depth: 56, LS_BRANCHES),
        *frozen("counting", "sequential", counting),
        *trained("none", (), [90]),
        *trained("none", (), [4], data="counting"),
    ]
    for more, strategy in enumerate(LAYER_WISE):
        rows += trained("cnn_ignore", (6,), [84.5, 70 + more], strategy)
        rows += trained("cnn_ignore", (3, 6, 9), [79, 70, 65, 60 + more], strategy)
    errors = {MLP: 3.7, VIT: 3.9, MIXER: 3.8}
    for name in BRANCHES:
        for placement, scores in together(name).items():
            rows += trained(name, placement, scores)
        early = 5.5 if name == MIXER else 6
        rows += trained(name, (6,), [early, errors.get(name, 5)], data="counting")
        three = [7, 7, early + 0.7, errors.get(name, 5)]
        rows += trained(name, (3, 6, 9), three, data="counting")
    return finish(rows)


def dynamic() -> pd.DataFrame:
    """Half of the largest budget is 150: the nearest is 160."""
    rows = [
        ("confidence", 100, 100, 0.5),
        ("confidence", 160, 165, 0.85),
        ("confidence", 300, 290, 0.9),
        ("budget", 100, 100, 0.5),
        ("budget", 160, 150, 0.8),
        ("budget", 300, 300, 0.95),
        ("anytime", 160, 400, 0.99),
    ]
    frame = pd.DataFrame(rows, columns=["policy", "budget", "flops", "accuracy"])
    frame = frame.assign(dataset=DATASET, variant="baseline")
    frames = [rows.assign(seed=s) for s in SEEDS for rows in (frame, frame.assign(variant="ls"))]
    both = pd.concat(frames, ignore_index=True)
    return both.assign(accuracy=both["accuracy"].where(both["variant"] == "baseline", 0.1))


def better(points: float, **where: Any) -> Change:
    """Adds points to accuracies."""
    return add("exits", "accuracy", points / 100, **{"dataset": DATASET} | where)


def on_baseline(points: float, branch: Any, **where: Any) -> Change:
    return better(points, variant="baseline", order="sequential", branch=branch, **where)


def on_ls(points: float, order: str, **where: Any) -> Change:
    return better(points, variant="ls", order=order, **where)


def shuffled(points: float, branch: Any = LS_BRANCHES) -> Change:
    return better(points, variant="baseline", order="arbitrary", branch=branch)


def end_to_end(points: float, **where: Any) -> Change:
    return better(points, strategy="end_to_end", **where)


def layer_wise(points: float, **where: Any) -> Change:
    return better(points, strategy=LAYER_WISE, **where)


def counted(errors: float, **where: Any) -> Change:
    """Adds to the errors of exits, by default of those on the backbone that counts."""
    return add("exits", "mae", errors, **{"dataset": "counting", "variant": "counting"} | where)


def practical(**where: Any) -> Change:
    where = {"variant": "baseline", "order": "sequential"} | where
    return put("exits", "practical", False, dataset=DATASET, **where)


def judged_on(amount: float, **where: Any) -> Change:
    """Adds to what exits on frozen backbones score on the images that choose."""
    return add("exits", "judge", amount, strategy="classifier_wise", order="sequential", **where)


def budgets(column: str, value: float, policy: str, budget: Any) -> Change:
    return put("exits_dynamic", column, value, policy=policy, budget=budget)


THREE = {"placement": "3-6-9"}
ON_BASELINE = (
    "practical-each",
    "mlp-first",
    "mlp-poor-early",
    "mlp-catches-up",
    "cnn-early",
    "cnn-fades",
    "later-not-better",
    "any-order-baseline",
)
LATER = ("layer-wise-later.none", "layer-wise-later.original", "layer-wise-later.end-to-end")
COUNTS = ("e2e-counting", "late-beats-final", "vit-counting", "mixer-counting")


KNOWN = {
    "practical-each": 7,
    "mlp-first": 56 - 10,
    "mlp-poor-early": 6,
    "mlp-catches-up": 6 - 2 / 6 / 6,
    "cnn-early": 3,
    "cnn-fades": 3 + 2 / 6,
    "cnn-ignore-early": 1,
    "resmlp-middle": 2,
    "small-differences": 2 / 6,
    "later-not-better": (2 + 0 + 1 + 1 - 3) / 7,
    "late-beats-final": 0.5,
    "vit-counting": 0.3,
    "mixer-counting": 100,
    "e2e-final-cost.6": 1,
    "e2e-final-cost.3-6-9": 90 - (88.5 * 6 + 89.5) / 7,
    "e2e-counting": 0.2,
    "e2e-vit-best": 100,
    "e2e-cnn-worst": 2,
    "e2e-mixer-counting.6": 0.5,
    "e2e-mixer-counting.3-6-9": 0.5 / 3,
    "layer-wise-first": 0.25,
    "layer-wise-later.none": -(19 + 28.5) / 2,
    "layer-wise-later.original": 1 - (19 + 28.5) / 2,
    "layer-wise-later.end-to-end": 2 - (19 + 28.5) / 2,
    "any-order": 3,
    "any-order-baseline": 100 * 2 / (66 - 6 / 33 - 10),
    "pruned": 4,
    "confidence": 5,
    "budget-held": 3.125,
}
SEED_COUNTS = dict.fromkeys(KNOWN, 5)
# What the known values above do not tell: which rows count, and how they are put together.
CHANGES = [
    ("practical-each", practical(branch=VIT), WEAKER, 6),
    ("practical-each", practical(variant="ls"), HOLDS, 7),
    ("mlp-first", put("exits", "flops", 0, branch="cnn_add", depth=1), FAILS, 56 - 62),
    ("mlp-first", put("exits", "flops", 0, branch="final"), FAILS, 56 - 72),
    ("mlp-catches-up", on_baseline(-7, MLP, depth=(6, 7, 8, 9, 10, 11)), FAILS, -1.0556),
    ("cnn-fades", on_baseline(6, "cnn_add", depth=(9, 10, 11)), FAILS, 1 / 3),
    ("cnn-early", on_baseline(12, MIXER, depth=1), FAILS, -1),  # -9, 3, 3: the mean decides
    ("cnn-ignore-early", on_baseline(2, "cnn_add", depth=1), HOLDS, 1 - 1 / 3),
    ("resmlp-middle", on_baseline(9, VIT, depth=(3, 7)), HOLDS, 2),  # other layers
    ("small-differences", on_baseline(12, VIT, depth=11), WEAKER, 2 / 6 + 2),
    ("small-differences", on_baseline(60, VIT, depth=5), HOLDS, 2 / 6),
    ("later-not-better", on_baseline(-90, VIT, depth=5), HOLDS, 1 / 7),
    ("later-not-better", judged_on(0.5, branch=RESMLP, depth=1), FAILS, -1 / 7),
    ("late-beats-final", counted(-3, branch=MLP, depth=9), HOLDS, 0.5),
    ("late-beats-final", judged_on(-3, branch=MLP, depth=8), HOLDS, 0.5),
    ("late-beats-final", judged_on(-3, branch=MLP, depth=9), FAILS, 3.9 - 4.1),
    ("vit-counting", counted(-1, branch=MLP, depth=EARLY), HOLDS, 0.3),
    ("mixer-counting", counted(1, branch=MIXER, depth=EARLY), HOLDS, 800 / 11),
    ("e2e-final-cost.6", end_to_end(14, placement="6", depth=12, architecture=MLP), FAILS, -1),
    ("e2e-final-cost.6", end_to_end(14, placement="6", branch=MLP), HOLDS, 1),  # an early exit
    ("e2e-counting", counted(9, variant="none", architecture=RESMLP), HOLDS, 0.2),
    ("e2e-vit-best", end_to_end(2, **THREE, architecture=RESMLP), HOLDS, 100 * 20 / 24),
    ("e2e-cnn-worst", end_to_end(4, architecture=CNNS, depth=(3, 6, 9)), FAILS, -2),
    ("e2e-cnn-worst", end_to_end(4, placement="6", branch=CNNS), HOLDS, 1),
    ("e2e-cnn-worst", end_to_end(-9, architecture=RESMLP), HOLDS, 2),
    ("e2e-mixer-counting.6", counted(1, variant="none", branch=MIXER, depth=6), FAILS, -0.5),
    ("e2e-mixer-counting.3-6-9", counted(9, variant="none", branch="final"), HOLDS, 0.5 / 3),
    ("layer-wise-first", layer_wise(-4, placement="6", depth=6), WEAKER, -1.75),
    ("layer-wise-first", layer_wise(-9, **THREE, depth=6), HOLDS, 0.25),
    ("any-order", on_ls(-7, "arbitrary"), WEAKER, 10),
    ("any-order", on_ls(-20, "arbitrary", branch="final"), HOLDS, 3),
    ("any-order-baseline", shuffled(8), WEAKER, 17.9153),
    ("any-order-baseline", shuffled(45, MIXER), HOLDS, 3.58306),
    ("pruned", on_ls(20, "sequential", depth=(10, 11)), HOLDS, 4),  # not reached when pruned
    ("confidence", budgets("accuracy", 0.795, "confidence", 160), WEAKER, -0.5),
    ("confidence", budgets("accuracy", 0.7, "confidence", (100, 300)), HOLDS, 5),
    ("confidence", put("exits_dynamic", "policy", "b", policy="budget"), NOT_RUN),
    ("budget-held", put("exits_dynamic", "variant", "ls"), NOT_RUN),
    ("budget-held", budgets("flops", 330, "confidence", 300), WEAKER, 10),
    ("budget-held", budgets("flops", 390, "budget", 300), HOLDS, 3.125),
]
MISSING: list[tuple[dict[str, Any], set[str]]] = [
    ({"branch": VIT, "depth": 2, "variant": "baseline", "seed": 1}, {*ON_BASELINE}),
    ({"variant": "counting"}, {*COUNTS} - {"e2e-counting"}),
    (
        {"architecture": "none"},
        {name for name in KNOWN if name[:9] == "e2e-final"} | {"e2e-counting"},
    ),
    ({"placement": "6", "dataset": "counting"}, {"e2e-counting", "e2e-mixer-counting.6"}),
    ({"strategy": LAYER_WISE}, {"layer-wise-first", *LATER}),
    ({"strategy": "layer_wise_end_to_end"}, {"layer-wise-later.end-to-end"}),
    ({"variant": "ls"}, {"any-order", "any-order-baseline", "pruned"}),
    ({"variant": "baseline", "order": "arbitrary"}, {"any-order-baseline"}),
    ({"order": "pruned"}, {"pruned"}),
]


class TestExits(ClaimSuite):
    paper = PAPER
    known = KNOWN
    seeds = SEED_COUNTS
    changes = CHANGES
    missing = MISSING

    @classmethod
    @cache
    def made(cls) -> Tables:
        return {"exits": exits(), "exits_dynamic": dynamic()}

    def evidence(self, tables: Tables) -> Evidence:
        return made_up(tables, dataset=DATASET, model="vit_micro", scale="published")

    def test_every_claim_is_known(self) -> None:
        """But for those that compare the tables, below."""

    def test_orders_behind_an_exit_are_counted(self) -> None:
        """After one layer there are twelve, further in one for each of the images that report."""
        images = self.evidence({}).cell["images"]
        most = {"min": LAYERS, "max": images["validation"]}
        assert self.entry("any-order", self.made())["orders"] == most
        assert self.entry("pruned", self.made())["orders"] is None


def entry(name: str, rows: pd.DataFrame, dataset: str, model: str, scale: str = "published") -> Row:
    tables = {"exits": rows, "exits_dynamic": dynamic()}
    evidence = made_up(tables, dataset=dataset, model=model, scale=scale)
    return judged(PAPER, f"exits.{name}", evidence)


@pytest.mark.parametrize(("model", "said"), [("vit_b16_384", False), ("vit_micro", True)])
def test_few_patches_are_a_reason_of_the_small_model(model: str, said: bool) -> None:
    tables = {"exits": exits()}
    on_baseline(4, MIXER, depth=EARLY)(tables)
    failed = entry("cnn-early", tables["exits"], DATASET, model)
    assert (failed["verdict"], "possible reason" in failed["reason"]) == (FAILS, said)


@pytest.mark.parametrize(
    ("dataset", "verdict"),
    [("cifar10", HOLDS), ("cifar100", NOT_RUN), ("fashion_mnist", HOLDS), ("digits", NOT_RUN)],
)
def test_a_claim_about_two_data_sets_is_not_run_on_others(dataset: str, verdict: str) -> None:
    rows = exits().replace({"dataset": {DATASET: dataset}})
    assert entry("small-differences", rows, dataset, "vit_micro")["verdict"] == verdict


def published(dataset: str) -> pd.DataFrame:
    """Tables I and II as if they had been measured here."""
    rows = []
    for data in (dataset, "counting"):
        rows += trained("none", (), [PUBLISHED["without_exits"][data]], data=data)
        for form in FORMS:
            for branch, figures in form.published.get(data, {}).items():
                rows += trained(branch, form.depths, figures, data=data)
    return finish(rows)


def test_tables_are_compared_in_the_papers_cells() -> None:
    tables = {"exits": published("cifar10")}
    where = {"dataset": "cifar10", "architecture": "vit", "placement": "6"}
    add("exits", "accuracy", 0.004, branch="final", **where)(tables)
    where = {"dataset": "cifar10", "architecture": "mlp", "placement": "3-6-9"}
    add("exits", "accuracy", -0.03, depth=6, **where)(tables)
    rows = tables["exits"]
    for name, value, verdict in (("table1", 0.4, HOLDS), ("table2", 3, FAILS)):
        compared = entry(name, rows, "cifar10", "vit_b16")
        assert compared["measured"]["mean"] == pytest.approx(value, abs=1e-4)
        assert compared["verdict"] == verdict
        for cell in (("vit_micro", "published"), ("vit_b16", "minutes")):
            assert entry(name, rows, "cifar10", *cell)["verdict"] == NOT_COMPARABLE
    fashion = rows.replace({"dataset": {"cifar10": "fashion_mnist"}})
    assert entry("table2", fashion, "fashion_mnist", "vit_b16")["verdict"] == NOT_COMPARABLE
    assert entry("table1", rows, "cifar100", "vit_b16")["verdict"] == NOT_RUN
