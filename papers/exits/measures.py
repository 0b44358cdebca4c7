"""What multi-exit ViT's claims are decided on.

A score is an accuracy in % or, of counting, the mean absolute error times -1: higher is better in
both. Scores of exits are (branch types, exits, seeds).
"""

from collections.abc import Sequence
from itertools import combinations, product

import numpy as np
import pandas as pd

from lsvit.routes import count_routes
from papers.exits.section import COUNTING, LAST_EXIT
from papers.exits.tables import CLASSIFIER_WISE, FORMS, LABELS, STRATEGIES
from pipeline.config.variant import BASELINE
from pipeline.report.evidence import Counts, Evidence, NotComparable, NotRun
from pipeline.report.tables import NONE

BRANCHES = tuple(LABELS)
TABLES = {form.depths: form.published for form in FORMS}
MODELS = ("vit_b16", "vit_b16_384")  # presets that have the published model's size
# Places of early exits, or the place from which on. A negative one counts from the last place.
Depths = Sequence[int] | int


def select(e: Evidence, counting: bool = False, **where: str) -> pd.DataFrame:
    """The exits on the cell's data set or canvases with these values, and their score."""
    dataset = COUNTING if counting else e.cell["dataset"]
    rows = e.rows("exits", "early exits are", dataset=dataset, **where)
    return rows.assign(score=(-rows["mae"]).fillna(100 * rows["accuracy"]))


def scores_of(
    e: Evidence, rows: pd.DataFrame, exits: Sequence[tuple[str, int]], what: str
) -> np.ndarray:
    """Scores of exits, each a branch and a depth: (exits, seeds).

    Raises:
        NotRun: an exit is missing for any seed.
    """
    index = pd.MultiIndex.from_tuples(exits)
    table = rows.pivot_table(index=["branch", "depth"], columns="seed", values="score")
    table = table.reindex(index=index, columns=sorted(e.table("exits")["seed"].unique()))
    for name, depth in index[table.isna().any(axis=1)]:
        exit_name = f"{LABELS.get(name, name)} after layer {depth}"
        raise NotRun(f"{what}: {exit_name} is not among the results of every seed")
    return table.to_numpy()


def last_depth(e: Evidence) -> int:
    """Depth of the model's own head: all layers."""
    depths = e.rows("exits", "early exits are", branch=LAST_EXIT)["depth"]
    if depths.empty:
        raise NotRun("the last exit is not among the results")
    return int(depths.max())


def frozen_rows(e: Evidence, counting: bool = False) -> pd.DataFrame:
    """Exits on a frozen backbone in the original order: the baseline, or the one that counts."""
    variant = COUNTING if counting else BASELINE
    return select(e, counting, strategy=CLASSIFIER_WISE, variant=variant, order="sequential")


def frozen(
    e: Evidence,
    depths: Depths = 1,
    names: Sequence[str] = BRANCHES,
    counting: bool = False,
    judging: bool = False,
) -> np.ndarray:
    """Scores of exits of :func:`frozen_rows`, or those on the `judging` images, which choose."""
    if isinstance(depths, int):
        places = range(1, last_depth(e))
        depths = places[depths - 1 if depths > 0 else depths :]
    rows = frozen_rows(e, counting)
    if judging:
        rows = rows.assign(score=(-1 if counting else 100) * rows.get("judge", np.nan))
    what = f"classifier-wise training on {COUNTING if counting else BASELINE}"
    scores = scores_of(e, rows, list(product(names, depths)), what)
    return scores.reshape(len(names), len(depths), -1)


def trained(
    e: Evidence,
    placement: Sequence[int],
    names: Sequence[str] = BRANCHES,
    strategy: str = "end_to_end",
    counting: bool = False,
) -> np.ndarray:
    """Exits of models trained with them, the last exit last.

    Placement () and name "none" are the control without early exits.
    """
    key = "-".join(map(str, placement)) or NONE
    rows = select(e, counting, strategy=strategy, placement=key)
    rows = rows.assign(branch=rows["architecture"])  # of the last exit too
    dataset = COUNTING if counting else e.cell["dataset"]
    what = f"{STRATEGIES[strategy]} training on {dataset}, exits after {key}"
    exits = list(product(names, [*placement, last_depth(e)]))
    return scores_of(e, rows, exits, what).reshape(len(names), len(placement) + 1, -1)


