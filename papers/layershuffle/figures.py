"""The figures of LayerShuffle, from the pipeline's result files."""

import math
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from scipy.stats import gaussian_kde

from lsvit.routes import ORDERS
from papers.layershuffle.diagrams import approaches, first_routes
from papers.layershuffle.section import Analysis
from pipeline.config.params import Params
from pipeline.config.sections import PaperFigures
from pipeline.config.variant import PRETRAINED
from pipeline.jobs.rows import mean_rows
from pipeline.report.evaluations import CONTROLS, count_orders, label, summarise
from pipeline.report.figures import OKABE_ITO, Figures, colours_by_depth, handles_of, legend_above
from pipeline.report.results import Results, read_arrays

REFIT_MARKERS = "*Xpd"
# What an order is drawn for: LS and LS-pred trained so
FORMS = {
    "batch": ("ls_batch", "ls_pred_batch"),
    "sample": ("ls_sample", None),
    "Latin": ("ls", "ls_pred"),
}
ANALYSED = Path("outs/analysis")
FIGURE_1 = ("ls", "layerdrop")  # and refit-k: the paper's lines, its method in front
SHOWN = ("baseline", "layerdrop", "ls")  # in the figure of accuracy against disorder


class LayerShuffleFigures(Figures):
    """Draws and saves the figures of LayerShuffle, and of its controls."""

    def pruning(self, cells: pd.DataFrame, order: str, name: str) -> str:
        """Figures 1b and 1c: accuracy against layers kept, the paper's lines alone. Returns the caption."""
        figure, axes = self._figure(0.78)
        shown = cells[
            (cells["order"] == order)
            & (cells["variant"].isin(FIGURE_1) | cells["variant"].str.startswith("refit"))
        ]
        self._kept(axes[0, 0], shown, [variant for variant in FIGURE_1 if variant in self.colours])
        refits = shown[shown["variant"].str.startswith("refit")].sort_values("keep")
        if len(refits):
            axes[0, 0].errorbar(
                refits["keep"],
                100 * refits["mean"],
                100 * refits["std"].fillna(0),
                color="#777777",
                marker="*",
                markersize=7,
                linestyle=":",
                capsize=2,
                label="refit-k",
                zorder=0,
            )
        axes[0, 0].set(xlabel="layers kept")
        legend_above(figure, handles_of(axes[0, 0]))
        self._save(figure, name)
        pruned = shown[~shown["full"]]
        orders = "their original order" if order == "sequential" else "random order"
        text = f"Accuracy with k layers kept, executed in {orders}. "
        text += f"Mean over {shown['n'].max():.0f} seeds; bars: standard deviation over the seeds"
        if len(pruned):
            text += f". Pruned cells: at most {count_orders(pruned, 'random routes')} each, the same for every variant"
            if pruned["std_orders"].notna().any():
                low, high = 100 * pruned["std_orders"].min(), 100 * pruned["std_orders"].max()
                text += f"; the standard deviation over {pruned['spread_orders'].max():.0f} single routes is {low:.1f} to {high:.1f} points"
        full = shown[shown["full"] & ~shown["variant"].str.startswith("refit")]
        text += f". All layers: {count_orders(full, 'orders' if full['orders'].max() > 1 else 'order')}, {full['images'].max():.0f} images"
        if len(refits):
            text += f". refit-k: trained as a k-layer model; {', '.join(f'k = {c.keep}: {c.orders}' for c in refits.itertuples())} orders"
        return text + "."

    def pruning_of_all(self, cells: pd.DataFrame, name: str) -> str:
        """Accuracy of every variant against layers kept, in both orders. Returns the caption."""
        figure, axes = self._figure(1.15, nrows=2, sharex=True)
        for axis, order in zip(axes[:, 0], ORDERS, strict=True):
            self._kept(axis, cells[cells["order"] == order], list(self.colours))
            axis.set(ylabel=f"accuracy (%),\n{order}")
        axes[1, 0].set(xlabel="layers kept")
        legend_above(figure, handles_of(axes[0, 0]))
        self._save(figure, name)
        seeds = cells["n"].max()
        return f"As figures 1b and 1c, every variant that has all layers: mean and standard deviation over {seeds:.0f} seeds."

    def routes(self, params: Params, num_layers: int, name: str) -> str:
        """Which layer runs at which depth in the first steps of trainings, as figure 1a sketches it. Returns the caption."""
        shown = [
            variant for variant in ("baseline", "ls", "layerdrop") if variant in params.all_variants
        ]
        figure, axes = self._figure(0.62 * len(shown), nrows=len(shown), sharex=True)
        seed, colours = params.seeds[0], colours_by_depth(num_layers)
        for axis, variant in zip(axes[:, 0], shown, strict=True):
            what, rows = first_routes(params, variant, num_layers, seed)
            for row, route in enumerate(rows):
                for depth, layer in enumerate(route):
                    axis.add_patch(
                        Rectangle((depth, row), 0.94, 0.9, facecolor=colours[layer], linewidth=0)
                    )
                    axis.text(
                        depth + 0.47,
                        row + 0.48,
                        layer + 1,
                        ha="center",
                        va="center",
                        fontsize=5.5,
                        color="white" if layer < num_layers * 0.6 else "black",
                    )
            axis.set(
                xlim=(0, num_layers),
                ylim=(len(rows), 0),
                xticks=[],
                yticks=[0.45, len(rows) - 0.55],
                yticklabels=[1, len(rows)],
                title=label(variant),
                ylabel=what,
            )
            axis.spines[:].set_visible(False)
        axes[-1, 0].set(xlabel="depth: input on the left, head on the right")
        self._save(figure, name)
        return (
            f"The layers (by original place) that run in trainings with seed {seed}, as they were drawn, one route a row: those of the "
            "first steps, where a batch shares its route, else of the first images or, with Latin orders, groups of the first batch."
        )

    def _kept(self, axis: Axes, cells: pd.DataFrame, variants: list[str]) -> None:
        """Lines of accuracy against layers kept, the first variant in front."""
        for behind, variant in enumerate(variants):
            line = cells[cells["variant"] == variant].sort_values("keep")
            axis.errorbar(
                line["keep"],
                100 * line["mean"],
                100 * line["std"].fillna(0),
                color=self.colours[variant],
                marker=self.markers[variant],
                capsize=2,
                label=label(variant),
                zorder=2 + len(variants) - behind,
            )
        axis.set(
            ylabel="validation accuracy (%)", xticks=sorted(cells["keep"].unique()), ylim=(0, 100)
        )
        axis.grid(axis="y", linewidth=0.4, alpha=0.5)

    def disorder(
        self, samplers: pd.DataFrame, variants: list[str], chance: float, name: str
    ) -> str:
        """Accuracy against the Kendall tau distance from the original order. Returns the caption."""
        figure, axes = self._figure(0.78)
        axis: Axes = axes[0, 0]
        depth = int(samplers["length"].max())
        exact = samplers["sampler"].str.startswith("swap ") | samplers["sampler"].isin(
            ["reversed", f"fix_first {depth}"]
        )
        shown = samplers[samplers["variant"].isin(variants) & exact]
        for variant in variants:
            line = _over_seeds(shown[shown["variant"] == variant], "distance")
            axis.errorbar(
                line.index,
                line["mean"],
                line["std"],
                color=self.colours[variant],
                marker=self.markers[variant],
                capsize=2,
                label=label(variant),
            )
        most = math.comb(depth, 2)
        axis.set(
            xlabel="Kendall tau distance from the original order\n(swaps of neighbours)",
            ylabel="validation accuracy (%)",
            ylim=(0, 100),
        )

        def to_tau(distance: Any) -> Any:
            return 1 - 2 * distance / most

        def to_distance(tau: Any) -> Any:
            return (1 - tau) * most / 2

        axis.secondary_xaxis("top", functions=(to_tau, to_distance)).set(
            xlabel="Kendall's tau", xticks=[1, 0.5, 0, -0.5, -1]
        )
        self._chance(axis, chance)
        axis.grid(axis="y", linewidth=0.4, alpha=0.5)
        legend_above(figure, handles_of(axis))
        self._save(figure, name)
        return (
            f"Accuracy against disorder: from the original order (0) to the reversed one ({most} swaps of neighbours); in between, a "
            f"random order at exactly that distance for every image. {_counts(shown)}"
        )

    def first_layers(self, samplers: pd.DataFrame, chance: float, name: str) -> str:
        """The control: accuracy with the first k layers in place and the others shuffled. Returns the caption."""
        figure, axes = self._figure(0.78)
        axis: Axes = axes[0, 0]
        kinds = samplers["sampler"].str.extract(r"^fix_first (\d+)$")[0]
        shown = samplers[kinds.notna()].assign(k=kinds.dropna().astype(int))
        refits = dict(
            zip(
                (v for v in dict.fromkeys(shown["variant"]) if v not in self.colours),
                cycle(REFIT_MARKERS),
                strict=False,
            )
        )
        for variant in [*(v for v in self.colours if v in set(shown["variant"])), *refits]:
            line, refit = _over_seeds(shown[shown["variant"] == variant], "k"), variant in refits
            axis.errorbar(
                line.index,
                line["mean"],
                line["std"],
                label=label(variant),
                capsize=2,
                linestyle=":" if refit else "-",
                color="#777777" if refit else self.colours[variant],
                marker=refits[variant] if refit else self.markers[variant],
            )
        axis.set(
            xlabel="first layers kept in place, the rest shuffled",
            ylabel="validation accuracy (%)",
            ylim=(0, 100),
        )
        axis.set(xticks=sorted(shown["k"].unique()))
        self._chance(axis, chance)
        axis.grid(axis="y", linewidth=0.4, alpha=0.5)
        axis.legend(
            ncols=2, loc="lower right", bbox_to_anchor=(1, 0.16), columnspacing=1, handlelength=1.6
        )
        self._save(figure, name)
        return (
            f"The control: the first k layers run in their place and the others in a random order, one for every image; "
            f"k = 0 is the paper's arbitrary order. {_counts(shown)}"
        )

    def umap(self, arrays: dict[str, np.ndarray], layer: int, name: str, title: str) -> str:
        """Figures 4a and 4b: a layer's whole output in the plane, coloured by its position. Returns the caption."""
        figure, axes = self._figure(0.85)
        axis: Axes = axes[0, 0]
        positions = arrays["positions"][:, layer] + 1
        plane = arrays["plane"]
        points = axis.scatter(
            plane[:, 0],
            plane[:, 1],
            c=positions,
            cmap="viridis",
            s=5,
            linewidths=0,
            vmin=1,
            vmax=arrays["positions"].shape[1],
        )
        axis.set(
            xticks=[],
            yticks=[],
            xlabel="UMAP 1",
            ylabel="UMAP 2",
            title=f"{title}, layer {layer + 1}",
        )
        figure.colorbar(points, label="position of the layer", shrink=0.9)
        self._save(figure, name)
        return (
            f"UMAP of the whole output (class and patch tokens) of layer {layer + 1} (counted from 1), {title}: "
            f"{len(plane)} validation images (one point each), a random order per image, n = 1 model."
        )

    def ridges(self, arrays: dict[str, np.ndarray], name: str, title: str) -> str:
        """Figures 4c and 4d: distribution of class-token contribution norms by layer and position. Returns the caption."""
        positions, norms = arrays["positions"], arrays["norms"]
        num_layers = norms.shape[1]
        figure, axes = self._figure(1.2, ncols=2, width_ratios=[3, 2], sharey=True)
        axis: Axes = axes[0, 0]
        norms = norms / norms.max(axis=0)
        grid = np.linspace(0, 1, 200)
        colours = colours_by_depth(num_layers)
        for layer in range(num_layers):
            curves = np.stack(
                [_density(norms[positions[:, layer] == p, layer], grid) for p in range(num_layers)]
            )
            curves *= 1.6 / max(curves.max(), 1e-9)
            for p in range(num_layers):
                axis.fill_between(
                    grid,
                    -layer,
                    curves[p] - layer,
                    color=colours[p],
                    alpha=0.08,
                    linewidth=0,
                    zorder=2 * layer,
                )
                axis.plot(
                    grid, curves[p] - layer, color=colours[p], linewidth=0.8, zorder=2 * layer + 1
                )
            means = np.array(
                [norms[positions[:, layer] == p, layer].mean() for p in range(num_layers)]
            )
            heights = 0.8 * (means - means.min()) / max(np.ptp(means), 1e-9)
            axes[0, 1].plot(
                range(1, num_layers + 1), heights - layer, color="#777777", linewidth=0.6
            )
            axes[0, 1].scatter(range(1, num_layers + 1), heights - layer, c=colours, s=6, zorder=3)
            axes[0, 1].plot(
                layer + 1,
                heights[layer] - layer,
                "o",
                markersize=6,
                markerfacecolor="none",
                color=OKABE_ITO[4],
            )
        axis.set(
            yticks=-np.arange(num_layers),
            yticklabels=range(1, num_layers + 1),
            xlim=(0, 1),
            title="distributions",
        )
        axis.set(
            xlabel="norm of the contribution\n(of the layer's largest)",
            ylabel="layer (original place)",
        )
        axes[0, 1].set(xlabel="position of the layer", title="means", xlim=(0, num_layers + 1))
        figure.suptitle(title, fontsize=8)
        self._save(figure, name)
        return (
            f"Distribution of the L2 norm of each layer's additive contribution to the class token, relative to the layer's largest, "
            f"by position (dark: first), {title}; beside it the means by position, each layer's from its lowest to its highest, a ring "
            f"where it is in its original place: {len(norms)} validation images, a random order per image, n = 1 model."
        )

    def training_curves(self, histories: dict[str, pd.DataFrame], name: str) -> str:
        """Validation accuracy per epoch in both orders, mean over the seeds. Returns the caption."""
        figure, axes = self._figure(1.15, nrows=2, sharex=True)
        for axis, order in zip(axes[:, 0], ("sequential", "arbitrary"), strict=True):
            for variant, history in histories.items():
                curve = (
                    history.groupby("epoch")[f"validation/{order}/accuracy"].agg(["mean", "std"])
                    * 100
                )
                refit = variant not in self.colours
                marker = (
                    REFIT_MARKERS[list(histories).index(variant) % len(REFIT_MARKERS)]
                    if refit
                    else self.markers[variant]
                )
                axis.errorbar(
                    curve.index,
                    curve["mean"],
                    curve["std"].fillna(0),
                    label=label(variant),
                    linestyle=":" if refit else "-",
                    color="#777777" if refit else self.colours[variant],
                    capsize=1.5,
                    marker=marker,
                )
            axis.set(ylabel=f"accuracy (%),\n{order}", ylim=(0, 100))
            axis.grid(axis="y", linewidth=0.4, alpha=0.5)
            axis.xaxis.get_major_locator().set_params(integer=True)
        axes[1, 0].set(xlabel="epoch")
        legend_above(figure, handles_of(axes[0, 0]))
        self._save(figure, name)
        seeds = max(history["seed"].nunique() for history in histories.values())
        return (
            f"Validation accuracy per epoch of refinement, mean and standard deviation over {seeds} seeds; "
            f"arbitrary: a fresh order per validation batch."
        )

    def forms(self, rows: pd.DataFrame, forms: list[str], name: str) -> str:
        """What an order was drawn for in training: accuracy of LS in both orders, position accuracy of LS-pred. Returns the caption."""
        figure, axes = self._figure(0.75, ncols=2, width_ratios=[3, 2])
        left, right = axes[0]
        full = mean_rows(rows[rows["keep"] == rows["keep"].max()])
        for place, form in enumerate(forms):
            ls, ls_pred = FORMS[form]
            for axis, variant, order, column, shift, colour in (
                (left, ls, "sequential", "accuracy", -0.12, OKABE_ITO[0]),
                (left, ls, "arbitrary", "accuracy", 0.12, OKABE_ITO[4]),
                (right, ls_pred, "arbitrary", "position_accuracy", 0.0, OKABE_ITO[3]),
            ):
                found = full[(full["variant"] == variant) & (full["order"] == order)]
                if found.empty:
                    continue
                values = 100 * found.groupby("seed")[column].mean()
                axis.plot(
                    np.full(len(values), place + shift),
                    values,
                    "o",
                    color=colour,
                    markersize=2.5,
                    alpha=0.6,
                )
                axis.errorbar(
                    place + shift + 0.08,
                    values.mean(),
                    values.std(),
                    color=colour,
                    marker="_",
                    capsize=2,
                    label=order if place == 0 and axis is left else None,
                )
        for axis, title in ((left, "LS"), (right, "LS-pred")):
            there = [
                place
                for place in range(len(forms))
                if axis is left or FORMS[forms[place]][1] in set(full["variant"])
            ]
            axis.set(
                xticks=there,
                xticklabels=[forms[place] for place in there],
                xlim=(-0.5, len(forms) - 0.5),
                title=title,
            )
            axis.grid(axis="y", linewidth=0.4, alpha=0.5)
        left.set(ylabel="validation accuracy (%)", xlabel="an order is drawn for")
        right.set(ylabel="positions named (%)", ylim=(0, 104))
        legend_above(figure, handles_of(left))
        self._save(figure, name)
        return (
            "What an order is drawn for in training (one a batch as in the paper, one for every sample, Latin orders for a batch), with "
            f"the same number of steps: {full['seed'].nunique()} seeds, each a point; bars: mean and standard deviation."
        )


