"""Random streams: a name and a key give the same numbers, whatever other streams there are."""

import itertools

import numpy as np
import pytest

from lsvit.routes import arbitrary, generator
from tests.conftest import cases_of

Key = tuple[str | int, ...]
KEYS: list[Key] = [tuple(key) for key in cases_of(__file__)["keys"]]


def numbers(*key: str | int) -> tuple[int, ...]:
    """What a stream begins with."""
    return tuple(generator(str(key[0]), *key[1:]).integers(2**62, size=4).tolist())


def test_every_key_has_numbers_of_its_own() -> None:
    """Names of the same letters in another order, keys of other lengths, a number and the text that
    spells it.
    """
    found = {key: numbers(*key) for key in KEYS}
    for one, other in itertools.combinations(KEYS, 2):
        assert not set(found[one]) & set(found[other]), (one, other)
    assert {key: numbers(*key) for key in reversed(KEYS)} == found


def test_names_count_by_their_letters() -> None:
    """Not by Python's hash of them, which changes with the process, nor by a list of streams.

    The numbers are fixed.
    """
    assert numbers("train", 0, 1, 2) == (
        2404922457087151184,
        3028439548500187069,
        4403553133412787554,
        854650422046064774,
    )
    assert numbers("evaluation", 5, "arbitrary")[:2] == (2788571319727899148, 4320489331195724705)


@pytest.mark.parametrize("key", [("train", 3, 7), ("brand new", 3, 7), ("évaluation", "arbitrary")])
def test_other_streams_cannot_matter(key: Key) -> None:
    """A stream that nothing has used before, others drawn from first, in between and in another
    order.
    """
    name, rest = str(key[0]), key[1:]
    alone = arbitrary(generator(name, *rest), 12)
    np.random.default_rng(0).random(7)
    np.random.seed(1)
    streams = [generator(each, *rest) for each in ("another", name, "third")]
    for stream in (streams[2], streams[0]):
        stream.random(100)
    assert arbitrary(streams[1], 12) == alone
    assert arbitrary(generator("another", *rest), 12) != alone
