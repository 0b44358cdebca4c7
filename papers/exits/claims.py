"""What multi-exit ViT claims, and the rules that decide whether it holds.

A score is an accuracy in % or, of counting, the mean absolute error times -1: higher is better in both.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from lsvit.routes import count_routes
from papers.exits.section import COUNTING, LAST_EXIT
from papers.exits.tables import (
    CLASSIFIER_WISE,
    DATA,
    LABELS,
    LAYER_WISE,
    STRATEGIES,
    TABLE1,
    TABLE2,
    WITHOUT,
)
from pipeline.config.variant import BASELINE
from pipeline.report.evaluations import label
from pipeline.report.ledger import (
    ABOVE_ZERO,
    COLLAPSE,
    HOURS,
    INF,
    SHARE,
    Claim,
    Evidence,
    NotComparable,
    NotRun,
)
from pipeline.report.quotes import quoted
from pipeline.report.tables import NONE

BRANCHES = tuple(LABELS)
CNNS = ("cnn_ignore", "cnn_add", "cnn_project")
EARLY, MIDDLE = (
    range(1, 4),
    range(4, 7),
)  # "the first few locations", and those after them before the last six
LAST = 6  # "the last six locations"
ONE, THREE = (6,), (3, 6, 9)  # placements of tables I and II
IVA, IVB, BEYOND = (
    "Multi-exit ViT, section IV-A",
    "Multi-exit ViT, section IV-B",
    "beyond the paper",
)
Scores = dict[str, np.ndarray]  # by architecture: (exits, seeds)
Table = Mapping[
    str, Mapping[str, Sequence[float]]
]  # published: data set -> architecture -> early exits and the last


def without(names: Iterable[str], *left_out: str) -> tuple[str, ...]:
    """The names but for those left out."""
    return tuple(name for name in names if name not in left_out)


def select(e: Evidence, **where: str) -> pd.DataFrame:
    """The exits with these values in the columns, with their score."""
    rows = e.rows("exits", "early exits are", **where)
    return rows.assign(score=(100 * rows["accuracy"]).where(rows["mae"].isna(), -rows["mae"]))


def grid(
    e: Evidence, rows: pd.DataFrame, column: str, exits: Sequence[tuple[str, int]], what: str
) -> np.ndarray:
    """Scores of the exits, each a name in the column and a depth: (exits, seeds). Raises NotRun if one is missing for any seed."""
    if rows.empty or not exits:
        raise NotRun(f"{what} is not among the results")
    index = pd.MultiIndex.from_tuples(exits)
    table = rows.pivot_table(index=[column, "depth"], columns="seed", values="score")
    table = table.reindex(index=index, columns=sorted(e.table("exits")["seed"].unique()))
    missing = index[table.isna().any(axis=1)]
    if len(missing):
        name, depth = missing[0]
        raise NotRun(
            f"{what}: {LABELS.get(name, name)} after layer {depth} is not among the results of every seed"
        )
    return table.to_numpy()


def last_depth(e: Evidence) -> int:
    """Depth of the model's own head: all layers."""
    found = select(e, branch=LAST_EXIT)["depth"]
    if found.empty:
        raise NotRun("the last exit is not among the results")
    return int(found.max())


def every_depth(e: Evidence) -> range:
    """After every layer but the last."""
    return range(1, last_depth(e))


def frozen(
    e: Evidence, depths: Sequence[int], names: Sequence[str] = BRANCHES, counting: bool = False
) -> Scores:
    """Exits of the classifier-wise strategy in the original order, on the baseline or on the backbone that counts."""
    variant, dataset = (COUNTING, COUNTING) if counting else (BASELINE, e.cell["dataset"])
    rows = select(e, strategy=CLASSIFIER_WISE, variant=variant, dataset=dataset, order="sequential")
    what = f"classifier-wise training on {'the counting task' if counting else 'the baseline'}"
    found = grid(e, rows, "branch", [(name, depth) for name in names for depth in depths], what)
    return dict(zip(names, found.reshape(len(names), len(depths), -1), strict=True))


def trained(
    e: Evidence,
    placement: Sequence[int],
    names: Sequence[str] = BRANCHES,
    strategy: str = "end_to_end",
    counting: bool = False,
) -> Scores:
    """Exits of models trained with them, the last exit last; placement () and name "none": the control without early exits."""
    key, dataset = (
        "-".join(map(str, placement)) or NONE,
        COUNTING if counting else e.cell["dataset"],
    )
    rows = select(e, strategy=strategy, dataset=dataset, placement=key)
    where = f"exits after layers {key}" if placement else "without early exits"
    what = f"{STRATEGIES[strategy]} training{' for counting' if counting else ''}, {where},"
    depths = [*placement, last_depth(e)]
    found = grid(
        e, rows, "architecture", [(name, depth) for name in names for depth in depths], what
    )
    return dict(zip(names, found.reshape(len(names), len(depths), -1), strict=True))