def _over_seeds(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Mean and standard deviation over the seeds, in %, by a column."""
    return 100 * rows.groupby(by)["accuracy"].agg(["mean", "std"]).sort_index().fillna(0)


def _counts(rows: pd.DataFrame) -> str:
    images = rows["images"].max()
    return f"Mean and standard deviation over {rows['seed'].nunique()} seeds, {images:.0f} images, each with an order of its own."


def _density(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """A smooth density on the grid; zero where there is too little to estimate one."""
    if len(values) < 3 or values.std() < 1e-6:
        return np.zeros_like(grid)
    return gaussian_kde(values)(grid)


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw the figures of the paper, the controls and the training curves. Returns captions by title."""
    figures = LayerShuffleFigures(
        results.folder / "figures", params.resolve(PaperFigures), list(params.all_variants)
    )
    cells = summarise(results.table("prune_eval"))
    captions = {
        f"Figure 1{part}": figures.pruning(cells, order, f"figure_1{part}")
        for part, order in zip("bc", ORDERS, strict=True)
    }
    captions["Layers kept, every variant"] = figures.pruning_of_all(cells, "pruning")
    captions["Approaches"] = approaches(figures, params, int(cells["keep"].max()), "approaches")
    captions["Routes"] = figures.routes(params, int(cells["keep"].max()), "routes")
    layer, compared = results.read("analysis")["layer"], params.resolve(Analysis).variants[0]
    for (a, c), name, seed in (
        ("ac", PRETRAINED, params.starts[0]),
        ("bd", compared, params.seeds[0]),
    ):
        title = "starting weights" if name == PRETRAINED else f"refined with {label(name)}"
        arrays = read_arrays(ANALYSED / f"{name}_seed_{seed}.npz")
        captions[f"Figure 4{a}"] = figures.umap(arrays, layer, f"figure_4{a}", title)
        captions[f"Figure 4{c}"] = figures.ridges(arrays, f"figure_4{c}", title)
    samplers = results.table("samplers")
    kinds = (
        samplers["sampler"].str.split(" ").str[0] if len(samplers) else pd.Series(dtype=str)
    )  # `prune_eval.samplers` may be empty
    if kinds.isin(["swap", "reversed"]).any():
        shown = [variant for variant in SHOWN if variant in params.all_variants]
        captions["Distance"] = figures.disorder(samplers, shown, results.chance, "distance")
    if (kinds == "fix_first").any():
        captions["First layers"] = figures.first_layers(samplers, results.chance, "first_layers")
    forms = [form for form, names in FORMS.items() if set(names) & set(params.all_variants)]
    if "ls" in results.cell["latin"] and len(forms) > 1:
        captions["Forms of routes"] = figures.forms(
            results.table("prune_eval"), forms, "order_forms"
        )
    histories = {
        variant: results.table(f"finetune/{variant}")
        for variant in params.all_variants
        if variant not in CONTROLS
    }
    captions["Training curves"] = figures.training_curves(histories, "training_curves")
    return captions
