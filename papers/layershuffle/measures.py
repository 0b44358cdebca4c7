"""What LayerShuffle's claims are decided on: quantities with one value a seed, in % and points."""

import math
from collections.abc import Sequence

import numpy as np

from lsvit.routes import ORDERS, Order
from papers.layershuffle.floors import DEPTH, describe_lead, find_lead
from papers.layershuffle.labels import label
from papers.layershuffle.tables import CELLS
from pipeline.config.variant import BASELINE, PRETRAINED
from pipeline.report.evidence import Evidence, NotComparable, NothingToTell, NotRun, subtract
from pipeline.report.statistics import Estimate, from_error


def accuracy(
    e: Evidence,
    variant: str,
    order: Order,
    keep: int | None = None,
    choose: str = "random",
    family: str = "",
) -> np.ndarray:
    """Accuracy with `keep` layers, by default all.

    Args:
        e: the results.
        variant: of params.yaml, or logistic regression, which has no order of layers.
        order: of the layers.
        keep: number of layers.
        choose: which layers are kept.
        family: of models that it is about; their presets' names begin with it.
    """
    accuracies = e.accuracy(variant, order, keep, choose)
    if family and not e.cell["model"].startswith(f"{family.lower()}_"):
        raise NotRun(f"the claim is about {family}")
    return accuracies


def best_accuracy(
    e: Evidence, variants: Sequence[str], order: Order, keep: int | None = None
) -> np.ndarray:
    """Accuracy of each seed's best variant with `keep` layers, by default all."""
    return np.max([e.accuracy(variant, order, keep) for variant in variants], axis=0)


def worst_accuracy(e: Evidence, variants: Sequence[str], order: Order) -> np.ndarray:
    """Accuracy of each seed's worst variant."""
    return np.min([e.accuracy(variant, order) for variant in variants], axis=0)


def layerdrop_lead(e: Evidence, keep: int) -> np.ndarray:
    """LayerDrop's lead over LS in the original order."""
    return e.accuracy("layerdrop", "sequential", keep) - e.accuracy("ls", "sequential", keep)


def distances(e: Evidence, variant: str) -> np.ndarray:
    """Distance of each seed's accuracy under arbitrary orders from the seeds' median.

    Raises:
        NotRun: fewer than four seeds, whose distances follow from each other too much.
    """
    values = e.accuracy(variant, "arbitrary")
    if len(values) < 4:
        raise NotRun(f"{len(values)} seeds: how much they differ takes at least 4")
    return np.abs(values - np.median(values))


def share_left(e: Evidence, variant: str, order: Order, keep: int | None = None) -> np.ndarray:
    """Accuracy above chance in % of that with all layers in the original order."""
    if keep:
        require_depth(e)
    return e.excess(e.accuracy(variant, order, keep), e.accuracy(variant, "sequential"))


def robustness_lead(e: Evidence) -> np.ndarray:
    """What random orders leave of LS minus what they leave of the baseline or of LayerDrop.

    Of these two that which keeps more.
    """
    others = [share_left(e, variant, "arbitrary") for variant in (BASELINE, "layerdrop")]
    return share_left(e, "ls", "arbitrary") - np.max(others, axis=0)


def require_depth(e: Evidence) -> None:
    """Check that the data need the depth that claims on layers left out are about.

    Raises:
        NotComparable: the first three layers, refined alone, are as good as all.
    """
    lead = find_lead(e.table("prune_eval"), DEPTH)
    if lead and lead.low <= 0:
        raise NotComparable(
            "a floor is as good: all layers are "
            f"{describe_lead(lead)} points above the first three, refined alone"
        )


def ahead_of_start(e: Evidence) -> np.ndarray:
    """The baseline minus each seed's starting weights, in the original order.

    Raises:
        NotRun: the starting weights were not trained here.
    """
    pretrain = e.table("pretrain")
    losses = [f"{split}/sequential/loss" for split in ("heldout", "validation")]
    loss = next((column for column in losses if column in pretrain), None)
    if loss is None:
        raise NotRun("the accuracy of the starting weights is not among the results")
    best_epochs = pretrain.groupby("seed", sort=False)[loss].idxmin()
    start = 100 * pretrain.loc[best_epochs, "validation/sequential/accuracy"]
    return subtract(e.accuracy(BASELINE, "sequential"), start.to_numpy())


