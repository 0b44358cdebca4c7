"""What the papers claim, and the rules, written down before looking at the results, that decide whether it holds."""

import math
from collections.abc import Callable

import numpy as np

from lsvit.ledger import Claim, Evidence, NotRun, Range
from lsvit.params import BASELINE
from lsvit.tables import PUBLISHED, PUBLISHED_VARIANTS, label

LAYERSHUFFLED = ("ls", "ls_pos", "ls_pred")
INF = math.inf
ABOVE_ZERO: Range = (0, INF)
S41, S42, S43 = (f"LayerShuffle, section 4.{n}" for n in (1, 2, 3))


def _best(e: Evidence, order: str, choose: Callable[..., np.ndarray]) -> np.ndarray:
    return choose([e.accuracy(v, order) for v in LAYERSHUFFLED], axis=0)


def _refit(e: Evidence, order: str, keep: int) -> np.ndarray:
    """refit-k; with all layers that is the baseline."""
    return e.accuracy(BASELINE if keep == e.num_layers else f"refit_{keep}", order)


def _lead(e: Evidence, variant: str, other: str, keep: int) -> np.ndarray:
    return e.accuracy(variant, "sequential", keep) - e.accuracy(other, "sequential", keep)


def _regained(e: Evidence, variant: str, k: int) -> np.ndarray:
    """Of what arbitrary orders cost, the part in % that is regained by keeping the first k layers in place."""
    worst, kept, best = (e.sampled(variant, f"fix_first {i}") for i in (0, k, e.num_layers))
    return 100 * (kept - worst) / (best - worst)


def _keep(e: Evidence) -> list[int]:
    return sorted(int(k) for k in e.rows.loc[e.rows["variant"] == "ls", "keep"].unique())


def _table_row(variant: str, order: str) -> Claim:
    column = PUBLISHED_VARIANTS.index(variant)
    published = {cell[:2]: values[column] for cell, values in PUBLISHED.items() if cell[2] == order}
    return Claim(
        f"table1.{variant}.{order}", "LayerShuffle, table 1", f"Accuracy of {label(variant)} in {order} order",
        ", ".join(f"{mean:.2f} ± {std:.2f} ({data} {model})" for (data, model), (mean, std) in published.items()),
        "its accuracy", lambda e: e.accuracy(variant, order), (-2, 2), unit="%",
        centre=lambda e: published[e.published_cell()][0],
    )  # fmt: skip


def _imagenet_vit(e: Evidence) -> None:
    if e.published_cell() != ("ImageNet", "ViT-B/16"):
        raise NotRun("the figure is about ImageNet with ViT-B/16")


def _about(figure: float) -> Callable[[Evidence], float]:
    def centre(e: Evidence) -> float:
        _imagenet_vit(e)
        return figure

    return centre


def _not_deit(e: Evidence, values: np.ndarray) -> np.ndarray:
    if e.cell["model"].startswith("deit"):
        raise NotRun("the claim is about ViT; on DeiT the paper finds LS narrowly ahead")
    return values


def _hours(e: Evidence) -> np.ndarray:
    raise NotRun("needs an H100 and ImageNet; `lsvit cost` estimates it")


