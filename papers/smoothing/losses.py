"""Losses against over-smoothing as pure functions."""

from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, softplus


def patch_cosine(patches: Tensor) -> Tensor:
    """Cosine similarity of an image's patches, mean over pairs (over-smoothing, CosSim and l_cos).

    CosSim(h) = 1 / (n (n - 1)) sum over i != j of h_i . h_j / (||h_i|| ||h_j||). It is computed
    from the sum of the unit vectors, in time linear in the patches.

    Args:
        patches: (B, N, D), N > 1, without class token.

    Returns:
        (B,) in [-1 / (N - 1), 1].
    """
    unit = normalize(patches.float(), dim=-1)
    count = patches.shape[1]
    all_pairs = unit.sum(1).square().sum(-1)
    with_itself = unit.square().sum((1, 2))
    return (all_pairs - with_itself) / (count * (count - 1))


def patch_contrastive(early: Tensor, late: Tensor, normalized: bool = False) -> Tensor:
    """The patch contrastive loss (over-smoothing, l_cons).

    A late patch should be nearer to its own early one than the mean of the late ones is:
    l_cons = -1/n sum_i log(exp(e_i . h_i) / (exp(e_i . h_i) + exp(e_i . mean_j h_j))). A difference
    of two logits decides: softplus(e_i . (mean_j h_j - h_i)). No gradient flows to the early
    patches, as in the source.

    Args:
        early, late: (B, N, D), patches after the first and after the last layer.
        normalized: of unit vectors. The formula's dot products grow with the norms: long patches a
            little apart in direction saturate it, and lengthening them lowers it without turning
            them. Cosines cannot.

    Returns:
        A scalar, mean over images and patches.
    """
    early = early.detach().float()
    late = late.float()
    if normalized:
        early = normalize(early, dim=-1)
        late = normalize(late, dim=-1)
    margin = late.mean(1, keepdim=True) - late  # (B, N, D)
    return softplus((early * margin).sum(-1)).mean()


def patch_classification(logits: Tensor, labels: Tensor) -> Tensor:
    """The patch mixing loss (over-smoothing, l_token): cross-entropy of every patch's own label.

    Args:
        logits: (B, N, C), of the linear head on every patch.
        labels: (B, N), the class of the image that each patch comes from; (B,), that of all of an
            image's; or (B, C), shares of the classes in all of an image.

    Returns:
        A scalar, mean over images and patches.
    """
    if labels.is_floating_point():
        targets = labels.unsqueeze(1).expand_as(logits).flatten(0, 1)
    else:
        targets = labels.view(len(labels), -1).expand(logits.shape[:2]).flatten()
    return cross_entropy(logits.flatten(0, 1), targets)