def positions_named(e: Evidence, variant: str) -> np.ndarray:
    """Position accuracy under arbitrary orders, in % of the way from chance to certainty."""
    rows = e.evaluations(variant, "arbitrary", None)
    named = 100 * e.by_seed(rows, "position_accuracy", f"{label(variant)}'s position accuracy")
    chance = 100 / e.num_layers
    return 100 * (named - chance) / (100 - chance)


def last_gain(e: Evidence) -> np.ndarray:
    """What the last five epochs add to LS on ImageNet under arbitrary orders."""
    dataset, model, scale = (e.cell[key] for key in ("dataset", "model", "scale"))
    if dataset != "imagenet" or (dataset, model) not in CELLS or scale != "published":
        raise NotRun("needs ImageNet")
    epochs = e.table("finetune/ls")
    curve = epochs.pivot(index="epoch", columns="seed", values="validation/arbitrary/accuracy")
    if len(curve) < 6:
        raise NotRun(f"{len(curve)} epochs: there is no gain of the last five")
    return 100 * (curve.iloc[-1] - curve.iloc[-6]).to_numpy()


def numbers_kept(e: Evidence) -> list[int]:
    """The numbers of layers that LS was evaluated with. Raises NotRun if there is only one."""
    rows = e.table("prune_eval")
    keep = sorted(rows.loc[rows["variant"] == "ls", "keep"].unique().tolist())
    if len(keep) < 2:
        raise NotRun("LS with several numbers of layers is not among the results")
    return keep


def smallest_gain(e: Evidence, order: Order) -> np.ndarray:
    """The smallest gain of LS from one number of layers to the next."""
    accuracies = [e.accuracy("ls", order, keep) for keep in numbers_kept(e)]
    return np.min(np.diff(accuracies, axis=0), axis=0)


def farthest_from(e: Evidence, accuracy: float, keep: int) -> np.ndarray:
    """An accuracy plus the larger distance of LS and LayerDrop from it, in the original order."""
    accuracies = [e.accuracy(variant, "sequential", keep) for variant in ("ls", "layerdrop")]
    return accuracy + np.max(np.abs(np.subtract(accuracies, accuracy)), axis=0)


def refit(e: Evidence, order: Order, keep: int) -> np.ndarray:
    """Accuracy of refit-k. With all layers that is the baseline."""
    return e.accuracy(BASELINE if keep == e.num_layers else f"refit_{keep}", order)


def refit_lead(e: Evidence) -> np.ndarray:
    """refit-k's smallest lead over LS and LayerDrop with 3 and 6 layers, in the original order."""
    require_depth(e)
    leads = []
    for keep in (3, 6):
        own = refit(e, "sequential", keep)
        leads.append(own - best_accuracy(e, ("ls", "layerdrop"), "sequential", keep))
    return np.min(leads, axis=0)


def refit_against_layerdrop(e: Evidence, keep: int) -> np.ndarray:
    """refit-k minus LayerDrop with k layers, in the original order."""
    require_depth(e)
    return refit(e, "sequential", keep) - e.accuracy("layerdrop", "sequential", keep)


def refit_left(e: Evidence) -> np.ndarray:
    """What a random order leaves of refit-6 or refit-9, whichever keeps more."""
    shares = [e.excess(refit(e, "arbitrary", k), refit(e, "sequential", k)) for k in (6, 9)]
    return np.max(shares, axis=0)


def layerdrop_left(e: Evidence) -> np.ndarray:
    """What a random order leaves of LayerDrop, with the number of layers that it does best with."""
    best = np.max([e.accuracy("layerdrop", "arbitrary", k) for k in numbers_kept(e)], axis=0)
    return e.excess(best, e.accuracy("layerdrop", "sequential"))


def without_trained_order(e: Evidence) -> np.ndarray:
    """refit-3 over the orders that it was not trained in, minus refit-6, in random order."""
    rows = e.evaluations("refit_3", "arbitrary", None)
    what = f"{label('refit_3')}, arbitrary"
    if "0-1-2" not in set(rows["route"]):
        raise NotRun(f"{what}: its routes were not evaluated one by one")
    others = 100 * e.by_seed(rows[rows["route"] != "0-1-2"], "accuracy", what)
    return others - e.accuracy("refit_6", "arbitrary")


