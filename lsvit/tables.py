"""From evaluation rows to the paper's tables, with the published figures beside ours."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from rich.console import Console

from lsvit.params import BASELINE
from lsvit.routes import ORDERS, count_routes
from lsvit.sections import Analysis
from lsvit.stats import METHOD, estimate

KEYS = ["dataset", "model", "variant", "order", "keep"]
TABLE1 = ["dataset", "model", "order", "variant", "mean", "std", "n"]
LABELS = {BASELINE: "baseline", "ls": "LS", "ls_pos": "LS-pos", "ls_pred": "LS-pred", "layerdrop": "LayerDrop",
          "ls_contrastive": "LS-contrastive"}  # fmt: skip

# LayerShuffle, table 1: top-1 validation accuracy, mean and standard deviation over 5 seeds, in per cent
PUBLISHED_VARIANTS = (BASELINE, "ls", "ls_pos", "ls_pred")
PUBLISHED = {
    ("ImageNet", "ViT-B/16", "sequential"): ((82.61, 0.08), (75.22, 0.28), (75.28, 0.18), (74.41, 0.20)),
    ("ImageNet", "ViT-B/16", "arbitrary"): ((0.13, 0.03), (62.77, 0.41), (63.61, 0.23), (61.18, 1.06)),
    ("ImageNet", "DeiT-B dist.", "sequential"): ((81.16, 0.06), (76.57, 0.12), (76.18, 0.46), (75.08, 0.27)),
    ("ImageNet", "DeiT-B dist.", "arbitrary"): ((0.12, 0.05), (66.62, 0.40), (65.89, 1.28), (64.51, 0.85)),
    ("CIFAR-100", "ViT-B/16", "sequential"): ((89.62, 0.26), (64.43, 0.95), (61.98, 0.49), (60.88, 0.76)),
    ("CIFAR-100", "ViT-B/16", "arbitrary"): ((0.64, 0.13), (54.34, 2.64), (55.47, 1.41), (53.53, 1.45)),
    ("CIFAR-100", "DeiT-B dist.", "sequential"): ((87.31, 0.25), (75.04, 0.83), (72.13, 1.50), (66.94, 0.60)),
    ("CIFAR-100", "DeiT-B dist.", "arbitrary"): ((0.53, 0.16), (64.99, 0.76), (64.31, 1.70), (58.77, 1.18)),
}
# (data-set preset, model preset) -> the paper's name of that cell
CELLS = {
    ("imagenet", "vit_b16"): ("ImageNet", "ViT-B/16"),
    ("imagenet", "deit_b16"): ("ImageNet", "DeiT-B dist."),
    ("cifar100", "vit_b16"): ("CIFAR-100", "ViT-B/16"),
    ("cifar100", "deit_b16"): ("CIFAR-100", "DeiT-B dist."),
}


def label(variant: str) -> str:
    """A variant's name in the paper's words."""
    return LABELS.get(variant, variant.replace("_", "-"))


def gather_evaluations(dataset: str, model: str, files: dict[tuple[str, int], Path]) -> pd.DataFrame:
    """The rows of all evaluations, by (variant, seed): one row a route."""
    frames = []
    for (variant, seed), path in files.items():
        frame = pd.read_csv(path)
        for position, (name, value) in enumerate({"dataset": dataset, "model": model, "variant": variant, "seed": seed}.items()):
            frame.insert(position, name, value)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a (variant, order, keep): mean accuracy with its interval; three spreads, kept apart: seeds, orders, images.

    `mean`, `std`, `low`, `high`: of the seeds' means over their routes, see :class:`lsvit.stats.Estimate`. `std_orders`: over
    the `spread_orders` single routes of one seed, averaged over the seeds. `se_images`: standard error from the finite number
    of images, of one seed, averaged over the seeds; an image's value is its share of correct answers over the single routes.
    Sample standard deviations (n - 1), absent for a single value. `n`: seeds. `orders`: different routes a seed, drawn or all
    there are. `full`: all layers.
    """
    means, single = mean_rows(rows), single_rows(rows)
    by_seed = means.groupby([*KEYS, "seed"], sort=False)
    seeds = by_seed["accuracy"].agg(["mean"]).join(by_seed["routes"].sum()).reset_index()
    singles = single.groupby([*KEYS, "seed"], sort=False)
    spread = singles["accuracy"].std().groupby(KEYS, sort=False).mean().rename("std_orders")
    counts = singles["routes"].sum().groupby(KEYS, sort=False).first().rename("spread_orders")
    std_images = singles["std_images"].first().groupby(KEYS, sort=False).mean().rename("std_images")
    by_cell = seeds.groupby(KEYS, sort=False)
    cells = by_cell["mean"].apply(lambda values: pd.Series(estimate(values.to_numpy())._asdict())).unstack(sort=False)
    cells = cells.join([spread, counts, std_images, by_cell.agg(orders=("routes", "first"))])
    cells = cells.join(means.groupby(KEYS, sort=False)[["position_accuracy", "images"]].mean()).reset_index()
    cells["n"] = cells["n"].astype(int)
    cells["se_images"] = cells.pop("std_images") / np.sqrt(cells["images"])
    most = cells.groupby("variant")["keep"].transform("max")
    existing = [count_routes(layers, c.keep, c.order) for layers, c in zip(most, cells.itertuples(), strict=True)]
    cells["orders"] = np.minimum(cells["orders"], existing)
    cells["full"] = cells["keep"] == most
    return cells


