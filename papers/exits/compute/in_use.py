"""The exits of a frozen backbone that are put into use. No torch here."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from papers.exits.compute.budgets import exit_thresholds


def trained_exits(arrays: Mapping[str, np.ndarray]) -> list[tuple[int, str]]:
    """Depth and branch of every exit that was trained, the model's own head last."""
    return list(zip(arrays["depth"].tolist(), arrays["branch"].tolist(), strict=True))


class InUse(NamedTuple):
    """Exits put into use on a model, E of them by depth; the last may be the model's own head."""

    order: str  # of the layers when they were trained: sequential or arbitrary
    branches: list[str]
    depths: list[int]
    flops: np.ndarray  # (E,), of one image up to and including the exit
    spent: np.ndarray  # (E,), with the branches of all exits before it, each tried on the way
    latency: np.ndarray  # (E,), ms, where the stage ran
    accuracy: np.ndarray  # (E,), on the images that chose them
    confidence: np.ndarray  # (E, n), of those images

    @classmethod
    def read(cls, record: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> "InUse":
        """Read what :meth:`record` gave, maybe among other keys, and how all exits answered."""
        used = cls(
            order=record["order"],
            branches=record["branches"],
            depths=record["depths"],
            flops=np.array(record["flops"]),
            spent=np.array(record["spent"]),
            latency=np.array(record["latency"]),
            accuracy=np.array(record["accuracy"]),
            confidence=arrays["confidence_judge"],
        )
        return used._replace(confidence=used.confidence[used.places(arrays)])

    def record(self) -> dict[str, Any]:
        """All but the confidence, as lists."""
        record = {name: np.asarray(value).tolist() for name, value in self._asdict().items()}
        del record["confidence"]
        return record

    def places(self, arrays: Mapping[str, np.ndarray]) -> list[int]:
        """The places of these exits among all that were trained."""
        trained = trained_exits(arrays)
        return [trained.index(exit) for exit in zip(self.depths, self.branches, strict=True)]

    def describe(self, i: int, tried: bool) -> dict[str, Any]:
        """An exit's branch, depth, costs, and accuracy on the images that chose it.

        If the exits before it were `tried` on the way, FLOPs include their branches.
        """
        flops = self.spent if tried else self.flops
        return {
            "branch": self.branches[i],
            "depth": self.depths[i],
            "flops": int(flops[i]),
            "latency_ms": round(float(self.latency[i]), 4),
            "accuracy": round(float(self.accuracy[i]), 4),
        }

    def thresholds(self, budget: float) -> dict[int, float]:
        """Thresholds by depth, for :func:`leave_early`, that cost at most so many FLOPs on average.

        This holds for images like those that chose the exits.
        """
        thresholds = exit_thresholds(self.confidence, self.spent, budget)
        return dict(zip(self.depths, thresholds.tolist(), strict=True))
