"""Interactive charts of the report, as Vega-Lite specifications: what every paper's share. No JavaScript of ours here."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

# Okabe and Ito's colour-blind safe palette, as in the figures, and two more; black and white follow the page.
PALETTE = [
    "currentColor",
    "#0072B2",
    "#56B4E9",
    "#009E73",
    "#D55E00",
    "#E69F00",
    "#CC79A7",
    "#8B6914",
    "#999999",
    "#7570B3",
    "#E7298A",
]
CONFIG: dict[str, Any] = {
    "background": None,
    "view": {"stroke": None},
    "font": "inherit",
    "axis": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "domainColor": "#8888",
        "tickColor": "#8888",
        "gridColor": "#8883",
        "titleFontWeight": "normal",
    },
}
ORDERS = {"sequential": "in the original order", "arbitrary": "in random order"}
GRID = "Grid"  # of the metadata of a figure of pictures: :func:`pipeline.report.figures.grid_of_pictures`
CHOICE = "The first name chosen is shown alone, each further one joins it."
SHOWN = {"name": "shown", "value": []}  # parameter: the names that are shown, none: all
SPREAD = f"Mean and standard deviation over the seeds. {CHOICE}"  # of lines


class Chart(NamedTuple):
    """A chart of the report."""

    title: str
    caption: str
    file: str  # of results/, that its values are from
    spec: dict[str, Any]

    @property
    def legend(self) -> dict[str, str]:
        """The colours of what can be switched, by name."""
        scale = (
            self.spec.get("encoding", {}).get("color", {}).get("scale", {"domain": (), "range": ()})
        )
        return dict(zip(scale["domain"], scale["range"], strict=True))


class Picture(NamedTuple):
    """A figure that is shown as it was drawn."""

    title: str
    name: str  # of results/figures/
    caption: str  # its title in captions.md


class Grid(NamedTuple):
    """A table of means and standard deviations."""

    title: str
    file: str  # of results/
    rows: str  # column whose values are the rows
    columns: str  # column whose values are the columns
    where: tuple[str, ...] = ()  # column=value
    factor: int = 100
    only: tuple[str, ...] = ()  # of the rows
    called: Callable[[str], str] = str  # a row: its name, of which the page makes a label


class Charts(NamedTuple):
    """What a paper's page shows."""

    tables: Sequence[Grid] = ()
    charts: Sequence[Chart] = ()
    pictures: Sequence[Picture] = ()
    headline: Sequence[Grid] = ()  # shown in the summary too
    first: Sequence[Chart] = ()  # likewise


def spread(rows: pd.DataFrame, by: Sequence[str], value: str, factor: float = 100) -> pd.DataFrame:
    """Mean and standard deviation over the seeds: columns `by`, mean, low, high (one deviation either way)."""
    seeds = rows.groupby([*by, "seed"], sort=False)[value].mean()
    found = factor * seeds.groupby(list(by), sort=False).agg(["mean", "std"]).fillna({"std": 0.0})
    return (
        found.assign(low=found["mean"] - found["std"], high=found["mean"] + found["std"])
        .drop(columns="std")
        .reset_index()
    )


