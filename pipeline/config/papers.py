"""The papers: a folder of papers each. Their modules are found by name, so that nothing of the core imports a paper."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

PAPERS = (
    "layershuffle",
    "exits",
    "smoothing",
    "inversion",
    "painters",
    "nodes",
)  # in the order in which all is shown


def rooms(room: str) -> list[ModuleType]:
    """The module of this name of every paper that has one: "section", "checks", "cost", "compute.plan", "compute.rounds", "tables",
    "figures", "claims", "charts"."""
    names = [f"papers.{paper}.{room}" for paper in PAPERS]
    return [import_module(name) for name in names if find_spec(name)]
