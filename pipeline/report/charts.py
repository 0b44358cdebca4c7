"""Interactive charts of the report, as Vega-Lite specifications. What every paper's share."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

# Okabe and Ito's colour-blind safe palette, as in the figures, and two more.
# The first follows the page, black or white.
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
GRID = "Grid"  # key of a PNG's metadata: where a figure of pictures has them
CHOICE = "Choose a name to show it alone. Each further name joins it."
NO_ZERO = {"zero": False}
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
        scale = self.spec["encoding"]["color"]["scale"]
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
    """Mean and standard deviation over the seeds.

    Returns:
        The columns `by`, mean, low and high (one deviation either way).
    """
    seeds = rows.groupby([*by, "seed"], sort=False)[value].mean()
    table = factor * seeds.groupby(list(by), sort=False).agg(["mean", "std"]).fillna({"std": 0.0})
    low, high = table["mean"] - table["std"], table["mean"] + table["std"]
    return table.assign(low=low, high=high).drop(columns="std").reset_index()


def lines(
    rows: pd.DataFrame,
    x: str,
    colour: str,
    x_title: str,
    y_title: str,
    domain: Sequence[float] | None = None,
    colours: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Lines of `mean` with bands from `low` to `high`; chosen ones are shown alone.

    Args:
        rows: with these columns.
        x: column of the horizontal axis.
        colour: column with the names of the lines.
        x_title: of the axis.
        y_title: of the axis.
        domain: of the vertical axis. Default: that of the values.
        colours: of the lines, where several charts share them.
    """
    y = _quantitative("mean", y_title) | {"scale": {"domain": domain} if domain else NO_ZERO}
    x_axis = {"values": sorted(set(rows[x].tolist())), "format": ".0f"}
    band = {
        "y": y | {"field": "low"},
        "y2": {"field": "high"},
        "opacity": _opacity(_chosen(colour), 0.15, 0),
    }
    line = {
        "y": y,
        "opacity": _opacity(_chosen(colour), 1, 0.06),
        "tooltip": _tooltip([colour, x], rows),
    }
    return _whole(
        rows,
        {
            "height": 240,
            "params": [SHOWN],
            "encoding": {
                "x": _quantitative(x, x_title) | {"axis": x_axis},
                "color": _colour(rows, colour, colours),
            },
            "layer": [
                {"mark": {"type": "area", "clip": True}, "encoding": band},
                {"mark": {"type": "line", "point": True}, "encoding": line},
            ],
        },
    )


def accuracy_lines(
    rows: pd.DataFrame,
    x: str,
    colour: str,
    x_title: str,
    value: str = "accuracy",
    y_title: str = "accuracy (%)",
) -> dict[str, Any]:
    """Lines of a share of right answers in %, means over the seeds."""
    return lines(spread(rows, [colour, x], value), x, colour, x_title, y_title, (0, 100))


def budget(rows: pd.DataFrame, x_title: str) -> dict[str, Any]:
    """Points of accuracy in % against `cost`, with a slider; chosen branches are shown alone.

    What exceeds the budget fades. The best of the rest is named.

    Args:
        rows: with the columns branch, depth, cost and mean.
        x_title: of the axis of the cost.
    """
    step = 10.0 ** math.floor(math.log10(rows["cost"].max() / 20))
    most = round(math.ceil(rows["cost"].max() / step) * step, 9)
    fits = f"datum.cost <= budget && {_chosen('branch')}"
    text = (
        "datum.best.branch + ' after layer ' + datum.best.depth + ': ' "
        "+ format(datum.best.mean, '.1f')"
    )
    best = [
        {"filter": fits},
        {"aggregate": [{"op": "argmax", "field": "mean", "as": "best"}]},
        {"calculate": text, "as": "text"},
    ]
    plain = {"color": {"value": "currentColor"}}
    point = {
        "x": _quantitative("cost", x_title) | {"scale": {"domain": [0, most]}},
        "y": _quantitative("mean", "accuracy (%)") | {"scale": NO_ZERO},
        "opacity": _opacity(fits, 1, 0.1),
        "tooltip": _tooltip(["branch", "depth", "cost"], rows),
    }
    rule = {"x": {"datum": {"expr": "budget"}, "type": "quantitative"}}
    name = {"x": {"value": 8}, "y": {"value": 6}, "text": {"field": "text"}}
    slider = {"input": "range", "min": 0, "max": most, "step": step, "name": "budget "}
    return _whole(
        rows,
        {
            "height": 260,
            "params": [{"name": "budget", "value": most, "bind": slider}, SHOWN],
            "encoding": {"color": _colour(rows, "branch")},
            "layer": [
                {"mark": {"type": "point", "filled": True, "size": 45}, "encoding": point},
                {"mark": {"type": "rule", "strokeDash": [4, 4]}, "encoding": plain | rule},
                {
                    "transform": best,
                    "mark": {"type": "text", "align": "left", "fontWeight": "bold"},
                    "encoding": plain | name,
                },
            ],
        },
    )


def _quantitative(field: str, title: str) -> dict[str, Any]:
    return {"field": field, "type": "quantitative", "title": title}


def _chosen(colour: str) -> str:
    """Vega's expression that a mark is shown.

    The page has buttons for it in place of a legend, which no keyboard reaches.
    """
    return f"(!length(shown) || indexof(shown, datum['{colour}']) >= 0)"


def _opacity(test: str, shown: float, faded: float) -> dict[str, Any]:
    return {"condition": {"test": test, "value": shown}, "value": faded}


def _colour(
    rows: pd.DataFrame, field: str, colours: Mapping[str, str] | None = None
) -> dict[str, Any]:
    names = list(dict.fromkeys(rows[field]))
    if colours is None:
        colours = colours_of(names)
    scale = {"domain": names, "range": [colours[name] for name in names]}
    return {"field": field, "type": "nominal", "legend": None, "scale": scale}


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, in the palette's order."""
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}


def _whole(rows: pd.DataFrame, unit: dict[str, Any]) -> dict[str, Any]:
    """A specification with its data, as wide as the page."""
    values = rows.to_dict("records")
    for record in values:
        for key, value in record.items():
            if isinstance(value, float):
                record[key] = round(value, 5)
    return {
        "config": CONFIG,
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": values},
    } | unit


def _tooltip(fields: Sequence[str], rows: pd.DataFrame) -> list[dict[str, Any]]:
    tooltip: list[dict[str, Any]] = [{"field": name} for name in fields]
    for name in ("mean", "low", "high"):
        if name in rows:
            tooltip.append({"field": name, "type": "quantitative", "format": ".2f"})
    return tooltip
