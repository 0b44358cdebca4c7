"""The position encoding: the paper's size at every width, its initial weights as at the paper's."""

from typing import Any

import pytest
import torch
from torch import nn

from lsvit.position import Encode, PositionEncoding, Predict
from tests.conftest import refused

PUBLISHED = 768


def made(width: int, spec: Encode) -> PositionEncoding:
    torch.manual_seed(0)
    return PositionEncoding(3, width, spec)


def modules_of(encoding: PositionEncoding) -> tuple[list[Any], list[Any]]:
    """Its tables of embeddings, and its projections without norm, activation and dropout."""
    projections: Any = encoding.projections
    return list(encoding.embeddings), [projection[1] for projection in projections]


def torchs(width: int, dim: int) -> tuple[list[Any], list[Any]]:
    """What torch's own initialisation gives, drawn in the same order."""
    torch.manual_seed(0)
    tables = [nn.Embedding(3, dim) for _ in range(3)]
    return tables, [nn.Linear(width + dim, width) for _ in range(3)]


@pytest.mark.parametrize("width", [768, 32, 8])
def test_the_embedding_is_as_wide_as_the_papers(width: int) -> None:
    """At every width; a size that is given is taken."""
    for spec, expected in ((Encode(), 32), (Encode(dim=5), 5)):
        tables, _ = modules_of(made(width, spec))
        assert {table.embedding_dim for table in tables} == {expected}


@pytest.mark.parametrize("spec", [Encode(), Encode(dim=32)], ids=["by default", "written out"])
def test_at_the_papers_width_it_is_torchs_initialisation_bit_for_bit(spec: Encode) -> None:
    tables, linears = modules_of(made(PUBLISHED, spec))
    own_tables, own_linears = torchs(PUBLISHED, 32)
    for module, own in zip(tables + linears, own_tables + own_linears, strict=True):
        for name, parameter in module.named_parameters():
            assert torch.equal(parameter, own.get_parameter(name))


@pytest.mark.parametrize("width", [16, 192, 1024])
@pytest.mark.parametrize("std", [None, 0.1, 0.003])
def test_the_spread_of_the_weights_is_that_of_the_papers_width(
    width: int, std: float | None
) -> None:
    """The same draws as torch's, and its biases', at the spread that was asked for; the embedding
    stays as it is.
    """
    tables, linears = modules_of(made(width, Encode(dim=8, std=std)))
    own_tables, own_linears = torchs(width, 8)
    factor = (std or (3 * 800) ** -0.5) * (3 * (width + 8)) ** 0.5
    for linear, own in zip(linears, own_linears, strict=True):
        assert torch.allclose(linear.weight, own.weight * factor, rtol=1e-5, atol=0)
        assert torch.allclose(linear.bias, own.bias * factor, rtol=1e-5, atol=0)
        assert linear.weight.std().item() == pytest.approx(std or 0.0204, rel=0.05)
    for table, own_table in zip(tables, own_tables, strict=True):
        assert torch.equal(table.weight, own_table.weight)


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
