"""The exits of a frozen backbone that are put into use. No torch here."""

import json
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from papers.exits.compute.budgets import practical, threshold_within
from papers.exits.section import EXITS_IN_USE
from pipeline.files import write_json
from pipeline.jobs.files import ARRAYS


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
        """Choose among all exits that were trained (section IV-A), see :mod:`.frozen`.

        These are the best practical one at each depth that has any, and the last: the model's own
        head is there anyway, and early exits, the best of many, look better here than they are. A
        lead need not be beyond noise: many exits make a budget finer.
        """
        flops, scores, depths = exits["flops"], exits["score_judge"], exits["depth"]
        means = scores.mean(axis=1)
        good = np.flatnonzero(practical(flops, scores, noise=0.0) | (depths == depths.max()))
        good = good[np.lexsort((-means[good], depths[good]))]  # by depth, the best first
        depths, first = np.unique(depths[good], return_index=True)
        places = good[first]
        flops, branch = flops[places], exits["branch_flops"][places]
        return cls(
            **about,
            places=places.tolist(),
            branches=exits["branch"][places].tolist(),
            depths=depths.tolist(),
            flops=flops,
            spent=flops + np.cumsum(branch) - branch,
            accuracy=means[places],
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
