"""The names of LayerShuffle's variants."""

from pipeline.config.paper import find_label

LABELS = {
    "ls": "LS",
    "ls_pos": "LS-pos",
    "ls_pred": "LS-pred",
    "layerdrop": "LayerDrop",
    "ls_contrastive": "LS-contrastive",
    "ls_batch": "LS, one order a batch",
    "ls_sample": "LS, an order a sample",
    "ls_pred_batch": "LS-pred, one order a batch",
    "ls_pred_sum": "LS-pred, summed loss",
}
# Variants that differ from another in what an order is drawn for, or in a weight alone.
# The figures of variants do without them.
CONTROLS = ("ls_batch", "ls_sample", "ls_pred_batch", "ls_pred_sum")


def label(variant: str) -> str:
    """A variant's name in the paper's words."""
    return find_label(variant, LABELS)
