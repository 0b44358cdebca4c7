"""Random streams: a name and a key give the same numbers, whatever other streams there are."""

import itertools

from lsvit.routes import generator
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