def lead(found: Scores, these: Sequence[str], others: Sequence[str]) -> np.ndarray:
    """The best of these minus the best of the others, mean over the exits: a value a seed."""
    best, rival = (np.max([found[name] for name in names], axis=0) for names in (these, others))
    return (best - rival).mean(axis=0)


def _architectures(e: Evidence) -> np.ndarray:
    """How many have a practical exit on the baseline."""
    frozen(e, every_depth(e))  # an exit is practical among all: none may be missing
    rows = select(
        e, strategy=CLASSIFIER_WISE, variant=BASELINE, dataset=e.cell["dataset"], order="sequential"
    )
    found = rows[rows["practical"].astype(bool) & rows["branch"].isin(BRANCHES)]
    return found.groupby("seed")["branch"].nunique().to_numpy()


def _spread(e: Evidence) -> np.ndarray:
    dataset = e.cell["dataset"]
    if dataset != "cifar10" and not dataset.startswith("fashion_mnist"):
        raise NotRun("the claim is about CIFAR-10 and Fashion-MNIST")
    return np.ptp(list(frozen(e, every_depth(e)[-LAST:]).values()), axis=0).mean(axis=0)


def _others_over_mlp(e: Evidence) -> np.ndarray:
    found = frozen(e, EARLY)
    return (
        np.mean([found[name] for name in without(BRANCHES, "mlp")], axis=0) - found["mlp"]
    ).mean(axis=0)


def _late_over_final(e: Evidence) -> np.ndarray:
    final = frozen(e, [last_depth(e)], [LAST_EXIT], counting=True)[LAST_EXIT][0]
    return np.max(list(frozen(e, every_depth(e)[-3:], counting=True).values()), axis=(0, 1)) - final


def _mixer_over_resmlp(e: Evidence) -> np.ndarray:
    found = frozen(e, every_depth(e), ("mixer", "resmlp"), counting=True)
    return 100 * (found["mixer"] > found["resmlp"]).mean(axis=0)


def _final_gain(
    e: Evidence, placement: Sequence[int], names: Sequence[str], counting: bool = False
) -> np.ndarray:
    """The last exit's mean score over the architectures, minus the control's."""
    found = trained(e, placement, names, counting=counting)
    return (
        np.mean([exits[-1] for exits in found.values()], axis=0)
        - trained(e, (), [NONE], counting=counting)[NONE][-1]
    )


def _final_cost(placement: Sequence[int]) -> Callable[[Evidence], np.ndarray]:
    return lambda e: -_final_gain(e, placement, BRANCHES)


def _vit_best(found: Scores) -> np.ndarray:
    """The share in % of (other architecture, exit) pairs in which ViT-EE is better."""
    return 100 * np.mean(
        [found["vit"] > found[name] for name in without(BRANCHES, "vit")], axis=(0, 1)
    )


def _cnn_deficit(placements: Sequence[Scores]) -> np.ndarray:
    """The mean of the others minus that of the CNNs over the early exits of several placements."""
    early = [{name: exits[:-1] for name, exits in found.items()} for found in placements]
    others, cnns = (
        np.concatenate([np.mean([found[name] for name in names], axis=0) for found in early])
        for names in (without(BRANCHES, *CNNS), CNNS)
    )
    return (others - cnns).mean(axis=0)


def _layer_wise(e: Evidence, exit: int) -> np.ndarray:
    """Layer-wise minus end-to-end at an exit (0: the first, -1: the last), mean over what was trained layer-wise."""
    rows = select(e, strategy="layer_wise", dataset=e.cell["dataset"])
    pairs = sorted(set(zip(rows["placement"], rows["architecture"], strict=True)))
    if not pairs:
        raise NotRun("layer-wise training is not among the results")
    gaps = []
    for key, name in pairs:
        placement = [int(depth) for depth in key.split("-")]
        layer_wise, end_to_end = (
            trained(e, placement, [name], strategy)[name][exit]
            for strategy in ("layer_wise", "end_to_end")
        )
        gaps.append(layer_wise - end_to_end)
    return np.mean(gaps, axis=0)


