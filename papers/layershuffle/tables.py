"""From evaluation rows to the paper's tables, with the published figures beside ours."""

from pathlib import Path

import pandas as pd
import yaml

from lsvit.routes import ORDERS
from papers.layershuffle.floors import FLOORS, describe_lead, find_lead
from papers.layershuffle.labels import label
from papers.layershuffle.section import LOGISTIC
from pipeline.config.params import Params
from pipeline.config.variant import BASELINE
from pipeline.jobs.files import HELDOUT
from pipeline.jobs.rows import seed_means, write_results
from pipeline.report.captions import read_captions
from pipeline.report.evaluations import count_orders, summarise
from pipeline.report.results import Results
from pipeline.report.statistics import METHOD, estimate
from pipeline.report.tables import (
    ABSENT,
    NOT_RUN,
    cell_text,
    count_seeds,
    interval,
    markdown_table,
    percent,
    value_range,
    write_table,
)

CAPTIONS = read_captions(__file__)
TABLE1 = ["dataset", "model", "order", "variant", "mean", "std", "n"]
PUBLISHED_VARIANTS = (BASELINE, "ls", "ls_pos", "ls_pred")
CELLS = {  # (data-set preset, model preset) -> the paper's names of the cell
    ("imagenet", "vit_b16"): ("ImageNet", "ViT-B/16"),
    ("imagenet", "deit_b16"): ("ImageNet", "DeiT-B dist."),
    ("cifar100", "vit_b16"): ("CIFAR-100", "ViT-B/16"),
    ("cifar100", "deit_b16"): ("CIFAR-100", "DeiT-B dist."),
}
CHANCE = {"ImageNet": 0.001, "CIFAR-100": 0.01}  # accuracy of guessing
WAY = "way"  # from chance to the baseline in original order: 1 is as far as the baseline


def add_way(table: pd.DataFrame, chance: float) -> pd.DataFrame:
    """Add the column WAY to accuracies of one model, where guessing has the accuracy `chance`."""
    is_baseline = (table["variant"] == BASELINE) & (table["order"] == "sequential")
    baseline = table.loc[is_baseline, "mean"].item()
    return table.assign(**{WAY: (table["mean"] - chance) / (baseline - chance)})


def read_published() -> pd.DataFrame:
    """Read the paper's table 1: columns of :func:`table1`, under the paper's names, n = 5."""
    text = Path(__file__).with_name("published.yaml").read_text("utf-8")
    cells = []
    for dataset, models in yaml.safe_load(text).items():
        for model, orders in models.items():
            records = []
            for order, row in orders.items():
                for variant, (mean, std) in zip(PUBLISHED_VARIANTS, row, strict=True):
                    records.append((dataset, model, order, variant, mean / 100, std / 100, 5))
            cell = pd.DataFrame(records, columns=TABLE1)
            cells.append(add_way(cell, CHANCE[dataset]))
    return pd.concat(cells, ignore_index=True)


PUBLISHED = read_published()


def compare_protocols(protocols: pd.DataFrame) -> tuple[list[dict[str, str]], float]:
    """Compare Table 1 under both protocols, seed by seed.

    Returns:
        Texts, a row an (order, variant), and the largest mean difference, a fraction.
    """
    trainings = protocols.set_index(["protocol", "variant", "seed"])
    texts = []
    worst = 0.0
    for order in ORDERS:
        for variant in dict.fromkeys(protocols["variant"]):
            paper = trainings.loc["paper"].loc[variant]
            heldout = trainings.loc["heldout"].loc[variant]
            paired = estimate((heldout[order] - paper[order]).to_numpy())
            mean, _, n, low, high = pd.Series(paired).round(6)
            worst = max(worst, abs(mean))
            other_epoch = (paper["epoch"] != heldout["epoch"]).sum()
            text = {
                "order": order,
                "variant": label(variant),
                "paper": cell_text(*100 * paper[order].agg(["mean", "std"]).round(6)),
                "heldout": cell_text(*100 * heldout[order].agg(["mean", "std"]).round(6)),
                "heldout - paper": f"{100 * mean:+.2f}",
                "interval": interval(low, high, "+"),
                "seeds with another epoch": f"{other_epoch} of {n:.0f}",
            }
            texts.append(text)
    return texts, worst


