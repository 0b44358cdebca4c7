"""From evaluation rows to the paper's tables, with the published figures beside ours."""

from pathlib import Path

import pandas as pd
import yaml

from lsvit.routes import ORDERS, count_routes
from papers.layershuffle.floors import FLOORS, describe_lead, find_lead, is_as_good
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


def compare_protocols(protocols: pd.DataFrame) -> pd.DataFrame:
    """Compare Table 1 under both protocols.

    Returns:
        A row an (order, variant): both means, and the paired difference heldout - paper over the
        seeds. `other_epoch` is the number of seeds for which the protocols keep different epochs.
    """
    by_seed = dict(iter(protocols.set_index(["variant", "seed"]).groupby("protocol")))
    records = []
    for order in ORDERS:
        for variant in dict.fromkeys(protocols["variant"]):
            paper, heldout = by_seed["paper"].loc[variant], by_seed["heldout"].loc[variant]
            paired = estimate((heldout[order] - paper[order]).to_numpy())
            record = {
                "order": order,
                "variant": variant,
                "n": paired.n,
                "other_epoch": int((paper["epoch"] != heldout["epoch"]).sum()),
                "paper": paper[order].mean(),
                "paper_std": paper[order].std(),
                "heldout": heldout[order].mean(),
                "heldout_std": heldout[order].std(),
                "difference": paired.mean,
                "low": paired.low,
                "high": paired.high,
            }
            records.append(record)
    return pd.DataFrame(records).round(6)


def differences(rows: pd.DataFrame) -> pd.DataFrame:
    """Compare accuracies with all layers, seed by seed: every variant minus the baseline and LS."""
    means = seed_means(rows)
    variants = list(dict.fromkeys(rows["variant"]))
    records = []
    for order in ORDERS:
        measured = means[order].dropna().index.get_level_values("variant")
        for reference in (BASELINE, "ls"):
            if reference not in variants:
                continue
            for variant in dict.fromkeys(measured):
                if variant in (BASELINE, reference):
                    continue
                paired = means.loc[variant][order] - means.loc[reference][order]
                record = {"order": order, "variant": variant, "minus": reference}
                record |= estimate(paired.to_numpy())._asdict()
                records.append(record | {"interval": METHOD})
    return pd.DataFrame(records).round(6)


