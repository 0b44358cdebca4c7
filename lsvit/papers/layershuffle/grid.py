"""Several cells in one table: Table 1 of the workspace and of every DVC experiment, in the paper's form."""

import io
import itertools
import subprocess
from pathlib import Path

import pandas as pd

from lsvit.errors import UserError
from lsvit.jobs.rows import read_rows
from lsvit.papers.layershuffle.tables import PUBLISHED, published_row
from lsvit.report.evaluations import label
from lsvit.report.ledger import CELLS
from lsvit.report.tables import NOT_RUN, cell_text, write_table

TABLE = "results/table1.csv"
WORKSPACE = "workspace"


def experiments() -> dict[str, str]:
    """The experiments that DVC keeps in this repository, the newest first: name -> revision.

    Raises:
        UserError: this is no repository of DVC's.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo() as repo:
            listed = repo.experiments.ls(all_commits=True)
    except DvcException as error:
        raise UserError(f"DVC cannot list the experiments: {error}") from None
    names = {rev: name for group in listed.values() for name, rev in group}
    if not names:
        return {}
    newest_first = subprocess.run(["git", "rev-list", "--no-walk=sorted", *names], capture_output=True, text=True, check=True)
    return {names[rev]: rev for rev in newest_first.stdout.split()}


def collect(revisions: dict[str, str]) -> pd.DataFrame:
    """The rows of table1.csv of the workspace and of git revisions, each cell (data set, model) from one source alone.

    The workspace's cell counts before any experiment's, then the one with the most seeds, then the newest. Adds the column
    `source`.
    """
    tables = {WORKSPACE: read_rows(Path(TABLE))} if Path(TABLE).is_file() else {}
    for name, revision in revisions.items():
        shown = subprocess.run(["git", "show", f"{revision}:./{TABLE}"], capture_output=True, text=True, check=False)
        if shown.returncode == 0:
            tables[name] = read_rows(io.StringIO(shown.stdout))
    cells: dict[tuple[str, str], pd.DataFrame] = {}
    for name, table in tables.items():
        for cell, rows in table.groupby(["dataset", "model"], sort=False):
            known = cells.get(cell)
            if known is None or (known["source"].iloc[0] != WORKSPACE and rows["n"].max() > known["n"].max()):
                cells[cell] = rows.assign(source=name)
    return pd.concat(cells.values(), ignore_index=True) if cells else pd.DataFrame()


def paper_form(table: pd.DataFrame) -> pd.DataFrame:
    """The grid in the paper's form, in per cent: every combination of the data sets and models found, then the paper's cells.

    Missing cells say "not run"; below each of the paper's rows stands ours.
    """
    found = dict(iter(table.groupby(["dataset", "model", "order"], sort=False)))
    variants = list(dict.fromkeys(table["variant"]))
    columns = ["data", "model", "order", "source", *map(label, variants)]

    def ours(dataset: str, model: str, order: str) -> dict[str, str]:
        if (dataset, model, order) not in found:
            return {"source": "ours", **dict.fromkeys(map(label, variants), NOT_RUN)}
        rows = found[dataset, model, order].to_dict("records")
        return {
            "source": f"ours ({rows[0]['source']}), n = {rows[0]['n']}",
            **{label(r["variant"]): cell_text(100 * r["mean"], 100 * r["std"]) for r in rows},
        }

    own = [cell for cell in dict.fromkeys(zip(table["dataset"], table["model"], strict=True)) if cell not in CELLS]
    datasets, models = (dict.fromkeys(names) for names in zip(*own, strict=True)) if own else ((), ())
    records = [
        {"data": dataset, "model": model, "order": order} | ours(dataset, model, order)
        for dataset, model, order in itertools.product(datasets, models, dict.fromkeys(table["order"]))
    ]
    presets = {names: cell for cell, names in CELLS.items()}
    for data, model, order in PUBLISHED:
        head = {"data": data, "model": model, "order": order}
        records.append(head | {"source": "published"} | published_row(data, model, order))
        records.append(head | ours(*presets[data, model], order))
    return pd.DataFrame(records, columns=columns).fillna("–")


def write(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Write grid.csv (fractions), grid.md and grid.tex (per cent, the paper's form); returns the latter table."""
    paper = paper_form(table)
    caption = "Top-1 validation accuracy in %, mean ± standard deviation over n seeds, for every data set and model; in brackets the DVC "
    caption += "experiment that a row comes from. Published: 5 seeds."
    write_table(table, paper, caption, folder, "grid")
    return paper
