"""The names of LayerShuffle's variants."""

from papers.layershuffle.section import LOGISTIC, MISLED
from pipeline.config.paper import find_label

LABELS = {
    "ls": "LS",
    "ls_pos": "LS-pos",
    "ls_pred": "LS-pred",
    "layerdrop": "LayerDrop",
    "ls_pred_mean": "LS-pred, averaged loss",
    "ls_latin": "LS, Latin orders",
    "ls_sample": "LS, an order a sample",
    "ls_contrastive": "LS-contrastive",
    "ls_first": "LS, first layer in place",
    "ls_both": "LS, both orders",
    "ls_self": "LS, its original order as teacher",
    "ls_teacher": "LS, baseline as teacher",
    "ls_best": "LS, growing disorder",
    "baseline_long": "baseline, four times as long",
    "ls_long": "LS, four times as long",
    "ls_latin_long": "LS, Latin orders, four times as long",
    "shared": "one layer repeated",
    "parallel": "layers side by side",
    LOGISTIC: "logistic regression",
    f"ls_pos{MISLED}": "LS-pos, told wrong positions",
}
# Variants that differ from another in how an order is drawn or in a weight alone, and floors: what
# needs no depth or no order. The figures of variants do without them.
PRICE = ("ls_both", "ls_self", "ls_teacher", "ls_best")  # meant to cost less in original order
LONG = ("baseline_long", "ls_long", "ls_latin_long")
CONTROLS = ("ls_sample", "ls_pred_mean", "ls_first", "shared", "parallel", *PRICE, *LONG)


def label(variant: str) -> str:
    """A variant's name in the paper's words."""
    return find_label(variant, LABELS)