LAYERSHUFFLE = [
    *(_table_row(variant, order) for variant in PUBLISHED_VARIANTS for order in ("sequential", "arbitrary")),
    Claim("s4.1.collapse", S41, "Without LayerShuffle accuracy falls to chance under arbitrary orders", "below 1 % in every cell",
          "the baseline's accuracy above chance under arbitrary orders, in % of that in the original order",
          lambda e: e.excess(e.accuracy(BASELINE, "arbitrary"), e.accuracy(BASELINE, "sequential")), (-INF, 1), (-INF, 50), "%",
          scale="a collapse, but orders that begin with the first layers keep some accuracy, see control.first-layer"),
    Claim("s4.1.price", S41, "In the original order every LayerShuffle approach is below the baseline", "4.6 to 28.7 points below",
          "the baseline's lead over the best of LS, LS-pos, LS-pred",
          lambda e: e.accuracy(BASELINE, "sequential") - _best(e, "sequential", np.max), ABOVE_ZERO),
    Claim("s4.1.gain", S41, "Under arbitrary orders every LayerShuffle approach improves dramatically on the baseline",
          "52.9 to 66.5 points above", "the lead of the worst of LS, LS-pos, LS-pred over the baseline",
          lambda e: _best(e, "arbitrary", np.min) - e.accuracy(BASELINE, "arbitrary"), (10, INF), ABOVE_ZERO),
    Claim("s4.1.sequential-better", S41, "Every LayerShuffle approach is better in the original order than in an arbitrary one",
          "6.5 to 13.9 points, every approach and cell", "the smallest lead of the original order among LS, LS-pos, LS-pred",
          lambda e: np.min([e.accuracy(v, "sequential") - e.accuracy(v, "arbitrary") for v in LAYERSHUFFLED], axis=0), ABOVE_ZERO),
    Claim("s4.1.position-slight", "LayerShuffle, section 1", "Telling each layer its position changes accuracy only slightly",
          "-0.7 to +1.1 points, arbitrary order", "LS-pos minus LS under arbitrary orders",
          lambda e: e.accuracy("ls_pos", "arbitrary") - e.accuracy("ls", "arbitrary"), (-2, 2),
          scale="the new position parts start from random weights and have few steps to become useful"),
    Claim("s4.1.position-better", S41, "For ViT, LS-pos outperforms LS under arbitrary orders", "+0.84 (ImageNet), +1.13 (CIFAR-100)",
          "LS-pos minus LS under arbitrary orders",
          lambda e: _not_deit(e, e.accuracy("ls_pos", "arbitrary") - e.accuracy("ls", "arbitrary")), ABOVE_ZERO,
          scale="the new position parts start from random weights and have few steps to become useful"),
    Claim("s4.1.predict-worst", S41, "LS-pred is below LS and LS-pos under arbitrary orders", "0.8 to 6.2 points below",
          "the lead of the worse of LS and LS-pos over LS-pred",
          lambda e: np.minimum(e.accuracy("ls", "arbitrary"), e.accuracy("ls_pos", "arbitrary")) - e.accuracy("ls_pred", "arbitrary"),
          ABOVE_ZERO, scale="LS-pos itself falls short here, see s4.1.position-slight"),
    Claim("s4.1.position-accuracy", S41, "LS-pred names a layer's position correctly", "99.99 % (ImageNet)",
          "its position accuracy, in % of the way from chance to certainty",
          lambda e: 100 * (e.position_accuracy() - 100 / e.num_layers) / (100 - 100 / e.num_layers), (99.9, INF), ABOVE_ZERO, "%",
          scale="twelve new heads share few steps, and the position loss is averaged, not summed, over the layers"),
    Claim("abstract.reduction", "LayerShuffle, abstract", "Arbitrary orders cost about 20 % in accuracy at the same model size",
          "19.8 points (ImageNet ViT-B/16), 14.5 (DeiT-B)", "the baseline in original order minus LS under arbitrary orders",
          lambda e: e.accuracy(BASELINE, "sequential") - e.accuracy("ls", "arbitrary"), (-INF, 25), (-INF, 50)),
    Claim("s4.speed", "LayerShuffle, section 4", "20 epochs on ImageNet take about 7 h on one H100", "1,016 training images/s",
          "the hours", _hours, (0, 7), unit="h"),
    Claim("fig1b.keep3", S42, "Original order, 3 layers: LS is ahead of LayerDrop", "18 % against nearly 0", "LS minus LayerDrop",
          lambda e: _lead(e, "ls", "layerdrop", 3), ABOVE_ZERO),
    Claim("fig1b.keep3.ls", S42, "Original order, 3 layers: LS reaches about 18 %", "18 %", "its accuracy",
          lambda e: e.accuracy("ls", "sequential", 3), (-5, 5), unit="%", centre=_about(18)),
    Claim("fig1b.keep3.layerdrop", S42, "Original order, 3 layers: LayerDrop is near chance", "close to 0 %",
          "LayerDrop's accuracy above chance with 3 layers, in % of that with all",
          lambda e: e.excess(e.accuracy("layerdrop", "sequential", 3), e.accuracy("layerdrop", "sequential")), (-INF, 5), (-INF, 50), "%",
          scale="ten classes and shallow features: three layers of a micro model still classify"),
    Claim("fig1b.keep6", S42, "Original order, 6 layers: LS and LayerDrop are on par", "on par", "LS minus LayerDrop",
          lambda e: _lead(e, "ls", "layerdrop", 6), (-5, 5)),
    Claim("fig1b.keep9", S42, "Original order, 9 layers: LayerDrop is ahead of LS", "slightly", "LayerDrop minus LS",
          lambda e: _lead(e, "layerdrop", "ls", 9), ABOVE_ZERO),
    Claim("fig1b.keep9.range", S42, "Original order, 9 layers: LS and LayerDrop both lie between 70 and 80 %", "70 to 80 %",
          "75 % plus the larger of their distances from it",
          lambda e: 75 + np.max(np.abs([e.accuracy(v, "sequential", 9) - 75 for v in ("ls", "layerdrop")]), axis=0), (-5, 5), unit="%",
          centre=_about(75)),
    Claim("fig1b.gap", S42, "The gap between LayerDrop and LS stays about the same from 9 to 12 layers", "roughly the same",
          "the gap at 12 minus the gap at 9",
            lambda e: _lead(e, "layerdrop", "ls", 12) - _lead(e, "layerdrop", "ls", 9), (-3, 3)),
    Claim("fig1b.full", S42, "With all layers LayerDrop closes in on the baseline", "closes in", "the baseline minus LayerDrop",
          lambda e: e.accuracy(BASELINE, "sequential") - e.accuracy("layerdrop", "sequential"), (-INF, 2)),
    Claim("fig1b.refit", S42, "Original order: refit-k is best at 3 and 6 layers", "significantly better",
          "the smaller of refit-k's leads over LS and LayerDrop at 3 and 6",
          lambda e: np.min([_refit(e, "sequential", k) - e.accuracy(v, "sequential", k) for k in (3, 6) for v in ("ls", "layerdrop")],
                           axis=0), ABOVE_ZERO),
    Claim("fig1b.refit9", S42, "Original order: refit-9 is similar to LayerDrop with 9 layers", "similar", "refit-9 minus LayerDrop",
          lambda e: _refit(e, "sequential", 9) - e.accuracy("layerdrop", "sequential", 9), (-3, 3),
          scale="LayerDrop at p = 0.2 has seen few sub-networks in few epochs"),
    Claim("fig1c.only-ls", S42, "Random order: LS is the only approach that succeeds", "LS alone",
          "the smallest lead of LS over LayerDrop and refit-k at any number of layers",
          lambda e: np.min([e.accuracy("ls", "arbitrary", k) - other for k in _keep(e)
                            for other in (e.accuracy("layerdrop", "arbitrary", k), _refit(e, "arbitrary", k))], axis=0), ABOVE_ZERO),
    Claim("fig1c.grows", S42, "Random order: LS improves with every layer kept", "3, 6, 9, 12 layers",
          "its smallest gain from one number of layers to the next",
          lambda e: np.min(np.diff([e.accuracy("ls", "arbitrary", k) for k in _keep(e)], axis=0), axis=0), ABOVE_ZERO),
    Claim("fig1c.layerdrop", S42, "Random order: LayerDrop fails regardless of the number of layers", "near 0 %",
          "LayerDrop's best accuracy above chance, in % of that in original order",
          lambda e: e.excess(np.max([e.accuracy("layerdrop", "arbitrary", k) for k in _keep(e)], axis=0),
                             e.accuracy("layerdrop", "sequential")), (-INF, 5), (-INF, 50), "%",
          scale="far behind LS, but a micro model that has missed layers in training tolerates some disorder"),
    Claim("fig1c.refit3", S42, "Random order: refit-3 stands out only because few permutations include the trained order",
          "one of 5 drawn permutations", "refit-3 over the five orders it was not trained in, minus refit-6",
          lambda e: e.without("refit_3", "arbitrary", "0-1-2") - e.accuracy("refit_6", "arbitrary"), (-INF, 5)),
    Claim("fig4ab", S43, "After LayerShuffle a layer's output tells its position; in the starting weights it does not", "by eye",
          "R² of the position in the plane, LS minus starting weights",
          lambda e: e.number("ls", "position_r2") - e.number("pretrained", "position_r2"), ABOVE_ZERO, unit=""),
    Claim("fig4cd", S43, "After LayerShuffle a layer's contribution falls away from its place; in the starting weights it does not",
          "by eye", "Spearman's correlation of distance and norm, LS minus starting weights",
          lambda e: e.number("ls", "distance_spearman") - e.number("pretrained", "distance_spearman"), (-INF, 0), unit=""),
    Claim("control.first-layer", "beyond the paper", "Most of the baseline's collapse comes from its first layer alone", "not studied",
          "the part of its loss under arbitrary orders that goes away when the first layer stays in place",
          lambda e: _regained(e, BASELINE, 1), (50, INF), unit="%"),
    Claim("control.protocol", "beyond the paper", "Choosing the epoch on the reported images hardly flatters Table 1", "not studied",
          "the largest change of any row when held-out images choose instead", Evidence.protocol_change, (-INF, 1)),
]  # fmt: skip
CLAIMS = LAYERSHUFFLE
