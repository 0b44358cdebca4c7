"""The figure of layers on nodes: right answers and throughput against the share of nodes that are away."""

import pandas as pd

from papers.nodes.section import Policy
from pipeline.config.params import Params
from pipeline.config.sections import PaperFigures
from pipeline.report.evaluations import label
from pipeline.report.figures import MARKERS, OKABE_ITO, Figures, handles_of, legend_above
from pipeline.report.results import Results

HEALTHY = "healthy"
POLICY: dict[Policy, str] = {
    "strict": "strict order",
    "partial": "partial order",
    "any": "any order",
}


def method(variant: str, policy: Policy) -> str:
    """A model and how its layers are visited, in words."""
    return f"{label(variant)}, {POLICY[policy]}"


def by_gone(rows: pd.DataFrame, column: str, factor: float) -> pd.DataFrame:
    """Mean and standard deviation over the seeds (0 for one) by % of nodes that are away for good."""
    own = rows[(rows["fault"] == HEALTHY) | (rows["gone"] > 0)]
    found = factor * own.groupby("gone")[column].agg(["mean", "std"]).fillna({"std": 0})
    return found.set_index(100 * found.index)


class NodesFigures(Figures):
    """Draws and saves the figure of layers on nodes."""

    def away(self, rows: pd.DataFrame, chance: float, name: str) -> str:
        """Right answers and images a second against the share of nodes away, a column a number of copies. Returns the caption.

        Args:
            rows: nodes.csv, of one number of nodes.
            chance: accuracy in % of guessing.
            name: of the files.
        """
        copies = sorted(rows["replication"].unique())
        methods = list(dict.fromkeys(zip(rows["variant"], rows["policy"], strict=True)))
        looks = {
            each: {"color": OKABE_ITO[i], "marker": MARKERS[i]} for i, each in enumerate(methods)
        }
        figure, axes = self._figure(1.5, nrows=2, ncols=len(copies), sharex=True, sharey="row")
        for column, replication in enumerate(copies):
            for variant, policy in methods:
                own = rows[
                    (rows["variant"] == variant)
                    & (rows["policy"] == policy)
                    & (rows["replication"] == replication)
                ]
                for axis, value, factor in (
                    (axes[0, column], "right", 100),
                    (axes[1, column], "images_per_s", 1),
                ):
                    line = by_gone(own, value, factor)
                    axis.errorbar(
                        line.index,
                        line["mean"],
                        line["std"],
                        capsize=1.5,
                        elinewidth=0.7,
                        label=method(variant, policy),
                        **looks[variant, policy],
                    )
                    axis.grid(axis="y", linewidth=0.4, alpha=0.5)
            axes[0, column].set(
                title=f"{replication} node{'s' if replication > 1 else ''} a layer", ylim=(0, 100)
            )
            axes[1, column].set(xlabel="nodes away (%)", xlim=(-4, 100), ylim=(0, None))
            self._chance(axes[0, column], chance)
        axes[0, 0].set(ylabel="right of all images (%)")
        axes[1, 0].set(ylabel="answers (images/s)")
        legend_above(figure, handles_of(axes[0, 0]))
        self._save(figure, name)
        seeds = rows["seed"].nunique()
        return (
            f"Layers on {rows['nodes'].max()} simulated nodes, some of which are away from the start: images answered rightly, of all "
            "that were sent, and answers a second. Strict order: all layers in their original order, from whichever node holds them; "
            "partial: neighbours may change places and some layers be left out; any: whichever is free. Throughput depends on the order "
            "alone: lines of the same order cover each other. The scheduler is the one that "
            f"real processes obey. Mean over {seeds} seed{'s' if seeds > 1 else ''}, each with its own nodes away; bars: standard "
            f"deviation over the seeds; {rows['images'].max()} validation images."
        )


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw the figure, if its stage has run. Returns captions by title."""
    rows = results.table("nodes")
    if rows.empty:
        return {}
    figures = NodesFigures(
        results.folder / "figures", params.resolve(PaperFigures), list(params.all_variants)
    )
    return {
        "Layers on nodes": figures.away(
            rows[rows["nodes"] == rows["nodes"].max()], results.chance, "nodes"
        )
    }
