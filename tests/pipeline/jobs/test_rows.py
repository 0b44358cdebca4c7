"""Result files: names that pandas takes for missing values or for numbers are names."""

import itertools
import json
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from papers import PAPERS
from papers.layershuffle.compute.rows import table_metrics
from pipeline.config.load import load
from pipeline.config.params import Params
from pipeline.files import write_json
from pipeline.jobs.files import ROWS
from pipeline.jobs.plan import Plan
from pipeline.jobs.rows import read_rows, seed_means
from pipeline.report.evaluations import summarise
from pipeline.report.results import Results

NAMES = ["NA", "nan", "None", "null", "NaN", "N", "inf", "True"]
NUMBERS = ["007", "1", "1e5"]


def evaluation() -> pd.DataFrame:
    """What an evaluation leaves: 2 of 4 layers, and the whole model in both orders."""
    rows = [(2, "sequential", "0-1"), (4, "sequential", "0-1-2-3"), (4, "arbitrary", "3-1-0-2")]
    frame = pd.DataFrame(rows, columns=["keep", "order", "route"])
    return frame.assign(
        routes=1, images=8, accuracy=0.5, loss=1.0, position_accuracy=np.nan, std_images=0.1
    )


@pytest.mark.parametrize("names", [NAMES, NUMBERS, ["NA"], ["1"]])
def test_a_variant_of_any_name_keeps_its_rows(names: list[str], tmp_path: Path) -> None:
    """From the evaluations to results/prune_eval.csv, and from there to tables."""
    jobs = {}
    for name, seed in itertools.product(names, (0, 1)):
        folder = tmp_path / f"{name} {seed}"
        folder.mkdir()
        evaluation().to_csv(folder / ROWS, index=False)
        jobs[name, seed] = Mock(folder=folder)
    plan = Mock(params=Mock(dataset="d", model="m"))
    Plan.gather(plan, jobs).to_csv(tmp_path / "prune_eval.csv", index=False)
    rows = Results(tmp_path, PAPERS).table("prune_eval")
    assert rows["variant"].tolist() == [name for name in names for _ in range(6)]
    assert rows["position_accuracy"].isna().all()  # an empty cell is missing
    assert seed_means(rows).index.tolist() == [(name, seed) for name in names for seed in (0, 1)]
    assert list(table_metrics(rows)) == names
    cells = summarise(rows)["variant"].value_counts(sort=False)
    assert cells.to_dict() == dict.fromkeys(names, 3)


COLUMNS = ["training", "weights", "family", "sampler", "dataset", "model", "class", "judge_sees"]
COLUMNS += ["losses", "removed", "edit"]


@pytest.mark.parametrize(
    ("names", "columns"), [([*NAMES, "none"], COLUMNS), (NUMBERS, ["class"])], ids=str
)
def test_a_name_in_any_column_is_one(names: list[str], columns: list[str], tmp_path: Path) -> None:
    """Names stand in more columns than one; "none" stands for no loss and no edit."""
    written = pd.DataFrame(dict.fromkeys(columns, names))
    written["accuracy"] = [0.5, np.nan] + [0.25] * (len(names) - 2)
    written.to_csv(tmp_path / "rows.csv", index=False)
    pd.testing.assert_frame_equal(read_rows(tmp_path / "rows.csv"), written)


def test_such_names_are_legal(params: Params, tmp_path: Path) -> None:
    """What the test above is about can be written in params.yaml."""
    values = json.loads(params.model_dump_json())
    values["variants"] |= {name: {"route": "arbitrary"} for name in (*NAMES, *NUMBERS)}
    write_json(tmp_path / "params.yaml", values)
    assert set(load(tmp_path / "params.yaml", papers=PAPERS).variants) >= {*NAMES, *NUMBERS}