def sort_by_order(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells with all layers, first in original order, then in arbitrary orders."""
    full = cells[cells["full"]].copy()
    full["order"] = pd.Categorical(full["order"], ORDERS, ordered=True)
    return full.sort_values("order", kind="stable")


def table1(cells: pd.DataFrame, chance: float) -> pd.DataFrame:
    """Table 1 as numbers: accuracy as a fraction, every variant, both orders, all layers.

    Args:
        cells: of :func:`pipeline.report.evaluations.summarise`.
        chance: accuracy of guessing, a fraction.
    """
    return add_way(sort_by_order(cells)[TABLE1], chance).round({"mean": 6, "std": 6, WAY: 6})


def paper_table(table: pd.DataFrame) -> pd.DataFrame:
    """Table 1 in the paper's form: our rows and the published ones, of the paper's variants.

    Accuracy in %, and below it how far that is from chance to the baseline in original order.
    """
    table = table[table["variant"].isin(PUBLISHED_VARIANTS)]
    records = _paper_rows(table, "ours") + _paper_rows(PUBLISHED, "published")
    run = [variant for variant in PUBLISHED_VARIANTS if variant in set(table["variant"])]
    columns = ["source", "data", "model", "order", *map(label, run)]
    return pd.DataFrame(records, columns=columns).fillna(ABSENT)


def _paper_rows(table: pd.DataFrame, source: str) -> list[dict[str, str]]:
    accuracies = []
    ways = []
    keys = ["dataset", "model", "order"]
    for (dataset, model, order), rows in table.groupby(keys, sort=False, observed=True):
        head = {"data": dataset, "model": model, "order": order}
        accuracies.append({"source": source} | head | row_of(rows))
        if WAY in rows:
            texts = {label(row.variant): f"{100 * row.way:.1f}" for row in rows.itertuples()}
            ways.append({"source": f"{source}, % of the way"} | head | texts)
    return accuracies + ways


def others_table(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of Table 1 that the paper's has not: other variants and floors, a row each, in %."""
    table = table[~table["variant"].isin(PUBLISHED_VARIANTS)]
    records = []
    for variant in dict.fromkeys(table["variant"]):
        record = {"model": label(variant)}
        for row in table[table["variant"] == variant].to_dict("records"):
            order = f"{row['order']} order"
            record[order] = cell_text(100 * row["mean"], 100 * row["std"])
            if WAY in row:
                record[f"{order}, % of the way"] = f"{100 * row[WAY]:.1f}"
        records.append(record)
    columns = [f"{order} order{unit}" for unit in ("", ", % of the way") for order in ORDERS]
    return pd.DataFrame(records, columns=["model", *columns]).fillna(ABSENT)


def floors_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Leads of models over their floors, a row each, and what that leaves to judge."""
    records = []
    for floor in FLOORS:
        lead = find_lead(rows, floor)
        if lead is None:
            continue
        judged = "yes" if lead.n > 1 else "open: one seed has no interval"
        if is_as_good(lead):
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
    return CAPTIONS["table1_first_layer"].format(ls=means["ls"], ls_first=means["ls_first"])


def row_of(rows: pd.DataFrame) -> dict[str, str]:
    """Accuracies of one order in %, by column of Table 1."""
    texts = {}
    for row in rows.to_dict("records"):
        texts[label(row["variant"])] = cell_text(100 * row["mean"], 100 * row["std"])
    return texts


def table_caption(cells: pd.DataFrame) -> str:
    """Say what the numbers of Table 1 are."""
    full = cells[cells["full"] & cells["variant"].isin(PUBLISHED_VARIANTS)]
    arbitrary = full[full["order"] == "arbitrary"]
    existing = [count_routes(keep, keep, "arbitrary") for keep in arbitrary["keep"]]
    all_orders = arbitrary[arbitrary["orders"] == existing]
    drawn_orders = arbitrary[arbitrary["orders"] != existing]
    exhaustive = ""
    if len(all_orders) and len(drawn_orders):
        texts = [
            f"{label(cell.variant)}: all {cell.orders:.0f} there are"
            for cell in all_orders.itertuples()
        ]
        exhaustive = f" ({', '.join(texts)})"
    positions = ""
    for cell in arbitrary.dropna(subset="position_accuracy").to_dict("records"):
        share = 100 * cell["position_accuracy"]
        positions += CAPTIONS["table1_positions"].format(
            variant=label(cell["variant"]), share=share
        )
    orders = drawn_orders if len(drawn_orders) else all_orders
    return CAPTIONS["table1"].format(
        seeds=count_seeds(full),
        images=value_range(full["images"]),
        orders=count_orders(orders, "random orders"),
        exhaustive=exhaustive,
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
        compared = compare_protocols(protocols)
        table = []
        for row in compared.itertuples():
            table.append(
                {
                    "order": row.order,
                    "variant": label(row.variant),
                    "paper": cell_text(100 * row.paper, 100 * row.paper_std),
                    "heldout": cell_text(100 * row.heldout, 100 * row.heldout_std),
                    "heldout - paper": f"{100 * row.difference:+.2f}",
                    "interval": interval(row.low, row.high, "+"),
                    "seeds with another epoch": f"{row.other_epoch} of {row.n}",
                }
            )
        worst = 100 * compared["difference"].abs().max()
        text = CAPTIONS["protocols_compared"].format(
            table=markdown_table(table), worst=worst, method=METHOD
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
    floors = floors_table(rows)
    page.write_text(
        CAPTIONS["table1_page"].format(
            paper=page.read_text("utf-8"),
            others=others_table(table).to_markdown(index=False, disable_numparse=True),
            floors=floors.to_markdown(index=False, disable_numparse=True) or NOT_RUN,
            first_layer=describe_first_layer(results.table("samplers")),
            regression=describe_regression(rows, HELDOUT in results.cell["images"]),
        ),
        "utf-8",
    )
    write_statistics(cells, rows, folder)
    write_protocols(results.table("protocols"), folder)
    return {"Table 1": caption}
