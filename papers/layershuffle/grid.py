"""Several cells in one table: Table 1 of the workspace and of every DVC experiment, in the paper's form."""

import itertools
import json
import subprocess
from pathlib import Path

import pandas as pd

from papers.layershuffle.tables import CELLS, PUBLISHED, published_row
from pipeline.errors import UserError
from pipeline.files import reading
from pipeline.jobs.rows import parse_rows
from pipeline.report.evaluations import CONTROLS, label
from pipeline.report.tables import NOT_RUN, cell_text, write_table

TABLE, LEDGER = (
    "results/table1.csv",
    "results/claims.json",
)  # of one stage, so they are about the same cell
WORKSPACE = "workspace"
CELL = ["dataset", "model", "scale"]


def experiments() -> dict[str, str]:
    """The experiments that DVC keeps in this repository, the newest first: name -> revision.

    Raises:
        UserError: this is no repository of DVC's, or has no experiments, as in a fresh clone.
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
            "no experiments to collect: `dvc exp run --queue` and `dvc queue start` make some; results/grid.* stay as they are"
        )
    newest_first = subprocess.run(
        ["git", "rev-list", "--no-walk=sorted", *names], capture_output=True, text=True, check=True
    )
    return {names[rev]: rev for rev in newest_first.stdout.split()}


def collect(revisions: dict[str, str]) -> pd.DataFrame:
    """The rows of table1.csv of the workspace and of git revisions, each cell (data set, model, scale) from one source alone.

    The workspace's cell counts before any experiment's, then the one with the most seeds, then the newest. Adds the columns
    `source` and `scale`, "–" where its ledger says none.
    """
    cells: dict[tuple[str, str, str], pd.DataFrame] = {}
    for name, revision in {WORKSPACE: None, **revisions}.items():
        if not (text := _text(TABLE, revision)):
            continue
        with reading(f"{LEDGER} of {name}"):
            scale = json.loads(_text(LEDGER, revision) or "{}").get("scale", "–")
        table = parse_rows(text, f"{TABLE} of {name}").assign(scale=scale)
        for cell, rows in table.groupby(CELL, sort=False):
            known = cells.get(cell)
            if known is None or (
                known["source"].iloc[0] != WORKSPACE and rows["n"].max() > known["n"].max()
            ):
                cells[cell] = rows.assign(source=name)
    return pd.concat(cells.values(), ignore_index=True) if cells else pd.DataFrame()


def _text(file: str, revision: str | None) -> str:
    """The content of a file in the workspace, or in a git revision; empty where there is none."""
    if revision is None:
        return Path(file).read_text() if Path(file).is_file() else ""
    return subprocess.run(
        ["git", "show", f"{revision}:./{file}"], capture_output=True, text=True, check=False
    ).stdout


def paper_form(table: pd.DataFrame) -> pd.DataFrame:
    """The grid in the paper's form, in per cent: every data set found with every (model, scale) found, then the paper's cells.

    The paper's are those of its models and data sets at scale `published`. Missing cells say "not run"; below each of the
    paper's rows stands ours.
    """
    table = table[~table["variant"].isin(CONTROLS)]
    found = dict(iter(table.groupby([*CELL, "order"], sort=False)))
    variants = list(dict.fromkeys(table["variant"]))
    columns = ["data", "model", "scale", "order", "source", *map(label, variants)]

    def ours(*key: str) -> dict[str, str]:
        if key not in found:
            return {"source": "ours", **dict.fromkeys(map(label, variants), NOT_RUN)}
        rows = found[key].to_dict("records")
        return {
            "source": f"ours ({rows[0]['source']}), n = {rows[0]['n']}",
            **{label(r["variant"]): cell_text(100 * r["mean"], 100 * r["std"]) for r in rows},
        }

    presets = {names: (*cell, "published") for cell, names in CELLS.items()}
    own = [
        cell
        for cell in dict.fromkeys(table[CELL].itertuples(index=False, name=None))
        if cell not in presets.values()
    ]
    datasets, models = (
        dict.fromkeys(cell[0] for cell in own),
        dict.fromkeys(cell[1:] for cell in own),
    )
    records = [
        {"data": dataset, "model": model, "scale": scale, "order": order}
        | ours(dataset, model, scale, order)
        for dataset, (model, scale), order in itertools.product(
            datasets, models, dict.fromkeys(table["order"])
        )
    ]
    for data, model, order in PUBLISHED:
        head = {"data": data, "model": model, "scale": "published", "order": order}
        records.append(head | {"source": "published"} | published_row(data, model, order))
        records.append(head | ours(*presets[data, model], order))
    return pd.DataFrame(records, columns=columns).fillna("–")


def write(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Write grid.csv (fractions), grid.md and grid.tex (per cent, the paper's form); returns the latter table."""
    paper = paper_form(table)
    caption = "Top-1 validation accuracy in %, mean ± standard deviation over n seeds, for every data set, model and scale; in brackets "
    caption += "the DVC experiment that a row comes from. Published: 5 seeds."
    write_table(table, paper, caption, folder, "grid")
    return paper