def mean_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that give a cell's mean: of the pass over many routes where there is one, else of all single routes."""
    return rows[rows["routes"] == rows.groupby(KEYS)["routes"].transform("max")]


def single_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of single routes, which tell the spread; of the one pass where there are none (`per: batch`)."""
    return rows[rows["routes"] == rows.groupby(KEYS)["routes"].transform("min")]


def seed_means(rows: pd.DataFrame) -> pd.DataFrame:
    """Accuracy of each seed with all layers, mean over the routes: a row a (variant, seed), columns sequential, arbitrary."""
    full = mean_rows(rows[rows["keep"] == rows.groupby("variant")["keep"].transform("max")])
    return full.pivot_table("accuracy", ["variant", "seed"], "order", "mean", sort=False)


def protocol_rows(rows: dict[str, pd.DataFrame], epochs: dict[tuple[str, str, int], int]) -> pd.DataFrame:
    """What each protocol keeps and how it scores: a row a (protocol, variant, seed), accuracy with all layers in both orders.

    Args:
        rows: protocol -> evaluation rows.
        epochs: (protocol, variant, seed) -> epoch kept.
    """
    frames = [seed_means(frame).reset_index().assign(protocol=protocol) for protocol, frame in rows.items()]
    table = pd.concat(frames, ignore_index=True)
    table["epoch"] = [epochs[c.protocol, c.variant, c.seed] for c in table.itertuples()]
    return table[["protocol", "variant", "seed", "epoch", *ORDERS]].round(6)


def compare_protocols(protocols: pd.DataFrame) -> pd.DataFrame:
    """Table 1 under both protocols: a row a (order, variant), and the paired difference heldout - paper over the seeds.

    `other_epoch`: for how many seeds the two protocols keep different epochs.
    """
    paper, heldout = (protocols[protocols["protocol"] == name].set_index(["variant", "seed"]) for name in ("paper", "heldout"))
    records = []
    for order in ORDERS:
        for variant in dict.fromkeys(protocols["variant"]):
            a, b = paper.loc[variant], heldout.loc[variant]
            difference = estimate((b[order] - a[order]).to_numpy())
            record = {"order": order, "variant": variant, "n": difference.n, "other_epoch": int((a["epoch"] != b["epoch"]).sum())}
            for name, values in (("paper", a), ("heldout", b)):
                found = estimate(values[order].to_numpy())
                record |= {name: found.mean, f"{name}_std": found.std}
            records.append(record | {"difference": difference.mean, "low": difference.low, "high": difference.high})
    return pd.DataFrame(records).round(6)


def differences(rows: pd.DataFrame) -> pd.DataFrame:
    """Paired differences in accuracy, seed by seed: every variant minus the baseline and minus LS, with all layers."""
    means = seed_means(rows)
    variants = list(dict.fromkeys(rows["variant"]))
    records = []
    for order in ORDERS:
        for reference in (BASELINE, "ls"):
            for variant in variants:
                if variant not in (BASELINE, reference) and reference in variants:
                    found = estimate((means.loc[variant][order] - means.loc[reference][order]).to_numpy())
                    records.append({"order": order, "variant": variant, "minus": reference, **found._asdict(), "interval": METHOD})
    return pd.DataFrame(records).round(6)


def table_metrics(cells: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Few numbers for `dvc metrics` and `dvc exp show`: variant -> order -> mean accuracy with all layers.

    Models that predict positions also have `position_accuracy`, under arbitrary orders.
    """
    metrics: dict[str, dict[str, float]] = {}
    for cell in cells[cells["full"]].to_dict("records"):
        values = metrics.setdefault(cell["variant"], {})
        values[cell["order"]] = round(float(cell["mean"]), 6)
        if cell["order"] == "arbitrary" and pd.notna(cell["position_accuracy"]):
            values["position_accuracy"] = round(float(cell["position_accuracy"]), 6)
    return metrics


def table1(cells: pd.DataFrame) -> pd.DataFrame:
    """Table 1 as numbers: accuracy as a fraction, every variant, both orders, all layers."""
    full = cells[cells["full"]].copy()
    full["order"] = pd.Categorical(full["order"], ["sequential", "arbitrary"], ordered=True)
    return full.sort_values("order", kind="stable")[TABLE1].round({"mean": 6, "std": 6})


