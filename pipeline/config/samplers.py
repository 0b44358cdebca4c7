"""How params.yaml names the routes of a variant: a sampler, and what a route is drawn for."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lsvit.latin import latin
from lsvit.routes import (
    OneRoute,
    Routes,
    RouteTable,
    Sampler,
    arbitrary,
    drop,
    fix_first,
    fix_last,
    fixed,
    per_sample,
    repeat_first,
    reverse,
    sequential,
    side_by_side,
    skip,
    swap,
)

Spec = str | dict[str, Any]  # a `route:` value of params.yaml
PLAIN: dict[str, Sampler] = {
    "sequential": sequential,
    "arbitrary": arbitrary,
    "reversed": reverse,
    "repeat_first": repeat_first,
    "side_by_side": side_by_side,
}
ORDERLESS = ("repeat_first", "side_by_side")  # an order of their steps changes nothing
PARAMETRISED: dict[str, Callable[..., Sampler]] = {
    "drop": drop,
    "swap": swap,
    "order": fixed,
    "skip": skip,
    "fix_first": fix_first,
    "fix_last": fix_last,
}


def split_spec(spec: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of a sampler with a parameter, and its other keys."""
    name = next(key for key in spec if key in PARAMETRISED)
    return name, {key: value for key, value in spec.items() if key != name}


def limit(spec: Spec, num_layers: int) -> tuple[int, int] | None:
    """(found, most accepted) of a number in a checked sampler that is too large for `num_layers`.

    The number is a layer, a count of layers, or a distance. None if all fit.
    """
    if isinstance(spec, str):
        return None
    name, _ = split_spec(spec)
    value = spec[name]
    most = num_layers  # of a count of layers; the rate of drop is below 1
    if name == "swap":
        most = math.comb(num_layers, 2)
    elif name in ("order", "skip"):
        most = num_layers - 1
    largest = max(value) if isinstance(value, list) else value
    if largest > most:
        return largest, most
    if name == "skip" and len(set(value)) == num_layers:  # no layer would be left
        return len(value), num_layers - 1
    if name == "order" and len(value) > num_layers:
        return len(value), num_layers
    return None


def make_sampler(spec: Spec) -> Sampler:
    """The sampler that a checked `route:` value names; one that grows, as it is in the end."""
    if isinstance(spec, str):
        return PLAIN[spec]
    name, rest = split_spec(spec)
    if name == "swap":
        return swap(spec[name])
    return PARAMETRISED[name](spec[name], **rest)


def grown(spec: Spec, progress: float) -> Spec:
    """What a sampler that grows has become.

    Args:
        spec: a checked `route:` value. Others than `{swap: k, schedule: growing}` stay.
        progress: of the training, from 0 to 1.
    """
    if isinstance(spec, dict) and spec.get("schedule") == "growing":
        swaps = progress * spec["swap"]
        return {"swap": swaps if isinstance(spec["swap"], float) else round(swaps)}
    return spec


def sampler_name(spec: Spec) -> str:
    """A checked sampler in words, as tables show it: "arbitrary", "swap 4", "order 2-0-1"."""
    if isinstance(spec, str):
        return spec
    words = []
    for key, value in spec.items():
        shown = "-".join(map(str, value)) if isinstance(value, list) else value
        words.append(f"{key} {shown}")
    return " ".join(words)


def training_order(spec: Spec) -> str:
    """The order a variant is trained for; its validation loss chooses the epoch.

    LayerDrop is meant to be run with all layers. Samplers beyond the paper are validated under
    themselves: "trained".
    """
    if spec == "sequential" or (isinstance(spec, dict) and "drop" in spec):
        return "sequential"
    return "arbitrary" if spec == "arbitrary" else "trained"


def latin_ends(spec: Spec) -> tuple[int, int] | None:
    """How many layers a sampler leaves in place at either end; None if it has no Latin routes."""
    if spec == "arbitrary":
        return 0, 0
    if isinstance(spec, dict) and ("fix_first" in spec or "fix_last" in spec):
        return spec.get("fix_first", 0), spec.get("fix_last", 0)
    return None


def forms(spec: Spec) -> tuple[str, ...]:
    """What a sampler's routes can be drawn for; nothing where all its routes are the same."""
    always_same = isinstance(spec, dict) and ("order" in spec or "skip" in spec)
    if spec in ("sequential", "reversed", *ORDERLESS) or always_same:
        return ()
    return ("batch", "sample", "latin") if latin_ends(spec) else ("batch", "sample")


def draw_routes(
    spec: Spec, per: str, rng: np.random.Generator, num_layers: int, samples: int
) -> Routes:
    """What a training step runs along.

    Args:
        spec: a checked `route:` value.
        per: "batch" (one route), "sample" (one for each sample) or "latin".
        rng: where the routes are drawn from.
        num_layers, samples: of the model and of the batch.
    """
    if per == "latin":
        ends = latin_ends(spec)
        assert ends is not None  # params.yaml has it for no other sampler
        return latin(rng, num_layers, *ends)
    sampler = make_sampler(spec)
    if per == "sample":
        return RouteTable(per_sample(sampler, rng, num_layers, samples))
    return OneRoute(sampler(rng, num_layers))
