"""Where numbers come from: quoted ones, and `lsvit why`."""

import json
import shlex
from pathlib import Path

import pytest

from papers import PAPERS
from pipeline.declared import stage_results
from pipeline.report.numbers import number
from pipeline.report.why import TEMPLATES, why
from tests.conftest import ROOT, cases_of, refused

CASES = cases_of(__file__)


pytestmark = pytest.mark.usefixtures("in_root")
LEDGER = {
    "dataset": "x",
    "claims": [{"id": "a", "measured": {"mean": 1.5, "low": -1.0}}, {"id": "b", "measured": None}],
}
MACHINES = [{"rows": [{"way": "x", "ratio": 2.0}]}, {"rows": [{"way": "x", "ratio": 4.0}]}]
FILES = {
    "rows.csv": "variant,seed,accuracy\nls,0,0.25\nls,1,0.5\nNA,0,0.9\n",
    "epochs.csv": "seed,epoch,a/b\n0,1,0.1\n0,2,0.2\n0,3,0.3\n1,1,0.2\n1,2,0.4\n",
    "claims.json": json.dumps(LEDGER),
    "machines.json": json.dumps(MACHINES),
    "named.json": json.dumps({"here": {"checks": [{"ratio": 0.5}, {"ratio": 3.0}]}, "there": {}}),
    "one.json": json.dumps({"cores": 2, "images": {"train": 9}}),
    "torn.csv": "accuracy\n0.2",
    "quoted.csv": 'accuracy\n"0.2\n',
    "torn.json": '{"a": 1',
}


@pytest.mark.parametrize(("words", "expected"), CASES["numbers"])
def test_a_number_is_the_mean_over_its_rows(words: list[str], expected: str) -> None:
    assert number(words, FILES.__getitem__, PAPERS) == expected


@pytest.mark.parametrize("words", CASES["no_number"])
def test_no_such_number(words: list[str]) -> None:
    with refused(words[0]):
        number(words, FILES.__getitem__, PAPERS)


def test_damaged_files_are_named(here: Path) -> None:
    (here / "results").mkdir()
    for name in ("dvc.yaml", "dvc.lock", "results/table1.md"):
        (here / name).write_text((ROOT / name).read_text())
    with refused(r"results/cell\.json: cannot be read"):
        why("table1", PAPERS)
    for text in ("{", "[]", "{}", '{"claims": [1]}'):
        (here / "results/claims.json").write_text(text)
        with refused(r"results/claims\.json: cannot be read"):
            why("fig4a", PAPERS)


@pytest.mark.parametrize(("target", "conditions", "words"), CASES["why"])
def test_why(target: str, conditions: list[str], words: tuple[str, ...]) -> None:
    text = "\n".join(why(target, PAPERS, conditions))
    assert all(word in text for word in words), text
    assert "results/cell.json: stage" not in text  # which every claim may ask for


@pytest.mark.parametrize(("target", "conditions"), CASES["why_nothing"])
def test_why_nothing(target: str, conditions: list[str]) -> None:
    with refused(target):
        why(target, PAPERS, conditions)


def test_why_goes_on_to_the_stage_that_computed_it() -> None:
    """With the sections of params.yaml that it depends on."""
    lines = why("table1.csv", PAPERS, ["variant=ls", "order=arbitrary"])
    starts = [line.partition(":")[0] for line in lines if ": stage " in line]
    assert starts == ["results/table1.csv", "results/prune_eval.csv"]
    (sections,) = [line for line in lines if line.startswith("  parameters")]
    assert "prune_eval, " in sections or "prune_eval (" in sections


@pytest.mark.parametrize("target", ["table1.csv", "statistics", "inversion_table", "figure_1c"])
def test_why_names_published_figures_where_the_file_has_them(target: str) -> None:
    assert "published.yaml" not in "\n".join(why(target, PAPERS))


def test_every_drawn_file_is_made_from_result_files() -> None:
    """Each name begins as one entry of its paper's says, and the files are there."""
    sources = {
        start: files
        for paper in PAPERS
        if paper.charts
        for start, files in paper.import_reader("charts").DRAWN_FROM.items()
    }
    for files in sources.values():
        assert all((ROOT / "results" / file).is_file() for file in files), files
    general = ("captions.md", "claims.json", "claims.md", "headline.json")
    drawn = [file.name for file in stage_results("paper-figures")[0] if file.name not in general]
    assert all(name.startswith(tuple(sources)) for name in drawn)
    assert all(any(name.startswith(start) for name in drawn) for start in sources)


def test_why_a_page() -> None:
    """Its numbers and tables, each with the command that says more."""
    page = "docs/painters.md"
    lines = [line.split(": uv run lsvit why ") for line in why(page, PAPERS)[1:]]
    assert len(lines) == (TEMPLATES / f"{page}.j2").read_text().count("{{ ")
    for shown, command in lines[:2] + lines[-1:]:
        target, *conditions = shlex.split(command)
        first = why(target, PAPERS, conditions)[0]
        assert first.startswith((f"{shown.strip()}: mean", f"{target}: stage"))
