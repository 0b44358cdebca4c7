"""What LayerShuffle claims, and the rules that decide whether it holds."""

import numpy as np

from lsvit.routes import ORDERS, Order
from papers.layershuffle.measures import (
    LAYERSHUFFLED,
    ahead_of_start,
    approaches,
    around,
    by_batch,
    distances,
    gained,
    if_of,
    last_gain,
    lead,
    needs,
    numbers_kept,
    of_start,
    only_ls,
    position_accuracy,
    positions_named,
    protocol_change,
    published_range,
    refit,
    regained,
    shuffled,
    smallest_gain,
    trained_latin,
    without_route,
)
from papers.layershuffle.tables import PUBLISHED, PUBLISHED_VARIANTS
from pipeline.config.variant import BASELINE
from pipeline.report.evaluations import label
from pipeline.report.ledger import ABOVE_ZERO, COLLAPSE, HOURS, INF, SHARE, Claim
from pipeline.report.quotes import quoted

LATIN = "beyond the paper: Latin orders"
IMAGENET = "-S dataset=imagenet -S model=vit_b16"
S41, S42, S43 = (f"LayerShuffle, section 4.{n}" for n in (1, 2, 3))


def _table_row(variant: str, order: Order) -> Claim:
    column = PUBLISHED_VARIANTS.index(variant)
    published = {cell[:2]: values[column] for cell, values in PUBLISHED.items() if cell[2] == order}
    return Claim(
        f"table1.{variant}.{order}",
        "LayerShuffle, table 1",
        f"Accuracy of {label(variant)} in {order} order",
        ", ".join(
            f"{mean:.2f} ± {std:.2f} ({data} {model})"
            for (data, model), (mean, std) in published.items()
        ),
        "its accuracy",
        lambda e: e.accuracy(variant, order),
        (-2, 2),
        unit="%",
        centre=lambda e: published[e.published_cell()][0],
        possible=SHARE,
        run=IMAGENET,
    )


def _sequential_better(variant: str) -> Claim:
    return Claim(
        f"s4.1.sequential-better.{variant}",
        S41,
        f"{label(variant)} is better in the original order than in an arbitrary one",
        published_range(lambda s, a: s[variant] - a[variant]),
        f"{label(variant)} in original minus arbitrary order",
        lambda e: e.accuracy(variant, "sequential") - e.accuracy(variant, "arbitrary"),
        ABOVE_ZERO,
    )


def _predict_worse(other: str) -> Claim:
    return Claim(
        f"s4.1.predict-worst.{other}",
        S41,
        f"LS-pred is below {label(other)} under arbitrary orders",
        published_range(lambda s, a: a[other] - a["ls_pred"]),
        f"{label(other)} minus LS-pred under arbitrary orders",
        lambda e: e.accuracy(other, "arbitrary") - e.accuracy("ls_pred", "arbitrary"),
        ABOVE_ZERO,
    )


