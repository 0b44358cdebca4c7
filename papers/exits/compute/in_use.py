"""The exits of a frozen backbone that are put into use. No torch here."""

import json
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from papers.exits.compute.budgets import cumulative_cost, practical, threshold_within
from papers.exits.section import EXITS_IN_USE
from pipeline.files import write_json
from pipeline.jobs.files import ARRAYS


def choose(flops: np.ndarray, score: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """Choose the exits that are put into use (section IV-A): indices by depth.

    These are the best practical one at each depth that has any, and the last: the model's own head
    is there anyway, and early exits, the best of many, look better here than they are. A lead need
    not be beyond noise: many exits make a budget finer.

    Args:
        flops: (E,), up to each exit.
        score: (E, n), of each image.
        depths: (E,).
    """
    index = np.flatnonzero(practical(flops, score, noise=0.0) | (depths == depths.max()))
    means = score.mean(axis=1)
    chosen = []
    for depth in np.unique(depths[index]):
        here = index[depths[index] == depth]
        chosen.append(here[means[here].argmax()])
    return np.array(chosen)


class InUse(NamedTuple):
    """Exits put into use on a model, E of them by depth; the last may be the model's own head."""

    weights_sha256: str  # of the model
    sizes: dict[str, Any]  # of the branches
    order: str  # of the layers when they were trained: sequential or arbitrary
    places: list[int]  # (E,), among all exits that were trained
    branches: list[str]
    depths: list[int]
    flops: np.ndarray  # (E,), of one image up to and including the exit
    spent: np.ndarray  # (E,), with the branches of all exits before it, each tried on the way
    accuracy: np.ndarray  # (E,), on the images that chose them
    confidence: np.ndarray  # (E, n), of those images

    @classmethod
    def among(cls, exits: dict[str, np.ndarray], **about: Any) -> Self:
        """Choose among all exits that were trained, see `papers.exits.compute.frozen`."""
        places = choose(exits["flops"], exits["score_judge"], exits["depth"])
        flops = exits["flops"][places]
        return cls(
            **about,
            places=places.tolist(),
            branches=exits["branch"][places].tolist(),
            depths=exits["depth"][places].tolist(),
            flops=flops,
            spent=cumulative_cost(flops, exits["branch_flops"][places]),
            accuracy=exits["score_judge"][places].mean(axis=1),
            confidence=exits["confidence_judge"][places],
        )

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read what :meth:`write` wrote, and how confident these exits are, from `arrays.npz`."""
        record = json.loads((folder / EXITS_IN_USE).read_text("utf-8"))
        for name in ("flops", "spent", "accuracy"):
            record[name] = np.array(record[name])
        with np.load(folder / ARRAYS) as arrays:
            return cls(**record, confidence=arrays["confidence_judge"][record["places"]])

    def write(self, folder: Path) -> None:
        """Write all but the confidence to `exits.json`."""
        record = self._asdict()
        del record["confidence"]
        for name in ("flops", "spent", "accuracy"):
            record[name] = record[name].tolist()
        write_json(folder / EXITS_IN_USE, record)

    def describe(self, i: int, tried: bool) -> dict[str, Any]:
        """An exit's branch, depth, FLOPs, and accuracy on the images that chose it.

        If the exits before it were `tried` on the way, FLOPs include their branches.
        """
        flops = self.spent if tried else self.flops
        return {
            "branch": self.branches[i],
            "depth": self.depths[i],
            "flops": int(flops[i]),
            "accuracy": round(float(self.accuracy[i]), 4),
        }

    def thresholds(self, budget: float) -> dict[int, float]:
        """Thresholds by depth, for :func:`leave_early`, that cost at most so many FLOPs on average.

        This holds for images like those that chose the exits.
        """
        return dict.fromkeys(self.depths, threshold_within(self.confidence, self.spent, budget))
