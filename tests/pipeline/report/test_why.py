"""Where numbers come from: quoted ones, and `lsvit why`."""

import json
import shlex
from pathlib import Path

import pytest

from papers import PAPERS
from pipeline.declared import stage_results
from pipeline.errors import UserError
from pipeline.report.numbers import number
from pipeline.report.why import TEMPLATES, why
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


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


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rows.csv", "variant=ls", "100*accuracy", ".1f"], "37.5"),
        (["rows.csv", "variant=NA", "accuracy", ".2f"], "0.90"),
        (["claims.json", "id=a", "-low", ".0f"], "1"),
        (["machines.json#rows", "way=x", "ratio", ".1f"], "3.0"),
        (["named.json#checks", "ratio.max()", ".0f"], "3"),
        (["one.json", "`images.train`/cores", ".1f"], "4.5"),
        (["epochs.csv", "100*`a/b`.groupby(seed).last()", ".1f"], "35.0"),
    ],
)
def test_a_number_is_the_mean_over_its_rows(words: list[str], expected: str) -> None:
    assert number(words, FILES.__getitem__, PAPERS) == expected


@pytest.mark.parametrize(
    "words",
    [
        ["rows.csv", "varant=ls", "accuracy", ".1f"],
        ["rows.csv", "variant=x", "accuracy", ".1f"],
        ["rows.csv", "acuracy", ".1f"],
        ["rows.csv", "accuracy", ".1q"],
        ["torn.csv", "accuracy", ".1f"],
        ["quoted.csv", "accuracy", ".1f"],
        ["torn.json", "accuracy", ".1f"],
    ],
)
def test_no_such_number(words: list[str]) -> None:
    with pytest.raises(UserError, match=words[0]):
        number(words, FILES.__getitem__, PAPERS)


def test_damaged_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results").mkdir()
    for name in ("dvc.yaml", "dvc.lock", "results/table1.md"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"results/cell\.json: cannot be read"):
        why("table1", PAPERS)
    for text in ("{", "[]", "{}", '{"claims": [1]}'):
        (tmp_path / "results/claims.json").write_text(text)
        with pytest.raises(UserError, match=r"results/claims\.json: cannot be read"):
            why("fig4a", PAPERS)


@pytest.mark.parametrize(
    ("target", "conditions", "words"),
    [
        # A claim: the entry, and the file that its measure reads, with the stage that wrote it
        ("latin.arbitrary", [], ("verdict: holds", "prune_eval.csv: stage prune-eval", "0, 1, 2")),
        ("fig4a", [], ("results/analysis.json: stage analysis",)),
        ("figure_1c", [], ("results/figures/figure_1c.png: stage paper-figures",)),
        ("table1", [], ("results/table1.md: stage paper-figures",)),
        (
            "samplers.csv",
            ["variant=baseline", "sampler=fix_first 1"],
            ("results/samplers.csv: 5 rows",),
        ),
        ("table1.csv", ["variant=ls", "100*mean", ".2f"], ("mean over the rows of 100*mean",)),
        ("results/grid.md", [], ("no stage of dvc.yaml writes it",)),
        (
            "results/cells/fashion_mnist_10k_vit_micro_hours/table1.md",
            [],
            ("-S scale=hours", "how         results/cells"),
        ),
    ],
)
def test_why(target: str, conditions: list[str], words: tuple[str, ...]) -> None:
    text = "\n".join(why(target, PAPERS, conditions))
    assert all(word in text for word in words), text
    assert "results/cell.json: stage" not in text  # which every claim may ask for


@pytest.mark.parametrize(
    ("target", "conditions"),
    [
        ("nope", []),
        ("fig4a", ["seed=0"]),
        ("table1.md", ["variant=ls"]),
        ("table1.csv", ["variant=ls", "mean"]),
    ],
)
def test_why_nothing(target: str, conditions: list[str]) -> None:
    with pytest.raises(UserError, match=target):
        why(target, PAPERS, conditions)


def test_why_goes_on_to_the_stage_that_computed_it() -> None:
    """With the sections of params.yaml that it depends on."""
    lines = why("table1.csv", PAPERS, ["variant=ls", "order=arbitrary"])
    starts = [line.partition(":")[0] for line in lines if ": stage " in line]
    assert starts == ["results/table1.csv", "results/prune_eval.csv"]
    (sections,) = [line for line in lines if line.startswith("  parameters")]
    assert "prune_eval, " in sections or "prune_eval (" in sections


def test_every_drawn_file_is_made_from_result_files() -> None:
    """Each name begins as one entry of its paper's says, and the files are there."""
    sources = {
        start: files
        for paper in PAPERS
        if paper.charts
        for start, files in paper.import_reader("charts").DRAWN_FROM.items()
    }
    needed = {file for files in sources.values() for file in files}
    assert {file for file in needed if not (ROOT / "results" / file).is_file()} == set()
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