def cell_text(mean: float, std: float) -> str:
    """A cell of a table: "12.34 ± 0.56", or the mean alone where there is no spread."""
    return f"{mean:.2f}" if pd.isna(std) else f"{mean:.2f} ± {std:.2f}"


def paper_table(table: pd.DataFrame) -> pd.DataFrame:
    """Table 1 in the paper's form, in per cent: our rows, then the published ones."""
    variants = list(dict.fromkeys(table["variant"]))
    rows: list[dict[str, str]] = []
    for (dataset, model, order), group in table.groupby(["dataset", "model", "order"], sort=False, observed=True):
        row = {"source": "ours", "data": dataset, "model": model, "order": order}
        rows.append(row | {label(c["variant"]): cell_text(100 * c["mean"], 100 * c["std"]) for c in group.to_dict("records")})
    for dataset, model, order in PUBLISHED:
        row = {"source": "published", "data": dataset, "model": model, "order": order}
        rows.append(row | published_row(dataset, model, order))
    return pd.DataFrame(rows, columns=["source", "data", "model", "order", *map(label, variants)]).fillna("–")


def published_row(dataset: str, model: str, order: str) -> dict[str, str]:
    """A row of the paper's table 1, by column."""
    return {label(v): cell_text(*cell) for v, cell in zip(PUBLISHED_VARIANTS, PUBLISHED[dataset, model, order], strict=True)}


def table_caption(cells: pd.DataFrame) -> str:
    """What the numbers of Table 1 are."""
    full = cells[cells["full"]]
    arbitrary = full[full["order"] == "arbitrary"]
    exist = [count_routes(keep, keep, "arbitrary") for keep in arbitrary["keep"]]
    few, drawn = arbitrary[arbitrary["orders"] == exist], arbitrary[arbitrary["orders"] != exist]
    common = count_orders(drawn if len(drawn) else few, "random orders")
    text = (
        f"Top-1 validation accuracy in %, mean ± standard deviation over {_range(full['n'])} seed{'s' if full['n'].max() > 1 else ''}, "
        f"{_range(full['images'])} validation images; arbitrary order: mean over {common}"
    )
    if len(few) and len(drawn):
        text += f" ({', '.join(f'{label(c.variant)}: all {c.orders:.0f} there are' for c in few.itertuples())})"
    positions = arbitrary.dropna(subset="position_accuracy")
    for cell in positions.to_dict("records"):
        text += (
            f". {label(cell['variant'])} names a layer's position correctly in {100 * cell['position_accuracy']:.2f} % of cases "
            f"under arbitrary orders (published: 99.99 %, ImageNet)"
        )
    return text + ". Published: 5 seeds."


def count_orders(cells: pd.DataFrame, noun: str) -> str:
    """How many orders a cell's mean is over: "20 random orders", or "2000 random orders (one an image)"."""
    most = cells.loc[cells["orders"].idxmax()]  # in small cells fewer may exist
    return f"{most['orders']:.0f} {noun}{' (one an image)' if 1 < most['orders'] == most['images'] else ''}"


def _range(values: pd.Series) -> str:
    low, high = f"{values.min():.0f}", f"{values.max():.0f}"
    return low if low == high else f"{low} to {high}"


def write_table1(cells: pd.DataFrame, folder: Path) -> None:
    """Write table1.csv (fractions), table1.md and table1.tex (per cent, the published rows beside ours)."""
    table = table1(cells)
    table.to_csv(folder / "table1.csv", index=False, lineterminator="\n")
    paper, caption = paper_table(table), table_caption(cells)
    (folder / "table1.md").write_text(f"{paper.to_markdown(index=False, disable_numparse=True)}\n\n{caption}\n")
    write_latex(paper, caption, "tab:layershuffle", folder / "table1.tex")


def write_latex(paper: pd.DataFrame, caption: str, name: str, path: Path) -> None:
    """Write a table in the paper's form as LaTeX."""
    buffer = io.StringIO()
    latex = paper.map(lambda text: text.replace(" ± ", " $\\pm$ ").replace("_", "\\_").replace("–", "--"))
    latex.to_latex(buffer, index=False, caption=caption.replace("%", "\\%").replace("±", "$\\pm$"), label=name)
    path.write_text(buffer.getvalue())