def differences(rows: pd.DataFrame) -> pd.DataFrame:
    """Compare accuracies with all layers, seed by seed: every variant minus the baseline and LS."""
    means = seed_means(rows)
    records = []
    for order in ORDERS:
        measured = means[order].dropna().index.unique("variant")
        for reference in measured.intersection([BASELINE, "ls"]):
            for variant in measured.difference([BASELINE, reference], sort=False):
                paired = means.loc[variant][order] - means.loc[reference][order]
                record = {"order": order, "variant": variant, "minus": reference}
                record |= estimate(paired.to_numpy())._asdict()
                records.append(record | {"interval": METHOD})
    return pd.DataFrame(records).round(6)


def sort_by_order(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells with all layers, first in original order, then in arbitrary orders."""
    return cells[cells["full"]].sort_values("order", ascending=False, kind="stable")


def table1(cells: pd.DataFrame, chance: float) -> pd.DataFrame:
    """Table 1 as numbers: accuracy as a fraction, every variant, both orders, all layers.

    Args:
        cells: of :func:`pipeline.report.evaluations.summarise`.
        chance: accuracy of guessing, a fraction.
    """
    return add_way(sort_by_order(cells)[TABLE1], chance).round({"mean": 6, "std": 6, WAY: 6})


def row_of(rows: pd.DataFrame) -> dict[str, str]:
    """Accuracies of one order in %, by column of Table 1."""
    texts = {}
    for row in rows.itertuples():
        texts[label(row.variant)] = cell_text(100 * row.mean, 100 * row.std)
    return texts


def ways_of(rows: pd.DataFrame) -> dict[str, str]:
    """How far they are from chance to the baseline, in %. Tables of earlier versions do not say."""
    if WAY not in rows:
        return {}
    return {label(row.variant): f"{100 * row.way:.1f}" for row in rows.itertuples()}


UNITS = {"": row_of, ", % of the way": ways_of}


def paper_table(table: pd.DataFrame) -> pd.DataFrame:
    """Table 1 in the paper's form: our rows and the published ones, of the paper's variants.

    Accuracy in %, and below it how far that is from chance to the baseline in original order.
    """
    table = table[table["variant"].isin(PUBLISHED_VARIANTS)]
    records = []
    for source, rows in {"ours": table, "published": PUBLISHED}.items():
        for unit, texts_of in UNITS.items():
            for (dataset, model, order), cell in rows.groupby(TABLE1[:3], sort=False):
                head = {"source": source + unit, "data": dataset, "model": model, "order": order}
                if texts := texts_of(cell):
                    records.append(head | texts)
    run = [variant for variant in PUBLISHED_VARIANTS if variant in set(table["variant"])]
    columns = ["source", "data", "model", "order", *map(label, run)]
    return pd.DataFrame(records, columns=columns).fillna(ABSENT)


def others_table(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of Table 1 that the paper's has not: other variants and floors, a row each, in %."""
    table = table[~table["variant"].isin(PUBLISHED_VARIANTS)]
    columns = {}
    for unit, texts_of in UNITS.items():
        for order in ORDERS:
            columns[f"{order} order{unit}"] = texts_of(table[table["order"] == order])
    models = map(label, dict.fromkeys(table["variant"]))
    texts = pd.DataFrame(columns, pd.Index(models, name="model"))
    return texts.fillna(ABSENT).reset_index()


def floors_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Leads of models over their floors, a row each, and what that leaves to judge."""
    records = []
    for floor in FLOORS:
        lead = find_lead(rows, floor)
        if lead is None:
            continue
        judged = "yes" if lead.n > 1 else "open: one seed has no interval"
        if lead.low <= 0:
            judged = f"no: {floor.unjudged}"
            if floor.claims:
                judged += f" ({', '.join(floor.claims)})"
        records.append(
            {
                "model": f"{label(floor.model)}, {floor.order} order",
                "floor": label(floor.floor),
                "lead in points": describe_lead(lead),
                "can be judged": judged,
            }
        )
    return pd.DataFrame(records)


def describe_regression(rows: pd.DataFrame, heldout: bool) -> str:
    """How the logistic regression was fitted, where there is one."""
    fitted = rows.loc[rows["variant"] == LOGISTIC, "route"]
    if fitted.empty:
        return ""
    chosen = "held-out images chose C" if heldout else "no images were held out to choose C"
    return CAPTIONS["table1_regression"].format(strength=fitted.iloc[0], chosen=chosen)


def describe_first_layer(samplers: pd.DataFrame) -> str:
    """LS and LS refined with its first layer in place, both run with it in place; maybe nothing."""
    if samplers.empty:
        return ""
    rows = samplers[samplers["sampler"] == "fix_first 1"]
    means = 100 * rows.groupby("variant")["accuracy"].mean()
    if not {"ls", "ls_first"} <= set(means.index):
        return ""
    return CAPTIONS["table1_first_layer"].format(**means)


def table_caption(cells: pd.DataFrame) -> str:
    """Say what the numbers of Table 1 are."""
    full = cells[cells["full"] & cells["variant"].isin(PUBLISHED_VARIANTS)]
    arbitrary = full[full["order"] == "arbitrary"]
    positions = ""
    for cell in arbitrary.dropna(subset="position_accuracy").itertuples():
        positions += CAPTIONS["table1_positions"].format(
            variant=label(cell.variant), share=100 * cell.position_accuracy
        )
    return CAPTIONS["table1"].format(
        seeds=count_seeds(full),
        images=value_range(full["images"]),
        orders=count_orders(arbitrary, "random orders"),
        positions=positions,
    )


def write_statistics(cells: pd.DataFrame, rows: pd.DataFrame, folder: Path) -> None:
    """Write differences.csv and statistics.md.

    The page has intervals, the three spreads of every full cell, and paired differences.
    """
    paired = differences(rows)
    write_results(paired, folder / "differences.csv")
    spreads = []
    for cell in sort_by_order(cells).itertuples():
        spreads.append(
            {
                "order": cell.order,
                "variant": label(cell.variant),
                "mean": f"{100 * cell.mean:.2f}",
                "interval": interval(cell.low, cell.high),
                "seeds": percent(cell.std),
                "orders": f"{percent(cell.std_orders)} ({cell.spread_orders})",
                "images": percent(cell.se_images),
                "n seeds": cell.n,
                "n orders": cell.orders,
                "n images": f"{cell.images:.0f}",
            }
        )
    pairs = []
    for pair in paired.itertuples():
        pairs.append(
            {
                "order": pair.order,
                "difference": f"{label(pair.variant)} - {label(pair.minus)}",
                "mean": f"{100 * pair.mean:+.2f}",
                "interval": interval(pair.low, pair.high, "+"),
                "std": percent(pair.std),
                "n": pair.n,
            }
        )
    text = CAPTIONS["statistics"].format(
        method=METHOD, spreads=markdown_table(spreads), pairs=markdown_table(pairs)
    )
    (folder / "statistics.md").write_text(text, "utf-8")


def write_protocols(protocols: pd.DataFrame, folder: Path) -> None:
    """Write protocols.md: Table 1 under both protocols, and their paired difference."""
    text = CAPTIONS["protocols_alone"]
    if set(protocols["protocol"]) == {"paper", "heldout"}:
        table, worst = compare_protocols(protocols)
        text = CAPTIONS["protocols_compared"].format(
            table=markdown_table(table), worst=100 * worst, method=METHOD
        )
    (folder / "protocols.md").write_text(CAPTIONS["protocols"].format(text=text), "utf-8")


def write(results: Results, params: Params) -> dict[str, str]:
    """Write Table 1, figure1.csv, statistics and protocols. Returns captions by title."""
    rows = results.table("prune_eval")
    cells = summarise(rows)
    folder = results.folder
    write_results(cells.drop(columns="full").round(6), folder / "figure1.csv")
    table = table1(cells, results.chance / 100)
    caption = table_caption(cells)
    write_table(table, paper_table(table), caption, folder, "table1", "layershuffle")
    page = folder / "table1.md"
    page.write_text(
        CAPTIONS["table1_page"].format(
            paper=page.read_text("utf-8"),
            others=markdown_table(others_table(table)),
            floors=markdown_table(floors_table(rows)) or NOT_RUN,
            first_layer=describe_first_layer(results.table("samplers")),
            regression=describe_regression(rows, HELDOUT in results.cell["images"]),
        ),
        "utf-8",
    )
    write_statistics(cells, rows, folder)
    write_protocols(results.table("protocols"), folder)
    return {"Table 1": caption}
