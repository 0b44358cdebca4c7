"""The figure of layers on nodes: right answers and throughput by the share of nodes away."""

import pandas as pd
from matplotlib.lines import Line2D

from papers.nodes.section import Nodes, Policy
from pipeline.config.params import Params
from pipeline.report.captions import counted, describe_rows, read_captions
from pipeline.report.figures import Figures, Look, draw_chance, draw_lines, handles_of
from pipeline.report.results import Results

CAPTIONS = read_captions(__file__)
STYLES: dict[Policy, str] = {"strict": ":", "partial": "--", "any": "-"}
ORDERS: dict[Policy, Look] = {
    policy: {"label": f"{policy} order", "color": "black", "linestyle": style}
    for policy, style in STYLES.items()
}
BARS = {"capsize": 1.5, "elinewidth": 0.7}


def with_nodes_away(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of nodes.csv with the most nodes, of which none or some are away for good.

    The column `away` says how many, in %.
    """
    shown = (rows["fault"] == "healthy") | (rows["gone"] > 0)
    rows = rows[shown & (rows["nodes"] == rows["nodes"].max())]
    return rows.assign(away=100 * rows["gone"])


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw right answers and images a second by the share of nodes away, if there are rows.

    Each number of copies of a layer has a column.

    Returns:
        The caption by its title.
    """
    rows = results.table("nodes")
    if rows.empty:
        return {}
    figures = Figures.of(results, params)
    lines = with_nodes_away(rows)
    methods = list(zip(lines["variant"], lines["policy"], strict=True))
    lines = lines.assign(method=methods)
    variants = figures.looks(dict.fromkeys(lines["variant"]))
    looks = {
        (variant, policy): variants[variant] | {"linestyle": STYLES[policy]}
        for variant, policy in dict.fromkeys(methods)
    }
    copies = sorted(rows["replication"].unique())
    figure, axes = figures.panels(1.5, nrows=2, ncols=len(copies), sharex=True, sharey="row")
    for (above, below), count in zip(axes.T, copies, strict=True):
        own_rows = lines[lines["replication"] == count]
        draw_lines(above, own_rows, "away", "right", "method", looks, **BARS)
        # Throughput depends on the order alone: of each order one variant is drawn.
        own_rows = own_rows.drop_duplicates(["policy", "fault", "seed"])
        draw_lines(below, own_rows, "away", "images_per_s", "policy", ORDERS, factor=1, **BARS)
        above.set(title=f"{counted(count, 'node')} a layer", ylim=(0, 100))
        below.set(xlabel="nodes away (%)", xlim=(-4, 100), ylim=(0, None))
        draw_chance(above, results.chance)
    axes[0, 0].set(ylabel="right of all images (%)")
    axes[1, 0].set(ylabel="answers (images/s)")
    handles = {}
    for look in variants.values():
        handles[look["label"]] = Line2D([], [], **look | {"linestyle": "none"})
    handles["chance"] = handles_of(axes[0, 0])["chance"]
    figures.finish(figure, "nodes", handles | handles_of(axes[1, 0]))
    caption = CAPTIONS["away"].format(
        nodes=rows["nodes"].max(),
        service=params.resolve(Nodes).service.service,
        **describe_rows(rows),
    )
    return {"Layers on nodes": caption}