def write_statistics(cells: pd.DataFrame, rows: pd.DataFrame, folder: Path) -> None:
    """Write differences.csv and statistics.md: intervals, the three spreads of every full cell, paired differences."""
    paired = differences(rows)
    paired.to_csv(folder / "differences.csv", index=False, lineterminator="\n")
    full = cells[cells["full"]].copy()
    full["order"] = pd.Categorical(full["order"], ORDERS, ordered=True)
    spreads = [
        {"order": c.order, "variant": label(c.variant), "mean": f"{100 * c.mean:.2f}", "interval": _interval(c.low, c.high),
         "seeds": _percent(c.std), "orders": f"{_percent(c.std_orders)} ({c.spread_orders})", "images": _percent(c.se_images),
         "n seeds": c.n, "n orders": c.orders, "n images": f"{c.images:.0f}"}
        for c in full.sort_values("order", kind="stable").itertuples()
    ]  # fmt: skip
    pairs = [
        {"order": d.order, "difference": f"{label(d.variant)} - {label(d.minus)}", "mean": f"{100 * d.mean:+.2f}",
         "interval": _interval(d.low, d.high, "+"), "std": _percent(d.std), "n": d.n}
        for d in paired.itertuples()
    ]  # fmt: skip
    text = (
        f"# Statistics\n\nAccuracy with all layers in %, mean over *n orders* and *n images*. Interval: {METHOD}. Three spreads: *seeds*, "
        "standard deviation of the seeds' means; *orders*, standard deviation over as many single orders of one seed as the number in "
        "brackets says, averaged over the seeds; *images*, standard error from the finite number of validation images. The interval "
        "covers the seeds, and the orders where every seed draws its own (one an image); it does not cover the images, which are the "
        f"same for all.\n\n{_markdown(spreads)}\n\n## Paired differences\n\nSeed by seed (same starting weights, batches and evaluation "
        f"orders), in points. Few seeds: intervals are shown, significance is not claimed.\n\n{_markdown(pairs)}\n"
    )
    (folder / "statistics.md").write_text(text)


def write_protocols(protocols: pd.DataFrame, folder: Path) -> None:
    """Write protocols.md: Table 1 under both protocols, their paired difference, and how often they chose another epoch."""
    head = (
        "# Protocols\n\nTable 1 in %, mean ± standard deviation over the seeds. *paper*: the epoch is chosen on the reported validation "
        "images, as published. *heldout*: it is chosen on training images that were held out of the training; the validation images "
        "only report.\n\n"
    )
    if set(protocols["protocol"]) != {"paper", "heldout"}:
        (folder / "protocols.md").write_text(head + "No images were held out: protocol paper alone.\n")
        return
    compared = compare_protocols(protocols)
    table = [
        {"order": c.order, "variant": label(c.variant), "paper": cell_text(100 * c.paper, 100 * c.paper_std),
         "heldout": cell_text(100 * c.heldout, 100 * c.heldout_std), "heldout - paper": f"{100 * c.difference:+.2f}",
         "interval": _interval(c.low, c.high, "+"), "seeds with another epoch": f"{c.other_epoch} of {c.n}"}
        for c in compared.itertuples()
    ]  # fmt: skip
    worst = compared["difference"].abs().max()
    text = (
        f"{head}{_markdown(table)}\n\nThe largest difference of a row is {100 * worst:.2f} points; interval: {METHOD}, of the paired "
        "differences. Both protocols share their trainings, which never see the held-out images: the difference is that of the choice "
        "alone.\n"
    )
    (folder / "protocols.md").write_text(text)


def console(width: int) -> "Console":
    """A console of at least `width` columns: a narrow terminal wraps lines rather than losing numbers."""
    from rich.console import Console

    return Console(width=max(width, Console().width), highlight=False)


def _percent(value: float) -> str:
    return "–" if pd.isna(value) else f"{100 * value:.2f}"


def _interval(low: float, high: float, sign: str = "") -> str:
    return "–" if pd.isna(low) else f"[{100 * low:{sign}.2f}, {100 * high:{sign}.2f}]"


def _markdown(records: list[dict[str, Any]]) -> str:
    return pd.DataFrame(records).to_markdown(index=False, disable_numparse=True)


def summarise_analysis(numbers: dict[tuple[str, int], dict[str, float]], options: Analysis) -> dict[str, Any]:
    """Mean and standard deviation over the seeds of every number of the analysis, and each seed's value, by model."""
    frame = pd.DataFrame([{"name": name, "seed": seed, **values} for (name, seed), values in numbers.items()])
    models: dict[str, Any] = {}
    for name, group in frame.groupby("name", sort=False):
        values = group.drop(columns=["name", "seed"])
        models[str(name)] = {
            key: {"mean": round(float(values[key].mean()), 6), "std": _number(values[key].std()), "n": len(values),
                  "seeds": dict(zip(map(str, group["seed"]), values[key].tolist(), strict=True))}
            for key in values
        }  # fmt: skip
    return {"layer": options.layer, "images": options.images, "models": models}


def _number(value: float) -> float | None:
    return None if pd.isna(value) else round(float(value), 6)