def _figures(table: Table, dataset: str) -> Scores:
    """A table's accuracies for a data set, as if of one seed."""
    return {name: np.array(exits)[:, None] for name, exits in table[dataset].items()}


def _deviation(table: Table, placement: Sequence[int]) -> Callable[[Evidence], np.ndarray]:
    """The largest absolute deviation from a table's figures for this data set."""

    def measure(e: Evidence) -> np.ndarray:
        dataset, model, scale = (e.cell[key] for key in ("dataset", "model", "scale"))
        found = trained(e, placement)
        own = dataset in without(table, COUNTING) and model in (
            "vit_b16",
            "vit_b16_384",
        )  # the paper counts people, not ours
        if not own or scale != "published":
            raise NotComparable(
                f"{dataset} with {model} at scale {scale} is none of the paper's cells"
            )
        published = _figures(table, dataset)
        return np.max([np.abs(found[name] - published[name]) for name in BRANCHES], axis=(0, 1))

    return measure


def _orders_of_exits(e: Evidence, variant: str, order: str) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy in the original order and in another: means over those exits that the LayerShuffle backbone has in the latter."""
    rows = select(e, strategy=CLASSIFIER_WISE, dataset=e.cell["dataset"])
    rows = rows[rows["branch"] != LAST_EXIT]
    shuffled = rows[(rows["variant"] == "ls") & (rows["order"] == order)]
    if shuffled.empty:
        raise NotRun(f"exits on a LayerShuffle backbone, {order}, are not among the results")
    exits = sorted(set(zip(shuffled["branch"], shuffled["depth"], strict=True)))
    if (
        order == "arbitrary"
    ):  # an order for each of the images that report: half of the validation images where none are held out
        images = e.cell["images"]["validation"] // (1 if "heldout" in e.cell["images"] else 2)
        e.orders += [
            min(images, count_routes(e.num_layers, depth, "arbitrary")) for _, depth in exits
        ]
    rows = rows[rows["variant"] == variant]
    what = f"exits on {label(variant)}"
    own, other = (
        grid(e, rows[rows["order"] == each], "branch", exits, f"{what}, {each}")
        for each in ("sequential", order)
    )
    return own.mean(axis=0), other.mean(axis=0)


def _loss(e: Evidence, order: str) -> np.ndarray:
    own, other = _orders_of_exits(e, "ls", order)
    return own - other


def _remains(e: Evidence) -> np.ndarray:
    own, other = _orders_of_exits(e, BASELINE, "arbitrary")
    return e.excess(other, own)


def _policies(e: Evidence, column: str, *policies: str) -> list[pd.DataFrame]:
    """Per seed a column of the baseline's rows under budgets: a row a budget, a column a policy."""
    rows = e.rows(
        "exits_dynamic", "dynamic inference is", dataset=e.cell["dataset"], variant=BASELINE
    )
    table = rows.pivot_table(index=["seed", "budget"], columns="policy", values=column)
    missing = [policy for policy in policies if policy not in table or table[policy].isna().any()]
    if missing:
        raise NotRun(
            f"dynamic inference with the baseline, policy {missing[0]}, is not among the results"
        )
    return [found.droplevel("seed") for _, found in table.groupby("seed")]


def _confidence_gain(e: Evidence) -> np.ndarray:
    gains = []
    for found in _policies(e, "accuracy", "confidence", "budget"):
        half = found.iloc[np.abs(found.index.to_numpy() - found.index.max() / 2).argmin()]
        gains.append(100 * (half["confidence"] - half["budget"]))
    return np.array(gains)


def _overspent(e: Evidence) -> np.ndarray:
    return np.array(
        [
            (100 * (found["confidence"] / found.index - 1)).max()
            for found in _policies(e, "flops", "confidence")
        ]
    )


def _quote(measure: Callable[[str], np.ndarray], table: Table, form: str = "+.2f") -> str:
    """A measure of published accuracies, data set by data set."""
    return ", ".join(
        f"{measure(dataset)[0]:{form}} ({DATA[dataset]})" for dataset in without(table, COUNTING)
    )


def _cost(table: Table) -> str:
    return _quote(
        lambda dataset: (
            WITHOUT[dataset]
            - np.mean([exits[-1] for exits in _figures(table, dataset).values()], axis=0)
        ),
        table,
    )


