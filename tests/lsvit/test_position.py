"""The position encoding's sizes and initial weights: the paper's at the paper's width, in
proportion at others.
"""

from typing import Any

import pytest
import torch
from torch import nn

from lsvit.position import Encode, PositionEncoding

PUBLISHED = 768


def made(width: int, spec: Encode, num_layers: int = 3) -> PositionEncoding:
    torch.manual_seed(0)
    return PositionEncoding(num_layers, width, spec)


def linears(encoding: PositionEncoding) -> list[Any]:
    """Its projections, without norm, activation and dropout."""
    found: Any = encoding.projections
    return [projection[1] for projection in found]


def torchs(width: int, dim: int, num_layers: int = 3) -> tuple[list[nn.Embedding], list[nn.Linear]]:
    """What torch's own initialisation gives, drawn in the same order."""
    torch.manual_seed(0)
    return [nn.Embedding(num_layers, dim) for _ in range(num_layers)], [
        nn.Linear(width + dim, width) for _ in range(num_layers)
    ]


@pytest.mark.parametrize(
    ("width", "dim"),
    [(768, 32), (384, 16), (192, 8), (64, 3), (32, 1), (16, 1), (8, 1), (1024, 43)],
)
def test_the_embedding_is_as_wide_as_the_papers_in_proportion(width: int, dim: int) -> None:
    """32 of 768, but at least one; a width of its own is taken as it is."""
    assert {table.embedding_dim for table in made(width, Encode()).embeddings} == {dim}
    assert {table.embedding_dim for table in made(width, Encode(dim=5)).embeddings} == {5}


@pytest.mark.parametrize("spec", [Encode(), Encode(dim=32)], ids=["by default", "written out"])
def test_at_the_papers_width_it_is_torchs_initialisation_bit_for_bit(spec: Encode) -> None:
    encoding, (tables, projections) = made(PUBLISHED, spec), torchs(PUBLISHED, 32)
    assert all(
        torch.equal(found.weight, own.weight)
        for found, own in zip(encoding.embeddings, tables, strict=True)
    )
    for linear, own in zip(linears(encoding), projections, strict=True):
        assert torch.equal(linear.weight, own.weight)
        assert torch.equal(linear.bias, own.bias)


@pytest.mark.parametrize("width", [16, 32, 192, 1024])
@pytest.mark.parametrize("std", [None, 0.1, 0.003])
def test_the_spread_of_the_weights_is_that_of_the_papers_width(
    width: int, std: float | None
) -> None:
    """The same draws as torch's, and its biases', at the spread that was asked for; the embedding
    stays as it is.
    """
    encoding = made(width, Encode(dim=8, std=std))
    tables, projections = torchs(width, 8)
    factor = (std or (3 * 800) ** -0.5) * (3 * (width + 8)) ** 0.5
    for linear, own in zip(linears(encoding), projections, strict=True):
        assert torch.allclose(linear.weight, own.weight * factor, rtol=1e-5, atol=0)
        assert torch.allclose(linear.bias, own.bias * factor, rtol=1e-5, atol=0)
    assert all(
        torch.equal(found.weight, own.weight)
        for found, own in zip(encoding.embeddings, tables, strict=True)
    )
    spread = torch.cat([linear.weight.flatten() for linear in linears(encoding)]).std().item()
    assert spread == pytest.approx(std or 0.0204, rel=0.05)
