"""From evaluation rows to the paper's tables, with the published figures beside ours."""

from pathlib import Path

import pandas as pd

from lsvit.routes import ORDERS, count_routes
from pipeline.config.params import Params
from pipeline.config.variant import BASELINE
from pipeline.jobs.rows import seed_means
from pipeline.report.evaluations import CONTROLS, count_orders, label, summarise
from pipeline.report.results import Results
from pipeline.report.statistics import METHOD, estimate
from pipeline.report.tables import (
    cell_text,
    count_seeds,
    interval,
    markdown_table,
    percent,
    value_range,
    write_table,
)

TABLE1 = ["dataset", "model", "order", "variant", "mean", "std", "n"]

# LayerShuffle, table 1: top-1 validation accuracy, mean and standard deviation over 5 seeds, in per cent
PUBLISHED_VARIANTS = (BASELINE, "ls", "ls_pos", "ls_pred")
# (data-set preset, model preset) -> the paper's names of the cell
CELLS = {
    ("imagenet", "vit_b16"): ("ImageNet", "ViT-B/16"),
    ("imagenet", "deit_b16"): ("ImageNet", "DeiT-B dist."),
    ("cifar100", "vit_b16"): ("CIFAR-100", "ViT-B/16"),
    ("cifar100", "deit_b16"): ("CIFAR-100", "DeiT-B dist."),
}
PUBLISHED = {
    ("ImageNet", "ViT-B/16", "sequential"): (
        (82.61, 0.08),
        (75.22, 0.28),
        (75.28, 0.18),
        (74.41, 0.20),
    ),
    ("ImageNet", "ViT-B/16", "arbitrary"): (
        (0.13, 0.03),
        (62.77, 0.41),
        (63.61, 0.23),
        (61.18, 1.06),
    ),
    ("ImageNet", "DeiT-B dist.", "sequential"): (
        (81.16, 0.06),
        (76.57, 0.12),
        (76.18, 0.46),
        (75.08, 0.27),
    ),
    ("ImageNet", "DeiT-B dist.", "arbitrary"): (
        (0.12, 0.05),
        (66.62, 0.40),
        (65.89, 1.28),
        (64.51, 0.85),
    ),
    ("CIFAR-100", "ViT-B/16", "sequential"): (
        (89.62, 0.26),
        (64.43, 0.95),
        (61.98, 0.49),
        (60.88, 0.76),
    ),
    ("CIFAR-100", "ViT-B/16", "arbitrary"): (
        (0.64, 0.13),
        (54.34, 2.64),
        (55.47, 1.41),
        (53.53, 1.45),
    ),
    ("CIFAR-100", "DeiT-B dist.", "sequential"): (
        (87.31, 0.25),
        (75.04, 0.83),
        (72.13, 1.50),
        (66.94, 0.60),
    ),
    ("CIFAR-100", "DeiT-B dist.", "arbitrary"): (
        (0.53, 0.16),
        (64.99, 0.76),
        (64.31, 1.70),
        (58.77, 1.18),
    ),
}


def compare_protocols(protocols: pd.DataFrame) -> pd.DataFrame:
    """Table 1 under both protocols: a row a (order, variant), and the paired difference heldout - paper over the seeds.

    `other_epoch`: for how many seeds the two protocols keep different epochs.
    """
    paper, heldout = (
        protocols[protocols["protocol"] == name].set_index(["variant", "seed"])
        for name in ("paper", "heldout")
    )
    records = []
    for order in ORDERS:
        for variant in dict.fromkeys(protocols["variant"]):
            a, b = paper.loc[variant], heldout.loc[variant]
            difference = estimate((b[order] - a[order]).to_numpy())
            record = {
                "order": order,
                "variant": variant,
                "n": difference.n,
                "other_epoch": int((a["epoch"] != b["epoch"]).sum()),
            }
            for name, values in (("paper", a), ("heldout", b)):
                found = estimate(values[order].to_numpy())
                record |= {name: found.mean, f"{name}_std": found.std}
            records.append(
                record
                | {"difference": difference.mean, "low": difference.low, "high": difference.high}
            )
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
                    found = estimate(
                        (means.loc[variant][order] - means.loc[reference][order]).to_numpy()
                    )
                    records.append(
                        {
                            "order": order,
                            "variant": variant,
                            "minus": reference,
                            **found._asdict(),
                            "interval": METHOD,
                        }
                    )
    return pd.DataFrame(records).round(6)


def table1(cells: pd.DataFrame) -> pd.DataFrame:
    """Table 1 as numbers: accuracy as a fraction, every variant, both orders, all layers."""
    full = cells[cells["full"]].copy()
    full["order"] = pd.Categorical(full["order"], ["sequential", "arbitrary"], ordered=True)
    return full.sort_values("order", kind="stable")[TABLE1].round({"mean": 6, "std": 6})


def paper_table(table: pd.DataFrame) -> pd.DataFrame:
    """Table 1 in the paper's form, in per cent: our rows, without the controls, then the published ones."""
    table = table[~table["variant"].isin(CONTROLS)]
    variants = list(dict.fromkeys(table["variant"]))
    rows: list[dict[str, str]] = []
    for (dataset, model, order), group in table.groupby(
        ["dataset", "model", "order"], sort=False, observed=True
    ):
        row = {"source": "ours", "data": dataset, "model": model, "order": order}
        rows.append(
            row
            | {
                label(c["variant"]): cell_text(100 * c["mean"], 100 * c["std"])
                for c in group.to_dict("records")
            }
        )
    for dataset, model, order in PUBLISHED:
        row = {"source": "published", "data": dataset, "model": model, "order": order}
        rows.append(row | published_row(dataset, model, order))
    return pd.DataFrame(
        rows, columns=["source", "data", "model", "order", *map(label, variants)]
    ).fillna("–")