def _ranges(table: Table) -> str:
    """The lowest and highest accuracy of a table, data set by data set."""
    found = {
        dataset: np.ravel(list(table[dataset].values())) for dataset in without(table, COUNTING)
    }
    return ", ".join(
        f"{values.min():.2f} to {values.max():.2f} % ({DATA[dataset]})"
        for dataset, values in found.items()
    )


FEW_PATCHES = "the fewer patches an image has, the less a convolution sees that attention does not"
CLAIMS = quoted(
    [
        Claim(
            "exits.practical-each",
            IVA,
            "Every architecture creates at least one practical exit",
            "all seven (stated)",
            "the architectures, of seven, with a practical exit",
            _architectures,
            (6.5, 7),
            (3.5, 7),
            unit="architectures",
            possible=(0, 7),
            step=lambda e: 1,
        ),
        Claim(
            "exits.mlp-poor-early",
            IVA,
            "MLP-EE performs poorly in early locations",
            "by eye",
            "the mean of the other branches minus MLP-EE, mean over layers 1 to 3",
            _others_over_mlp,
            ABOVE_ZERO,
        ),
        Claim(
            "exits.cnn-early",
            IVA,
            "CNN-based branches outperform other types in the first few locations",
            "stated",
            "the best CNN-based branch minus the best other, mean over layers 1 to 3",
            lambda e: lead(frozen(e, EARLY), CNNS, without(BRANCHES, *CNNS)),
            ABOVE_ZERO,
            scale=FEW_PATCHES,
        ),
        Claim(
            "exits.cnn-ignore-early",
            IVA,
            "CNN-Ignore-EE outperforms the other CNN-based branches in most early locations",
            "stated",
            "CNN-Ignore-EE minus the better of CNN-Add-EE and CNN-Project-EE, mean over layers 1 to 3",
            lambda e: lead(frozen(e, EARLY, CNNS), CNNS[:1], CNNS[1:]),
            ABOVE_ZERO,
        ),
        Claim(
            "exits.resmlp-middle",
            IVA,
            "Apart from the very early locations ResMLP-EE performs better in classification",
            "stated",
            "ResMLP-EE minus the best other branch, mean over layers 4 to 6",
            lambda e: lead(frozen(e, MIDDLE), ["resmlp"], without(BRANCHES, "resmlp")),
            ABOVE_ZERO,
        ),
        Claim(
            "exits.small-differences",
            IVA,
            "In the last six locations the branch types hardly differ (CIFAR-10, Fashion-MNIST)",
            "minuscule (stated)",
            "the best minus the worst branch, mean over the last six locations",
            _spread,
            (-INF, 2),
            (-INF, 4),
            possible=(0, 100),
        ),
        Claim(
            "exits.late-beats-final",
            IVA,
            "Counting: some very late early exits have a lower error than the last exit",
            "stated",
            "the last exit's error minus the lowest of all branches in the last three locations, which favours it",
            _late_over_final,
            ABOVE_ZERO,
            unit="objects",
        ),
        Claim(
            "exits.vit-counting",
            IVA,
            "Counting: apart from the very early locations ViT-EE performs better",
            "stated",
            "the lowest error of another branch minus ViT-EE's, mean over the locations from layer 4 on",
            lambda e: lead(
                frozen(e, every_depth(e)[3:], counting=True), ["vit"], without(BRANCHES, "vit")
            ),
            ABOVE_ZERO,
            unit="objects",
        ),
        Claim(
            "exits.mixer-counting",
            IVA,
            "Counting: MLP-Mixer-EE outperforms ResMLP-EE in most locations",
            "most (stated)",
            "the share of locations in which its error is lower",
            _mixer_over_resmlp,
            (50, INF),
            unit="%",
            possible=SHARE,
            step=lambda e: 100 / len(every_depth(e)),
        ),
        *(
            Claim(
                f"exits.e2e-final-cost.{'-'.join(map(str, placement))}",
                IVB,
                f"End-to-end, {number}: the final accuracy is lower than without exits",
                f"{_cost(table)} points",
                "the accuracy of the same training without exits minus the final accuracy, mean over the architectures",
                _final_cost(placement),
                ABOVE_ZERO,
            )
            for placement, table, number in (
                (ONE, TABLE1, "one exit"),
                (THREE, TABLE2, "three exits"),
            )
        ),
        Claim(
            "exits.e2e-counting",
            IVB,
            "Counting, end-to-end: one MLP-EE, ViT-EE or MLP-Mixer-EE improves the final error",
            f"{WITHOUT[COUNTING]:.2f} to "
            + ", ".join(f"{TABLE1[COUNTING][name][1]:.2f}" for name in ("mlp", "vit", "mixer")),
            "the error without exits minus the mean final error with these three",
            lambda e: _final_gain(e, ONE, ("mlp", "vit", "mixer"), counting=True),
            ABOVE_ZERO,
            unit="objects",
            run=HOURS,
        ),
        Claim(
            "exits.e2e-vit-best",
            IVB,
            "End-to-end, three exits: ViT-EE outperforms the other branch types in most cases",
            _quote(lambda dataset: _vit_best(_figures(TABLE2, dataset)), TABLE2, ".0f") + " %",
            "the share of pairs of another type and one of the four exits in which ViT-EE is better",
            lambda e: _vit_best(trained(e, THREE)),
            (50, INF),
            unit="%",
            possible=SHARE,
            step=lambda e: 100 / (len(BRANCHES) - 1) / (len(THREE) + 1),
        ),
        Claim(
            "exits.e2e-cnn-worst",
            IVB,
            "End-to-end, CNN-based branches typically perform much worse",
            _quote(
                lambda dataset: _cnn_deficit(
                    [_figures(TABLE1, dataset), _figures(TABLE2, dataset)]
                ),
                TABLE2,
            )
            + " points",
            "the mean of the four other types minus that of the CNN-based, over the early exits of both placements",
            lambda e: _cnn_deficit([trained(e, ONE), trained(e, THREE)]),
            ABOVE_ZERO,
        ),
        Claim(
            "exits.layer-wise-first",
            IVB,
            "Layer-wise training reaches at its first exit what end-to-end training reaches there",
            f"{LAYER_WISE['cifar10']['cnn_ignore']:.2f} % against {TABLE1['cifar10']['cnn_ignore'][0]:.2f} % (CIFAR-10)",
            "layer-wise minus end-to-end at the first exit",
            lambda e: _layer_wise(e, 0),
            (-1, 1),
            (-3, 3),
        ),
        Claim(
            "exits.layer-wise-later",
            IVB,
            "Layer-wise training does not reach a high accuracy at its later exits",
            "stated",
            "end-to-end minus layer-wise at the last exit",
            lambda e: -_layer_wise(e, -1),
            ABOVE_ZERO,
        ),
        *(
            Claim(
                f"exits.table{n}",
                f"Multi-exit ViT, table {'I' * n}",
                f"Early and final accuracies, {number}, end-to-end",
                _ranges(table),
                "the largest absolute deviation from the table's accuracies of this data set",
                _deviation(table, placement),
                (-INF, 1),
                run="-S dataset=cifar10 -S model=vit_b16_384",
            )
            for n, placement, table, number in (
                (1, ONE, TABLE1, "one exit"),
                (2, THREE, TABLE2, "three exits"),
            )
        ),
        Claim(
            "exits.any-order",
            BEYOND,
            "Exits on a LayerShuffle backbone survive any order of the layers",
            "not studied",
            "accuracy in the original order minus that under arbitrary orders, mean over branches and locations",
            lambda e: _loss(e, "arbitrary"),
            (-INF, 5),
            (-INF, 15),
        ),
        Claim(
            "exits.any-order-baseline",
            BEYOND,
            "Exits on the baseline collapse under arbitrary orders",
            "not studied",
            "accuracy above chance under arbitrary orders, in % of that in the original order, over the same branches and locations",
            _remains,
            *COLLAPSE,
            "%",
        ),
        Claim(
            "exits.pruned",
            BEYOND,
            "Exits on a LayerShuffle backbone survive missing layers",
            "not studied",
            "accuracy with all layers minus that with some left out, mean over branches and locations",
            lambda e: _loss(e, "pruned"),
            (-INF, 5),
            (-INF, 15),
        ),
        Claim(
            "exits.confidence",
            BEYOND,
            "Images that leave when the model is sure are worth it at the same average cost",
            "not studied",
            "accuracy by confidence minus that of one exit for all images, at half of the largest budget",
            _confidence_gain,
            ABOVE_ZERO,
            (-1, INF),
        ),
        Claim(
            "exits.budget-held",
            BEYOND,
            "A budget holds on average on images that its thresholds were not calibrated on",
            "not studied",
            "the largest excess of the mean FLOPs over the budget, leaving by confidence",
            _overspent,
            (-INF, 5),
            (-INF, 15),
            "%",
        ),
    ],
    __file__,
)
TITLE = "Early exits"  # of the paper in the report
HEADLINE = ("exits.any-order", "exits.pruned")  # claims whose value `dvc metrics` shows
