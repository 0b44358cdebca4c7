"""Several cells in one table, in the paper's form: Table 1 of the workspace and all experiments."""

import itertools
import json
from pathlib import Path

import pandas as pd

from papers.layershuffle.labels import label
from papers.layershuffle.tables import CELLS, PUBLISHED, PUBLISHED_VARIANTS, row_of
from pipeline.errors import UserError
from pipeline.files import reading
from pipeline.git import git
from pipeline.jobs.rows import parse_rows
from pipeline.report.captions import read_captions
from pipeline.report.tables import ABSENT, NOT_RUN, write_table

CAPTIONS = read_captions(__file__)
# Both are written by one stage, so they are about the same cell.
TABLE = "results/table1.csv"
LEDGER = "results/claims.json"
WORKSPACE = "workspace"
CELL = ["dataset", "model", "scale"]


def experiments() -> dict[str, str]:
    """List the DVC experiments of this repository, the newest first: name -> revision.

    Raises:
        UserError: this is no DVC repository, or it has no experiments, as in a fresh clone.
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
        raise UserError(
            "no experiments to collect: `dvc exp run --queue` and `dvc queue start` make some; "
            "results/grid.* stay as they are"
        )
    newest_first = git("rev-list", "--no-walk=sorted", *names) or ""
    return {names[rev]: rev for rev in newest_first.split()}


def collect(revisions: dict[str, str]) -> pd.DataFrame:
    """Gather the rows of table1.csv of the workspace and of git revisions.

    Each cell (data set, model, scale) comes from one source: the workspace if it has it, else the
    experiment with the most seeds, else the newest one.

    Args:
        revisions: of experiments by name, the newest first.

    Returns:
        The rows with the columns `source` and `scale`, "–" where the ledger has no scale.
    """
    cells: dict[tuple[str, str, str], pd.DataFrame] = {}
    for name, revision in {WORKSPACE: None, **revisions}.items():
        text = _read(TABLE, revision)
        if not text:
            continue
        with reading(f"{LEDGER} of {name}"):
            ledger = json.loads(_read(LEDGER, revision) or "{}")
        table = parse_rows(text, f"{TABLE} of {name}")
        table = table.assign(scale=ledger.get("scale", ABSENT), source=name)
        for cell, rows in table.groupby(CELL, sort=False):
            known = cells.get(cell, rows)
            mine = known["source"].iloc[0] == WORKSPACE
            if cell not in cells or (not mine and rows["n"].max() > known["n"].max()):
                cells[cell] = rows
    return pd.concat(cells.values(), ignore_index=True) if cells else pd.DataFrame()


def _read(file: str, revision: str | None) -> str:
    """The content of a file in the workspace, or in a git revision; empty where there is none."""
    if revision is None:
        return Path(file).read_text("utf-8") if Path(file).is_file() else ""
    return git("show", f"{revision}:./{file}") or ""


def paper_form(table: pd.DataFrame) -> pd.DataFrame:
    """Put the grid in the paper's form, in per cent.

    First come our data sets, each with all our models and scales, then the paper's cells (its
    models and data sets at scale `published`), each with our row below. Missing cells say
    "not run".
    """
    table = table[table["variant"].isin([*PUBLISHED_VARIANTS, "layerdrop", "ls_latin"])]
    names = [label(variant) for variant in dict.fromkeys(table["variant"])]

    ours = {}
    for key, rows in table.groupby([*CELL, "order"], sort=False):
        source = f"ours ({rows['source'].iloc[0]}), n = {rows['n'].iloc[0]}"
        ours[key] = {"source": source} | row_of(rows)
    missing = {"source": "ours"} | dict.fromkeys(names, NOT_RUN)
    presets = {names: (*cell, "published") for cell, names in CELLS.items()}
    own = table[~table.set_index(CELL).index.isin([*presets.values()])]
    datasets = own["dataset"].unique()
    models = own[["model", "scale"]].drop_duplicates().to_numpy()
    orders = table["order"].unique()
    records = []
    for dataset, (model, scale), order in itertools.product(datasets, models, orders):
        head = {"data": dataset, "model": model, "scale": scale, "order": order}
        records.append(head | ours.get((dataset, model, scale, order), missing))
    for (data, model, order), rows in PUBLISHED.groupby(["dataset", "model", "order"], sort=False):
        head = {"data": data, "model": model, "scale": "published", "order": order}
        records.append(head | {"source": "published"} | row_of(rows))
        records.append(head | ours.get((*presets[data, model], order), missing))
    columns = ["data", "model", "scale", "order", "source", *names]
    return pd.DataFrame(records, columns=columns).fillna(ABSENT)


def write(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Write grid.csv (fractions), grid.md and grid.tex (per cent). Returns the paper's form."""
    paper = paper_form(table)
    write_table(table, paper, CAPTIONS["grid"], folder, "grid")
    return paper