def frozen_lead(
    e: Evidence,
    branches: Sequence[str],
    depths: Depths,
    among: Sequence[str] = BRANCHES,
    counting: bool = False,
) -> np.ndarray:
    """The best of some branch types minus the best of the others, mean over the depths."""
    scores = frozen(e, depths, among, counting)
    chosen = np.isin(among, branches)
    return (scores[chosen].max(axis=0) - scores[~chosen].max(axis=0)).mean(axis=0)


def practical_architectures(e: Evidence) -> Counts:
    """How many branch types have an exit on the baseline that is practical beyond noise."""
    frozen(e)  # raises where an exit is missing: practical is one among all
    rows = frozen_rows(e)
    practical = rows["branch"].where(rows["practical"].eq(True) & rows["branch"].isin(BRANCHES))
    return Counts(practical.groupby(rows["seed"]).nunique().to_numpy(), step=1)


def mlp_deficit(e: Evidence, depths: Depths) -> np.ndarray:
    """The mean of the other branch types minus MLP-EE, mean over the depths."""
    mlp, *others = frozen(e, depths)  # in the order of BRANCHES
    return (np.mean(others, axis=0) - mlp).mean(axis=0)


def late_spread(e: Evidence) -> np.ndarray:
    """The best minus the worst branch type, mean over the last six places."""
    dataset = e.cell["dataset"]
    if dataset != "cifar10" and not dataset.startswith("fashion_mnist"):
        raise NotRun("the claim is about CIFAR-10 and Fashion-MNIST")
    return np.ptp(frozen(e, -6), axis=0).mean(axis=0)


def largest_fall(e: Evidence) -> np.ndarray:
    """An earlier exit minus a later one of its type, mean over the types.

    The judging images choose the pair that falls most, the reporting ones measure it.
    """
    earlier, later = np.transpose(list(combinations(range(last_depth(e) - 1), 2)))
    judged = frozen(e, judging=True)
    scores = frozen(e)
    pairs = (judged[:, earlier] - judged[:, later]).argmax(axis=1, keepdims=True)
    falls = scores[:, earlier] - scores[:, later]  # (types, pairs, seeds)
    return np.take_along_axis(falls, pairs, axis=1)[:, 0].mean(axis=0)


def late_counting_lead(e: Evidence) -> np.ndarray:
    """An early exit of the last three places minus the last exit, when counting.

    The judging canvases choose the early exit, the reporting ones measure it.
    """
    last = frozen(e, [last_depth(e)], [LAST_EXIT], counting=True)[0, 0]
    judged = np.concatenate(frozen(e, -3, counting=True, judging=True))
    scores = np.concatenate(frozen(e, -3, counting=True))
    return scores[judged.argmax(axis=0), np.arange(len(last))] - last


def mixer_wins(e: Evidence) -> Counts:
    """The share in % of the places where MLP-Mixer-EE counts better than ResMLP-EE."""
    mixer, resmlp = frozen(e, names=("mixer", "resmlp"), counting=True)
    return Counts(100 * (mixer > resmlp).mean(axis=0), step=100 / len(mixer))


def last_exit(
    e: Evidence, placement: Sequence[int], names: Sequence[str] = BRANCHES, counting: bool = False
) -> np.ndarray:
    """The last exit's mean score over the branch types that models were trained with."""
    return trained(e, placement, names, counting=counting)[:, -1].mean(axis=0)


def vit_wins(e: Evidence) -> Counts:
    """The share in % of (other branch type, exit) pairs in which ViT-EE is better."""
    scores = trained(e, (3, 6, 9))
    vit = BRANCHES.index("vit")
    others = np.delete(scores, vit, axis=0)
    wins = 100 * np.mean(scores[vit] > others, axis=(0, 1))
    return Counts(wins, step=100 / len(others) / 4)


def early_lead(
    e: Evidence,
    branches: Sequence[str],
    over: Sequence[str],
    placements: Sequence[Sequence[int]],
    counting: bool = False,
) -> np.ndarray:
    """The mean of some branch types minus that of others, trained end-to-end, at early exits."""
    leads = []
    for placement in placements:
        better, worse = (
            trained(e, placement, names, counting=counting)[:, :-1].mean(axis=0)
            for names in (branches, over)
        )
        leads.append(better - worse)
    return np.concatenate(leads).mean(axis=0)