CLAIMS = quoted(
    [
        *(_table_row(variant, order) for variant in PUBLISHED_VARIANTS for order in ORDERS),
        Claim(
            "s4.1.collapse",
            S41,
            "Without LayerShuffle accuracy falls to chance under arbitrary orders",
            "below 1 % in every cell",
            "the baseline's accuracy above chance under arbitrary orders, in % of that in the original order",
            lambda e: e.excess(
                e.accuracy(BASELINE, "arbitrary"), e.accuracy(BASELINE, "sequential")
            ),
            *COLLAPSE,
            "%",
            scale="a collapse, but with its first six layers in place a micro model needs no order any more",
        ),
        Claim(
            "s4.1.price",
            S41,
            "In the original order every LayerShuffle approach is below the baseline",
            published_range(lambda s, a: s[BASELINE] - max(approaches(s))),
            "the baseline's lead over the best of LS, LS-pos, LS-pred",
            lambda e: (
                e.accuracy(BASELINE, "sequential") - np.max(shuffled(e, "sequential"), axis=0)
            ),
            ABOVE_ZERO,
        ),
        Claim(
            "s4.1.gain",
            S41,
            "Under arbitrary orders every LayerShuffle approach improves dramatically on the baseline",
            published_range(lambda s, a: min(approaches(a)) - a[BASELINE]),
            "the lead of the worst of LS, LS-pos, LS-pred over the baseline",
            lambda e: np.min(shuffled(e, "arbitrary"), axis=0) - e.accuracy(BASELINE, "arbitrary"),
            (10, INF),
            ABOVE_ZERO,
        ),
        *map(_sequential_better, LAYERSHUFFLED),
        Claim(
            "s4.1.gain.batch",
            S41,
            "LS as published, with one order a batch, improves dramatically on the baseline under arbitrary orders",
            published_range(lambda s, a: a["ls"] - a[BASELINE]),
            "LS with one order a batch minus the baseline, under arbitrary orders",
            lambda e: e.accuracy(by_batch(e), "arbitrary") - e.accuracy(BASELINE, "arbitrary"),
            (10, INF),
            ABOVE_ZERO,
        ),
        Claim(
            "s4.1.price.batch",
            S41,
            "LS as published, with one order a batch, is below the baseline in the original order",
            published_range(lambda s, a: s[BASELINE] - s["ls"]),
            "the baseline minus LS with one order a batch, in original order",
            lambda e: e.accuracy(BASELINE, "sequential") - e.accuracy(by_batch(e), "sequential"),
            ABOVE_ZERO,
        ),
        Claim(
            "s4.1.position-slight",
            "LayerShuffle, section 1",
            "Telling each layer its position changes accuracy only slightly",
            published_range(lambda s, a: a["ls_pos"] - a["ls"]),
            "LS-pos minus LS under arbitrary orders",
            lambda e: e.accuracy("ls_pos", "arbitrary") - e.accuracy("ls", "arbitrary"),
            (-2, 2),
            scale="the new position parts start from random weights and have few steps to become useful",
        ),
        Claim(
            "s4.1.position-better",
            S41,
            "For ViT, LS-pos outperforms LS under arbitrary orders",
            "+0.84 (ImageNet), +1.13 (CIFAR-100)",
            "LS-pos minus LS under arbitrary orders",
            lambda e: if_of(
                e, "ViT", e.accuracy("ls_pos", "arbitrary") - e.accuracy("ls", "arbitrary")
            ),
            ABOVE_ZERO,
            scale="the new position parts start from random weights and have few steps to become useful",
        ),
        Claim(
            "s4.1.position-deit",
            S41,
            "For DeiT, LS narrowly outperforms LS-pos under arbitrary orders",
            "+0.73 (ImageNet), +0.68 (CIFAR-100)",
            "LS minus LS-pos under arbitrary orders",
            lambda e: if_of(
                e, "DeiT", e.accuracy("ls", "arbitrary") - e.accuracy("ls_pos", "arbitrary")
            ),
            (0, 3),
            run="-S model=deit_micro",
        ),
        Claim(
            "s4.1.baseline",
            S41,
            "The refined baseline is very close to the starting weights in the original order",
            "very close",
            "the baseline minus the starting weights",
            ahead_of_start,
            (-2, 2),
        ),
        Claim(
            "s4.1.cifar",
            S41,
            "On CIFAR-100 the gap between baseline and LS is larger for ViT-B/16 than on ImageNet",
            "25.2 points against 7.4",
            "the difference of the two gaps",
            needs("the cells of both data sets"),
            ABOVE_ZERO,
        ),
        Claim(
            "table1.above60",
            "LayerShuffle, table 1",
            "Even LS alone reaches more than 60 % under arbitrary orders",
            "62.77 % (ImageNet ViT-B/16)",
            "its accuracy",
            lambda e: e.accuracy("ls", "arbitrary"),
            ABOVE_ZERO,
            unit="%",
            **around(60),
            possible=SHARE,
            run=IMAGENET,
        ),
        *map(_predict_worse, ("ls", "ls_pos")),
        Claim(
            "s4.1.position-accuracy",
            S41,
            "LS-pred names a layer's position correctly",
            "99.99 % (ImageNet)",
            "its position accuracy, in % of the way from chance to certainty",
            lambda e: positions_named(e, "ls_pred"),
            (99.9, INF),
            ABOVE_ZERO,
            "%",
            possible=(-INF, 100),
            scale="twelve new heads share few steps; in micro models the position loss is averaged, too, not summed, over the layers",
        ),
        Claim(
            "s4.1.position-accuracy.sum",
            S41,
            "LS-pred with the position losses summed names a layer's position correctly",
            "99.99 % (ImageNet)",
            "its position accuracy, in % of the way from chance to certainty",
            lambda e: positions_named(e, "ls_pred_sum"),
            (99.9, INF),
            ABOVE_ZERO,
            "%",
            possible=(-INF, 100),
            run=HOURS,
        ),
        Claim(
            "abstract.reduction",
            "LayerShuffle, abstract",
            "Arbitrary orders cost no more than about 20 % in accuracy at the same model size",
            published_range(lambda s, a: s[BASELINE] - a["ls"]),
            "the baseline in original order minus LS under arbitrary orders",
            lambda e: e.accuracy(BASELINE, "sequential") - e.accuracy("ls", "arbitrary"),
            (-INF, 25),
            (-INF, 50),
        ),
        Claim(
            "s4.batch",
            "LayerShuffle, section 4",
            "Batches smaller than 128 images do not improve performance",
            "no improvement",
            "LS with half the batch (a variant `ls_half_batch`) minus LS, under arbitrary orders",
            lambda e: e.accuracy("ls_half_batch", "arbitrary") - e.accuracy("ls", "arbitrary"),
            (-INF, 1),
            run="-S '+variants.ls_half_batch={route: arbitrary, finetune: {batch_size: 60}}'",
        ),
        Claim(
            "s4.plateau",
            "LayerShuffle, section 4",
            "On ImageNet performance plateaus at 20 epochs the latest",
            "by eye",
            "the gain of LS's last five epochs under arbitrary orders",
            last_gain,
            (-INF, 0.5),
            run=IMAGENET,
        ),
        Claim(
            "s4.speed",
            "LayerShuffle, section 4",
            "20 epochs on ImageNet take about 7 h on one H100",
            "1,016 training images/s",
            "the hours",
            needs("an H100 and ImageNet; `lsvit cost` estimates them"),
            (0, 8),
            unit="h",
        ),
        Claim(
            "fig1b.keep3",
            S42,
            "Original order, 3 layers: LS is ahead of LayerDrop",
            "18 % against nearly 0",
            "LS minus LayerDrop",
            lambda e: lead(e, "ls", "layerdrop", 3),
            ABOVE_ZERO,
        ),
        Claim(
            "fig1b.keep3.ls",
            S42,
            "Original order, 3 layers: LS reaches about 18 %",
            "18 %",
            "its accuracy",
            lambda e: e.accuracy("ls", "sequential", 3),
            (-5, 5),
            unit="%",
            **around(18),
            possible=SHARE,
            run=IMAGENET,
        ),
        Claim(
            "fig1b.keep3.layerdrop",
            S42,
            "Original order, 3 layers: LayerDrop is near chance",
            "close to 0 %",
            "LayerDrop's accuracy above chance with 3 layers, in % of that with all",
            lambda e: e.excess(
                e.accuracy("layerdrop", "sequential", 3), e.accuracy("layerdrop", "sequential")
            ),
            *COLLAPSE,
            "%",
            scale="ten classes and shallow features: three layers of a micro model still classify",
        ),
        Claim(
            "fig1b.keep6",
            S42,
            "Original order, 6 layers: LS and LayerDrop are on par",
            "on par",
            "LS minus LayerDrop",
            lambda e: lead(e, "ls", "layerdrop", 6),
            (-5, 5),
        ),
        Claim(
            "fig1b.keep9",
            S42,
            "Original order, 9 layers: LayerDrop is ahead of LS",
            "slightly",
            "LayerDrop minus LS",
            lambda e: lead(e, "layerdrop", "ls", 9),
            (0, 10),
        ),
        Claim(
            "fig1b.grows",
            S42,
            "Original order: LS declines gracefully as layers are removed",
            "every step",
            "its smallest gain from one number of layers to the next",
            lambda e: smallest_gain(e, "sequential"),
            ABOVE_ZERO,
        ),
        Claim(
            "fig1b.full.ls",
            S42,
            "Original order, all layers: LS is below LayerDrop",
            "slightly",
            "LayerDrop minus LS",
            lambda e: lead(e, "layerdrop", "ls", e.num_layers),
            (0, 10),
        ),
        Claim(
            "fig1b.keep9.range",
            S42,
            "Original order, 9 layers: LS and LayerDrop both lie between 70 and 80 %",
            "70 to 80 %",
            "75 % plus the larger of their distances from it",
            lambda e: (
                75
                + np.max(
                    np.abs([e.accuracy(v, "sequential", 9) - 75 for v in ("ls", "layerdrop")]),
                    axis=0,
                )
            ),
            (-5, 5),
            unit="%",
            **around(75),
            run=IMAGENET,
        ),
        Claim(
            "fig1b.gap",
            S42,
            "The gap between LayerDrop and LS stays about the same from 9 to 12 layers",
            "roughly the same",
            "the gap at 12 minus the gap at 9",
            lambda e: lead(e, "layerdrop", "ls", 12) - lead(e, "layerdrop", "ls", 9),
            (-3, 3),
        ),
        Claim(
            "fig1b.full",
            S42,
            "With all layers LayerDrop closes in on the baseline",
            "closes in",
            "the baseline minus LayerDrop",
            lambda e: e.accuracy(BASELINE, "sequential") - e.accuracy("layerdrop", "sequential"),
            (-INF, 2),
        ),
        Claim(
            "fig1b.refit",
            S42,
            "Original order: refit-k is best at 3 and 6 layers",
            "significantly better",
            "the smaller of refit-k's leads over LS and LayerDrop at 3 and 6",
            lambda e: np.min(
                [
                    refit(e, "sequential", k) - e.accuracy(v, "sequential", k)
                    for k in (3, 6)
                    for v in ("ls", "layerdrop")
                ],
                axis=0,
            ),
            ABOVE_ZERO,
        ),
        Claim(
            "fig1b.refit9",
            S42,
            "Original order: refit-9 is similar to LayerDrop with 9 layers",
            "similar",
            "refit-9 minus LayerDrop",
            lambda e: refit(e, "sequential", 9) - e.accuracy("layerdrop", "sequential", 9),
            (-3, 3),
            scale="LayerDrop at p = 0.2 has seen few sub-networks in few epochs",
        ),
        Claim(
            "fig1c.only-ls",
            S42,
            "Random order: LS is ahead of every other approach with every number of layers",
            "LS alone succeeds",
            "its smallest lead over LayerDrop, refit-k and the baseline",
            only_ls,
            ABOVE_ZERO,
        ),
        Claim(
            "fig1c.grows",
            S42,
            "Random order: LS improves with every layer kept",
            "every step",
            "its smallest gain from one number of layers to the next",
            lambda e: smallest_gain(e, "arbitrary"),
            ABOVE_ZERO,
        ),
        Claim(
            "fig1c.refit",
            S42,
            "Random order: refit-6 and refit-9 fail",
            "near 0 %",
            "the better one's accuracy above chance, in % of that in its original order",
            lambda e: np.max(
                [e.excess(refit(e, "arbitrary", k), refit(e, "sequential", k)) for k in (6, 9)],
                axis=0,
            ),
            *COLLAPSE,
            "%",
            scale="a micro model tolerates more disorder than a pre-trained one",
        ),
        Claim(
            "fig1c.layerdrop",
            S42,
            "Random order: LayerDrop fails regardless of the number of layers",
            "near 0 %",
            "LayerDrop's best accuracy above chance, in % of that in original order",
            lambda e: e.excess(
                np.max([e.accuracy("layerdrop", "arbitrary", k) for k in numbers_kept(e)], axis=0),
                e.accuracy("layerdrop", "sequential"),
            ),
            *COLLAPSE,
            "%",
            scale="far behind LS, but a micro model that has missed layers in training tolerates some disorder",
        ),
        Claim(
            "fig1c.refit3",
            S42,
            "Random order: refit-3 stands out only because few permutations include the trained order",
            "one of 5 drawn permutations",
            "refit-3 over the five orders it was not trained in, minus refit-6",
            lambda e: (
                without_route(e, "refit_3", "arbitrary", "0-1-2")
                - e.accuracy("refit_6", "arbitrary")
            ),
            (-INF, 5),
        ),
        Claim(
            "fig4a",
            S43,
            "In the starting weights a layer's output shows no clear order of its position",
            "by eye",
            "R² of the position in the plane",
            of_start("position_r2"),
            (-INF, 0.5),
            unit="",
            possible=(-INF, 1),
        ),
        Claim(
            "fig4b",
            S43,
            "After LayerShuffle a layer's output tells its position better than in the starting weights",
            "by eye",
            "R² of the position in the plane, LS minus starting weights",
            lambda e: gained(e, "position_r2"),
            ABOVE_ZERO,
            unit="",
        ),
        Claim(
            "fig4c",
            S43,
            "In the starting weights a layer's contribution does not depend on the distance from its place",
            "by eye",
            "Spearman's correlation of distance and norm",
            of_start("distance_spearman"),
            (-0.05, 0.05),
            (-0.15, 0.15),
            unit="",
            possible=(-1, 1),
        ),
        Claim(
            "fig4d",
            S43,
            "After LayerShuffle a layer's contribution falls away from its place, more than in the starting weights",
            "by eye",
            "Spearman's correlation of distance and norm, LS minus starting weights",
            lambda e: gained(e, "distance_spearman"),
            (-INF, 0),
            unit="",
        ),
        Claim(
            "fig4d.near",
            S43,
            "After LayerShuffle a layer far from its place reduces its output",
            "often, by eye",
            "mean norm of the contribution within one place of the original one over that at least half the depth away, LS minus starting "
            "weights",
            lambda e: gained(e, "near_far_ratio"),
            ABOVE_ZERO,
            unit="",
        ),
        Claim(
            "fig4d.ends",
            S43,
            "After LayerShuffle layers from the input's end contribute more near the input, and vice versa",
            "often",
            "Spearman's correlation of position and norm, last minus first quarter of the layers, LS minus starting weights",
            lambda e: gained(e, "slope_late_minus_early"),
            ABOVE_ZERO,
            unit="",
        ),
        Claim(
            "control.first-layer",
            "beyond the paper",
            "Most of the baseline's collapse comes from its first layer alone",
            "not studied",
            "the part of its loss under arbitrary orders that goes away when the first layer stays in place",
            lambda e: regained(e, BASELINE, 1),
            (50, INF),
            unit="%",
            scale="it is so where initial weights are alike in all layers of a narrow model, and not in a pre-trained ViT-S",
        ),
        Claim(
            "latin.arbitrary",
            LATIN,
            "Trained with Latin orders, LS is better under arbitrary orders than with one order a batch",
            "not studied",
            "LS minus LS with one order a batch",
            lambda e: (
                e.accuracy(trained_latin(e, "ls"), "arbitrary")
                - e.accuracy("ls_batch", "arbitrary")
            ),
            ABOVE_ZERO,
        ),
        Claim(
            "latin.sequential",
            LATIN,
            "Latin orders cost no accuracy in the original order",
            "not studied",
            "LS minus LS with one order a batch, in original order",
            lambda e: (
                e.accuracy(trained_latin(e, "ls"), "sequential")
                - e.accuracy("ls_batch", "sequential")
            ),
            (-1, INF),
        ),
        Claim(
            "latin.sample",
            LATIN,
            "Latin orders train as well as an order of its own for every sample",
            "not studied",
            "LS minus LS with an order a sample, under arbitrary orders",
            lambda e: (
                e.accuracy(trained_latin(e, "ls"), "arbitrary")
                - e.accuracy("ls_sample", "arbitrary")
            ),
            (-1, INF),
            run=HOURS,
        ),
        Claim(
            "latin.position",
            LATIN,
            "Trained with Latin orders, LS-pred names positions better than with one order a batch",
            "not studied",
            "the difference in position accuracy",
            lambda e: (
                position_accuracy(e, trained_latin(e, "ls_pred"))
                - position_accuracy(e, "ls_pred_batch")
            ),
            ABOVE_ZERO,
        ),
        Claim(
            "latin.spread",
            LATIN,
            "Latin orders make LS under arbitrary orders differ less from seed to seed",
            "not studied",
            "the seeds' mean distance from their median, one order a batch minus Latin orders",
            lambda e: distances(e, "ls_batch") - distances(e, trained_latin(e, "ls")),
            ABOVE_ZERO,
        ),
        Claim(
            "control.protocol",
            "beyond the paper",
            "Choosing the epoch on the reported images hardly flatters Table 1",
            "not studied",
            "the largest change of a training whose epoch changes when held-out images choose",
            protocol_change,
            (-INF, 1),
            possible=(0, 100),
        ),
    ],
    __file__,
)
TITLE = "LayerShuffle"  # of the paper in the report
HEADLINE = ()  # claims whose value `dvc metrics` shows
