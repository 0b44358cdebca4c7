"""The figure of Painters: accuracy against how many middle layers are executed in another way."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from papers.painters.section import KINDS, UNTOUCHED, Kind, Painters
from pipeline.config.params import Params
from pipeline.config.sections import PaperFigures
from pipeline.report.evaluations import label
from pipeline.report.figures import MARKERS, OKABE_ITO, Figures, handles_of, legend_above
from pipeline.report.results import Results

NAMES: dict[Kind, str] = {
    "skip": "skip",
    "repeat": "middle repeat",
    "reverse": "reverse",
    "shuffle": "random order",
    "parallel": "parallel",
    "loop": "looped parallel",
}
LOOKS = {kind: {"color": OKABE_ITO[i], "marker": MARKERS[i]} for i, kind in enumerate(KINDS)}


def over_seeds(rows: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Mean and standard deviation over the seeds (0 for one), in %, by layers treated, from 0, the model as it is, on."""
    own = rows[rows["kind"].isin([kind, UNTOUCHED])]
    return 100 * own.groupby("treated")["accuracy"].agg(["mean", "std"]).fillna({"std": 0})


class PaintersFigures(Figures):
    """Draws and saves the figure of Painters."""

    def strategies(self, rows: pd.DataFrame, loops: int, chance: float, name: str) -> str:
        """Every strategy of Painters against the number of layers treated, a panel a variant. Returns the caption.

        Args:
            rows: painters.csv.
            loops: how often the step of `loop` runs.
            chance: accuracy in % of guessing.
            name: of the files.
        """
        variants, kinds = (
            list(dict.fromkeys(rows["variant"])),
            [kind for kind in KINDS if kind in set(rows["kind"])],
        )
        figure, axes = self._figure(
            0.3 + 0.55 * len(variants), nrows=len(variants), sharex=True, sharey=True
        )
        treated = np.sort(rows["treated"].unique())
        for axis, variant in zip(axes[:, 0], variants, strict=True):
            for kind in kinds:
                line = over_seeds(rows[rows["variant"] == variant], kind)
                axis.errorbar(
                    line.index,
                    line["mean"],
                    line["std"],
                    capsize=1.5,
                    elinewidth=0.7,
                    label=NAMES[kind],
                    **LOOKS[kind],
                )
            axis.set(
                title=label(variant),
                ylabel="validation accuracy (%)",
                ylim=(0, 100),
                xticks=treated,
            )
            axis.set(
                xlim=(-0.05 * treated[-1], 1.17 * treated[-1])
            )  # room for the word at the line of chance, which lines may reach
            self._chance(axis, chance)
            axis.grid(axis="y", linewidth=0.4, alpha=0.5)
        below: Axes = axes[-1, 0]
        below.set(xlabel="middle layers treated")
        legend_above(figure, handles_of(below))
        self._save(figure, name)
        how = {
            "skip": "left out",
            "repeat": "each replaced by the one in the centre",
            "reverse": "from last to first",
            "shuffle": f"mean over up to {rows['orders'].max()} orders, the same for every model",
            "parallel": "side by side on the same state, outputs averaged",
            "loop": f"that {loops} times one after another",
        }
        seeds = rows["seed"].nunique()
        return (
            f"Painters: accuracy of refined models, nothing trained again, when some layers in the middle are executed in another way; 0: "
            f"the model as it is. {'; '.join(f'{NAMES[kind]}: {how[kind]}' for kind in kinds)}. Mean over {seeds} "
            f"seed{'s' if seeds > 1 else ''}; bars: standard deviation over the seeds; {rows['images'].max()} validation images."
        )


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw the figure, if its stage has run. Returns captions by title."""
    figures = PaintersFigures(
        results.folder / "figures", params.resolve(PaperFigures), list(params.all_variants)
    )
    rows = results.table("painters")
    if rows.empty:
        return {}
    return {
        "Painters": figures.strategies(
            rows, params.resolve(Painters).loops, results.chance, "painters"
        )
    }