def layer_wise_lead(e: Evidence, strategy: str, exit: int) -> np.ndarray:
    """A layer-wise strategy minus end-to-end training at an exit (0 the first, -1 the last).

    The mean is over what was trained layer-wise.
    """
    rows = select(e, strategy=strategy)
    if rows.empty:
        raise NotRun("layer-wise training is not among the results")
    leads = []
    for (key, name), _ in rows.groupby(["placement", "architecture"]):
        placement = [int(depth) for depth in key.split("-")]
        stepwise, whole = (
            trained(e, placement, [name], way)[0, exit] for way in (strategy, "end_to_end")
        )
        leads.append(stepwise - whole)
    return np.mean(leads, axis=0)


def deviation(e: Evidence, placement: Sequence[int]) -> np.ndarray:
    """The largest absolute deviation from a table's figures for this data set."""
    dataset, model, scale = (e.cell[key] for key in ("dataset", "model", "scale"))
    scores = trained(e, placement)
    published = TABLES[tuple(placement)].get(dataset)
    # The paper counts people, not objects.
    if not published or dataset == COUNTING or model not in MODELS or scale != "published":
        raise NotComparable(f"{dataset} with {model} at scale {scale} is none of the paper's cells")
    figures = np.array([published[name] for name in BRANCHES])
    return np.abs(scores - figures[..., None]).max(axis=(0, 1))


def exit_accuracy(e: Evidence, variant: str, order: str, exits_in: str) -> np.ndarray:
    """Accuracy of exits on a variant, mean over those that LS has in the order `exits_in`."""
    rows = select(e, strategy=CLASSIFIER_WISE)
    rows = rows[rows["branch"] != LAST_EXIT]
    shuffled = rows[(rows["variant"] == "ls") & (rows["order"] == exits_in)]
    if shuffled.empty:
        raise NotRun(f"exits on a LayerShuffle backbone, {exits_in}, are not among the results")
    exits = sorted(set(zip(shuffled["branch"], shuffled["depth"], strict=True)))
    if exits_in == "arbitrary":
        # Each image that reports has an order: half of them where none are held out.
        images = e.cell["images"]["validation"]
        if "heldout" not in e.cell["images"]:
            images //= 2
        for _, depth in exits:
            e.orders.append(min(images, count_routes(e.num_layers, depth, "arbitrary")))
    rows = rows[(rows["variant"] == variant) & (rows["order"] == order)]
    return scores_of(e, rows, exits, f"exits on {e.label(variant)}, {order}").mean(axis=0)


def baseline_left(e: Evidence) -> np.ndarray:
    """What arbitrary orders leave of exits on the baseline, in % of the accuracy above chance."""
    original, other = (
        exit_accuracy(e, BASELINE, order, "arbitrary") for order in ("sequential", "arbitrary")
    )
    return e.excess(other, original)


def under_budgets(e: Evidence, column: str, *policies: str) -> pd.DataFrame:
    """A column of the baseline's rows: a row a seed and budget, a column a policy."""
    dataset = e.cell["dataset"]
    rows = e.rows("exits_dynamic", "dynamic inference is", dataset=dataset, variant=BASELINE)
    table = rows.pivot_table(index=["seed", "budget"], columns="policy", values=column)
    for policy in policies:
        if policy not in table or table[policy].isna().any():
            what = f"dynamic inference with the baseline, policy {policy},"
            raise NotRun(f"{what} is not among the results")
    return table


def confidence_gain(e: Evidence) -> np.ndarray:
    """Leaving by confidence minus one exit for all images, at half of the largest budget."""
    gains = []
    for _, accuracies in under_budgets(e, "accuracy", "confidence", "budget").groupby("seed"):
        budgets = accuracies.index.get_level_values("budget")
        half = accuracies.iloc[np.abs(budgets - budgets.max() / 2).argmin()]
        gains.append(100 * (half["confidence"] - half["budget"]))
    return np.array(gains)


def overspent(e: Evidence) -> np.ndarray:
    """The largest excess in % of the mean FLOPs over a budget, leaving by confidence."""
    flops = under_budgets(e, "flops", "confidence")["confidence"]
    excess = 100 * (flops / flops.index.get_level_values("budget") - 1)
    return excess.groupby("seed").max().to_numpy()


MEASURES = {
    measure.__name__: measure
    for measure in (
        frozen_lead,
        practical_architectures,
        mlp_deficit,
        late_spread,
        largest_fall,
        late_counting_lead,
        mixer_wins,
        last_exit,
        vit_wins,
        early_lead,
        layer_wise_lead,
        deviation,
        exit_accuracy,
        baseline_left,
        confidence_gain,
        overspent,
    )
}