def published_row(dataset: str, model: str, order: str) -> dict[str, str]:
    """A row of the paper's table 1, by column."""
    return {
        label(v): cell_text(*cell)
        for v, cell in zip(PUBLISHED_VARIANTS, PUBLISHED[dataset, model, order], strict=True)
    }


def table_caption(cells: pd.DataFrame) -> str:
    """What the numbers of Table 1 are."""
    full = cells[cells["full"] & ~cells["variant"].isin(CONTROLS)]
    arbitrary = full[full["order"] == "arbitrary"]
    exist = [count_routes(keep, keep, "arbitrary") for keep in arbitrary["keep"]]
    few, drawn = arbitrary[arbitrary["orders"] == exist], arbitrary[arbitrary["orders"] != exist]
    common = count_orders(drawn if len(drawn) else few, "random orders")
    text = (
        f"Top-1 validation accuracy in %, mean ± standard deviation over {count_seeds(full)}, "
        f"{value_range(full['images'])} validation images; arbitrary order: mean over {common}"
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


def write_table1(cells: pd.DataFrame, folder: Path) -> None:
    """Write table1.csv (fractions), table1.md and table1.tex (per cent, the published rows beside ours)."""
    table = table1(cells)
    write_table(table, paper_table(table), table_caption(cells), folder, "table1", "layershuffle")


def write_statistics(cells: pd.DataFrame, rows: pd.DataFrame, folder: Path) -> None:
    """Write differences.csv and statistics.md: intervals, the three spreads of every full cell, paired differences."""
    paired = differences(rows)
    paired.to_csv(folder / "differences.csv", index=False, lineterminator="\n")
    full = cells[cells["full"]].copy()
    full["order"] = pd.Categorical(full["order"], ORDERS, ordered=True)
    spreads = [
        {
            "order": c.order,
            "variant": label(c.variant),
            "mean": f"{100 * c.mean:.2f}",
            "interval": interval(c.low, c.high),
            "seeds": percent(c.std),
            "orders": f"{percent(c.std_orders)} ({c.spread_orders})",
            "images": percent(c.se_images),
            "n seeds": c.n,
            "n orders": c.orders,
            "n images": f"{c.images:.0f}",
        }
        for c in full.sort_values("order", kind="stable").itertuples()
    ]
    pairs = [
        {
            "order": d.order,
            "difference": f"{label(d.variant)} - {label(d.minus)}",
            "mean": f"{100 * d.mean:+.2f}",
            "interval": interval(d.low, d.high, "+"),
            "std": percent(d.std),
            "n": d.n,
        }
        for d in paired.itertuples()
    ]
    text = (
        f"# Statistics\n\nAccuracy with all layers in %, mean over *n orders* and *n images*. Interval: {METHOD}. Three spreads: *seeds*, "
        "standard deviation of the seeds' means; *orders*, standard deviation over as many single orders of one seed as the number in "
        "brackets says, averaged over the seeds; *images*, standard error from the finite number of validation images. The interval "
        "covers the seeds, and the orders where every seed draws its own (one an image); it does not cover the images, which are the "
        f"same for all.\n\n{markdown_table(spreads)}\n\n## Paired differences\n\nSeed by seed (same starting weights, batches and "
        f"evaluation orders), in points. Few seeds: intervals are shown, significance is not claimed.\n\n{markdown_table(pairs)}\n"
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
        (folder / "protocols.md").write_text(
            head + "No images were held out: protocol paper alone.\n"
        )
        return
    compared = compare_protocols(protocols)
    table = [
        {
            "order": c.order,
            "variant": label(c.variant),
            "paper": cell_text(100 * c.paper, 100 * c.paper_std),
            "heldout": cell_text(100 * c.heldout, 100 * c.heldout_std),
            "heldout - paper": f"{100 * c.difference:+.2f}",
            "interval": interval(c.low, c.high, "+"),
            "seeds with another epoch": f"{c.other_epoch} of {c.n}",
        }
        for c in compared.itertuples()
    ]
    worst = compared["difference"].abs().max()
    text = (
        f"{head}{markdown_table(table)}\n\nThe largest difference of a row is {100 * worst:.2f} points; interval: {METHOD}, of the paired "
        "differences. Both protocols share their trainings, which never see the held-out images: the difference is that of the choice "
        "alone.\n"
    )
    (folder / "protocols.md").write_text(text)


def write(results: Results, params: Params) -> dict[str, str]:
    """Write Table 1, figure1.csv, statistics, differences and protocols. Returns captions by title."""
    rows = results.table("prune_eval")
    cells = summarise(rows)
    cells.drop(columns="full").round(6).to_csv(
        results.folder / "figure1.csv", index=False, lineterminator="\n"
    )
    write_table1(cells, results.folder)
    write_statistics(cells, rows, results.folder)
    write_protocols(results.table("protocols"), results.folder)
    return {"Table 1": table_caption(cells)}