def lines(
    rows: pd.DataFrame,
    x: str,
    colour: str,
    x_title: str,
    y_title: str,
    domain: Sequence[float] | None = None,
    colours: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Lines of `mean` with bands from `low` to `high`, those chosen alone, see :func:`_chosen`.

    `colours`: of the lines, where several charts share them.
    """

    def opacity(shown: float, faded: float) -> dict[str, Any]:
        return {"condition": {"test": _chosen(colour), "value": shown}, "value": faded}

    y = {
        "field": "mean",
        "type": "quantitative",
        "title": y_title,
        "scale": {"domain": domain} if domain else {"zero": False},
    }
    unit: dict[str, Any] = {
        "height": 240,
        "params": [SHOWN],
        "encoding": {
            "x": {
                "field": x,
                "type": "quantitative",
                "title": x_title,
                "axis": {"values": sorted(set(rows[x].tolist())), "format": ".0f"},
            },
            "color": _colour(rows, colour, colours),
        },
        "layer": [
            {
                "mark": {"type": "area", "clip": True},
                "encoding": {
                    "y": y | {"field": "low"},
                    "y2": {"field": "high"},
                    "opacity": opacity(0.15, 0),
                },
            },
            {
                "mark": {"type": "line", "point": True},
                "encoding": {
                    "y": y,
                    "opacity": opacity(1, 0.06),
                    "tooltip": _tooltip([colour, x], rows),
                },
            },
        ],
    }
    return _whole(rows, unit)


def budget(
    rows: pd.DataFrame, cost: str, colour: str, x_title: str, y_title: str
) -> dict[str, Any]:
    """Points of `mean` against a cost, those chosen alone, with a slider: what exceeds the budget fades, the best of the rest is named."""
    step = 10.0 ** math.floor(math.log10(rows[cost].max() / 20))
    most = round(math.ceil(rows[cost].max() / step) * step, 9)
    y = {"field": "mean", "type": "quantitative", "title": y_title, "scale": {"zero": False}}
    x = {"field": cost, "type": "quantitative", "title": x_title, "scale": {"domain": [0, most]}}
    fits = f"datum.{cost} <= budget && {_chosen(colour)}"
    text = f"datum.best.{colour} + ' after layer ' + datum.best.depth + ': ' + format(datum.best.mean, '.1f')"
    best = [
        {"filter": fits},
        {"aggregate": [{"op": "argmax", "field": "mean", "as": "best"}]},
        {"calculate": text, "as": "text"},
    ]
    plain = {"color": {"value": "currentColor"}}
    layers = [
        {
            "mark": {"type": "point", "filled": True, "size": 45},
            "encoding": {
                "x": x,
                "y": y,
                "opacity": {"condition": {"test": fits, "value": 1}, "value": 0.1},
                "tooltip": _tooltip([colour, "depth", cost], rows),
            },
        },
        {
            "mark": {"type": "rule", "strokeDash": [4, 4]},
            "encoding": plain | {"x": {"datum": {"expr": "budget"}, "type": "quantitative"}},
        },
        {
            "transform": best,
            "mark": {"type": "text", "align": "left", "fontWeight": "bold"},
            "encoding": plain | {"x": {"value": 8}, "y": {"value": 6}, "text": {"field": "text"}},
        },
    ]
    slider = {
        "name": "budget",
        "value": most,
        "bind": {"input": "range", "min": 0, "max": most, "step": step, "name": "budget "},
    }
    return _whole(
        rows,
        {
            "height": 260,
            "params": [slider, SHOWN],
            "encoding": {"color": _colour(rows, colour)},
            "layer": layers,
        },
    )


def _chosen(colour: str) -> str:
    """Vega's expression that a mark is shown. The page has buttons for it in place of a legend, which no keyboard reaches."""
    return f"(!length(shown) || indexof(shown, datum['{colour}']) >= 0)"


def _colour(
    rows: pd.DataFrame, field: str, colours: Mapping[str, str] | None = None
) -> dict[str, Any]:
    names = list(dict.fromkeys(rows[field]))
    colours = colours or {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}
    return {
        "field": field,
        "type": "nominal",
        "legend": None,
        "scale": {"domain": names, "range": [colours[name] for name in names]},
    }


def _whole(rows: pd.DataFrame, unit: dict[str, Any]) -> dict[str, Any]:
    """A specification with its data, as wide as the page."""
    values = [
        {key: round(v, 5) if isinstance(v, float) else v for key, v in row.items()}
        for row in rows.to_dict("records")
    ]
    return {
        "config": CONFIG,
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": values},
    } | unit


def _tooltip(fields: Sequence[str], rows: pd.DataFrame) -> list[dict[str, Any]]:
    numbers = [name for name in ("mean", "low", "high") if name in rows]
    return [{"field": name} for name in fields] + [
        {"field": name, "type": "quantitative", "format": ".2f"} for name in numbers
    ]
