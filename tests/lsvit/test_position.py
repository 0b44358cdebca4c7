"""The position encoding: the paper's size at every width, its initial weights as at the paper's."""

from typing import Any

import pytest
import torch
from torch import nn

from lsvit.position import Encode, PositionEncoding, Predict, position_hits
from tests.conftest import refused
from tests.models import assert_same

SPECS = [Encode(), Encode(dim=1), Encode(dim=8), Encode(dim=8, std=0.1), Encode(std=0.003)]


@pytest.mark.parametrize("width", [16, 192, 768, 1024])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_spread_of_the_weights_is_that_of_the_papers_width(width: int, spec: Encode) -> None:
    """The same draws as torch's, and its biases', at the spread that was asked for.

    The embedding stays as it is, and so does everything at the paper's width.
    """
    assert Encode().dim == 32
    inputs = width + spec.dim
    torch.manual_seed(0)
    encoding: Any = PositionEncoding(3, width, spec)
    torch.manual_seed(0)
    tables = nn.ModuleList(nn.Embedding(3, spec.dim) for _ in range(3))
    linears = [nn.Linear(inputs, width) for _ in range(3)]
    is_published = spec.std is None and inputs == 800
    factor = (spec.std or (3 * 800) ** -0.5) * (3 * inputs) ** 0.5
    rtol = 1e-5
    if is_published:
        factor = 1.0
        rtol = 0.0
    for (_, linear, *_), own in zip(encoding.projections, linears, strict=True):
        expected = {name: weight * factor for name, weight in own.state_dict().items()}
        torch.testing.assert_close(dict(linear.state_dict()), expected, rtol=rtol, atol=0)
    assert_same(encoding.embeddings.state_dict(), tables.state_dict())


def test_layers_that_share_a_table_read_the_embedding_of_their_depth() -> None:
    encoding = PositionEncoding(3, 16, Encode(dim=4, shared=True))
    (table,) = encoding.embeddings
    state = torch.randn(2, 5, 16)
    read = torch.cat([state, table.weight[1].expand(2, 5, -1)], -1)
    torch.testing.assert_close(encoding(state, 2, 1), state + encoding.projections[2](read))


def test_hits_are_counted_over_samples_and_layers() -> None:
    """At depth 0 one of two samples is told 0, at depth 1 both are told 1."""
    logits = [torch.tensor([[2.0, 1, 0], [0, 1, 2]]), torch.tensor([[0.0, 1, 0], [0, 3, 1]])]
    assert position_hits(logits) == 0.75


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        (Encode, {"init": "zero"}, "encode.init: found 'zero', accepted: normal, zeros"),
        (Encode, {"dim": 0}, "encode.dim: found 0, accepted: at least 1"),
        (Predict, {"token": "cls"}, "predict.token: found 'cls', accepted: mean, class_token"),
    ],
)
def test_parts_say_what_they_accept(part: Any, values: dict[str, Any], message: str) -> None:
    with refused(message, ValueError):
        part(**values)