def only_ls(e: Evidence) -> np.ndarray:
    """The smallest lead of LS over all others, whatever the number of layers, in random order."""
    leads = []
    for keep in numbers_kept(e):
        ls = e.accuracy("ls", "arbitrary", keep)
        others = best_accuracy(e, ("layerdrop", BASELINE), "arbitrary", keep)
        leads.append(ls - np.maximum(others, refit(e, "arbitrary", keep)))
    return np.min(leads, axis=0)


def analysed(e: Evidence, model: str, number: str, of: str = "seeds") -> np.ndarray:
    """A number of the analysis by seed, or its standard errors over the images (`of` "errors").

    Every image of the analysis has an order of its own.
    """
    analysis = e.read("analysis")
    if model in e.other_methods or number not in analysis["models"].get(model, {}):
        raise NotRun(f"the analysis of {label(model)} is not among the results")
    e.orders.append(analysis["images"])
    return np.array(list(analysis["models"][model][number][of].values()))


def of_start(e: Evidence, number: str) -> Estimate | np.ndarray:
    """A number of the analysis, of each seed's starting weights.

    Where all seeds share their starting weights the interval is over the images. It is too narrow:
    other starting weights and other planes of figure 4a are not in it.
    """
    values = analysed(e, PRETRAINED, number)
    errors = analysed(e, PRETRAINED, number, "errors")
    if len(values) > 1:
        return values
    return from_error(values.item(), errors.item(), e.read("analysis")["images"])


def kept_first(e: Evidence, variant: str, k: int) -> np.ndarray:
    """Accuracy in % with the first k layers in place and an order of the others for each image."""
    sampler = f"fix_first {k}"
    rows = e.rows("samplers", "samplers are", variant=variant, sampler=sampler)
    if len(rows):
        e.orders.append(min(int(rows["images"].iloc[0]), math.factorial(e.num_layers - k)))
    return 100 * e.by_seed(rows, "accuracy", f"{label(variant)} under {sampler}")


def regained(e: Evidence, variant: str, k: int) -> np.ndarray:
    """The part in % of what arbitrary orders cost that the first k layers in place bring back."""
    worst, kept, best = (kept_first(e, variant, first) for first in (0, k, e.num_layers))
    return 100 * (kept - worst) / (best - worst)


def flattered(e: Evidence, rows: dict[str, Order]) -> np.ndarray:
    """How many points more a row has where the reported images choose the epoch, at most.

    Held-out images choose otherwise. A training whose epoch stays has 0.

    Args:
        e: the results.
        rows: variants with the order whose loss chooses.

    Raises:
        NothingToTell: both choose the same epoch of every training.
    """
    protocols = e.table("protocols")
    if protocols.empty or set(protocols["protocol"]) != {"paper", "heldout"}:
        raise NotRun("no images were held out")
    for order in ORDERS:
        e.evaluations(BASELINE, order, None)
    protocols = protocols[protocols["variant"].isin(rows)]
    trainings = protocols.set_index(["protocol", "variant", "seed"])
    gain = trainings.loc["paper"] - trainings.loc["heldout"]
    if not gain["epoch"].any():
        raise NothingToTell(
            "held-out images chose the same epoch of every training: nothing could change"
        )
    in_order = gain.index.get_level_values("variant").map(rows) == "sequential"
    points = 100 * gain["sequential"].where(in_order, gain["arbitrary"])
    return points.groupby("seed", sort=False).max().to_numpy()


MEASURES = {
    measure.__name__: measure
    for measure in (
        accuracy,
        best_accuracy,
        worst_accuracy,
        layerdrop_lead,
        distances,
        share_left,
        robustness_lead,
        ahead_of_start,
        positions_named,
        last_gain,
        smallest_gain,
        farthest_from,
        refit_lead,
        refit_against_layerdrop,
        refit_left,
        layerdrop_left,
        without_trained_order,
        only_ls,
        analysed,
        of_start,
        regained,
        flattered,
    )
}
