"""Where numbers come from: quoted ones, and `lsvit why`."""

import json
from pathlib import Path

import pytest

from papers import PAPERS
from pipeline.declared import stage_results
from pipeline.errors import UserError
from pipeline.report.why import NUMBER, number, why
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


FILES = {
    "rows.csv": "variant,seed,accuracy\nls,0,0.25\nls,1,0.5\nNA,0,0.9\n",
    "epochs.csv": "seed,epoch,a/b\n0,1,0.1\n0,2,0.2\n0,3,0.3\n1,1,0.2\n1,2,0.4\n",
    "claims.json": json.dumps(
        {
            "dataset": "x",
            "seeds": [0],
            "claims": [
                {"id": "a", "measured": {"mean": 1.5, "low": -1.0}},
                {"id": "b", "measured": None},
            ],
        }
    ),
    "machines.json": json.dumps(
        [
            {"machine": {}, "rows": [{"way": "x", "ratio": 2.0}]},
            {"rows": [{"way": "x", "ratio": 4.0}]},
        ]
    ),
    "named.json": json.dumps(
        {"here": {"checks": [{"ratio": 0.5}, {"ratio": 3.0}]}, "there": {"cores": 2}}
    ),
}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rows.csv", "variant=ls", "100*accuracy", ".1f"], "37.5"),
        (["rows.csv", "variant=NA", "accuracy", ".2f"], "0.90"),
        (["claims.json", "id=a", "-low", ".0f"], "1"),
        (["machines.json", "way=x", "ratio", ".1f"], "3.0"),
        (["named.json", "ratio.max()", ".0f"], "3"),
        (["epochs.csv", "100*`a/b`.groupby(seed).last()", ".1f"], "35.0"),
    ],
)
def test_a_number_is_the_mean_over_its_rows(words: list[str], expected: str) -> None:
    assert number(words, FILES.__getitem__, PAPERS) == expected


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("varant=ls", "rows.csv: found no column 'varant', accepted: variant, seed, accuracy"),
        ("variant=x", "found no row with variant=x"),
    ],
)
def test_no_such_rows(condition: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        number(["rows.csv", condition, "accuracy", ".1f"], FILES.__getitem__, PAPERS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["rows.csv", "acuracy", ".1f"],
            "rows.csv: found 'acuracy' with format '.1f' .*accepted: an expression of variant, seed, acc",
        ),
        (["rows.csv", "accuracy", ".1q"], "rows.csv: found 'accuracy' with format '.1q'"),
        (
            ["torn.csv", "accuracy", ".1f"],
            r"torn.csv: cannot be read \(ValueError: its last row is torn",
        ),
        (["quoted.csv", "accuracy", ".1f"], "quoted.csv: cannot be read"),
        (["torn.json", "accuracy", ".1f"], "torn.json: cannot be read"),
    ],
)
def test_no_such_number(words: list[str], message: str) -> None:
    torn = {"torn.csv": "accuracy\n0.2", "quoted.csv": 'accuracy\n"0.2\n', "torn.json": '{"a": 1'}
    with pytest.raises(UserError, match=message):
        number(words, (FILES | torn).__getitem__, PAPERS)


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


def test_conditions_on_a_claim_are_refused() -> None:
    with pytest.raises(
        UserError,
        match=r"fig4a: found 'seed=0' behind a claim, accepted: behind a \.csv or \.json file",
    ):
        why("fig4a", PAPERS, ["seed=0"])


def test_why_a_claim_holds() -> None:
    """The entry, and the file that its measure reads, with the stage that wrote it."""
    text = "\n".join(why("latin.arbitrary", PAPERS))
    for words in (
        "verdict: holds",
        "rule: holds if",
        "prune_eval.csv: stage prune-eval",
        "python -m stages prune_eval",
        "seeds 0, 1, 2",
    ):
        assert words in text


def test_why_a_claim_about_numbers_of_a_json_file() -> None:
    """Not of the cell, which every claim may ask for."""
    text = "\n".join(why("fig4a", PAPERS))
    assert "results/analysis.json: stage analysis" in text
    assert "results/cell.json: stage" not in text


@pytest.mark.parametrize(
    ("target", "conditions", "words"),
    [
        ("figure_1c", [], "results/figures/figure_1c.png: stage paper-figures"),
        ("table1", [], "results/table1.md: stage paper-figures"),
        (
            "samplers.csv",
            ["variant=baseline", "sampler=fix_first 1"],
            "results/samplers.csv: 5 rows",
        ),
        ("results/grid.md", [], "no stage of dvc.yaml writes it"),
    ],
)
def test_why_a_file(target: str, conditions: list[str], words: str) -> None:
    assert words in "\n".join(why(target, PAPERS, conditions))


def test_why_goes_on_to_the_stage_that_computed_it() -> None:
    """With the values of its parameters, those of the variant in question alone; in a clone that has nothing else, a line says so."""
    lines = why("table1.csv", PAPERS, ["variant=ls", "order=arbitrary"])
    first = lines.index(
        next(line for line in lines if line.startswith("results/prune_eval.csv: stage prune-eval"))
    )
    assert (
        lines.index(
            next(
                line for line in lines if line.startswith("results/table1.csv: stage paper-figures")
            )
        )
        < first
    )
    shown = {
        line.strip().partition(": ")[0]: line.partition(": ")[2]
        for line in lines[first:]
        if line.startswith("    ")
    }
    assert json.loads(shown["variants"]).keys() == {"ls"}
    assert json.loads(shown["prune_eval"])[0]["keep"] == [3, 6, 9, 12]
    names = [
        line.split()[0]
        for line in lines[first:]
        if line.startswith("  ") and not line.startswith("    ")
    ]
    assert names == [
        "command",
        "data,",
        "reads",
        "parameters",
        "jobs",
        "hardware",
        "checksum",
        "last",
    ]


def test_why_with_other_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed ones are told apart from those of the lock, those of another cell are not shown; what a clone has of jobs is."""
    for name in ("dvc.yaml", "dvc.lock", "params.yaml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "results").mkdir()
    for name in ("cell.json", "prune_eval.csv"):
        (tmp_path / "results" / name).write_text((ROOT / "results" / name).read_text())
    for folder in ("outs/finetune/ls/seed_0", ".lsvit/jobs/train/abc", ".lsvit/jobs/train/other"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "history.json").write_text(f"[{folder.endswith('other')}]")
    (tmp_path / "outs/finetune/ls/seed_0/execution.txt").write_text("a processor\n")
    monkeypatch.chdir(tmp_path)
    text = (tmp_path / "params.yaml").read_text()
    for old, new, words in (
        ("\nprotocol: paper", "\nprotocol: heldout", "from params.yaml, others than in dvc.lock"),
        (
            "\nscale: null",
            "\nscale: hours",
            "not known: params.yaml is of fashion_mnist_10k, vit_micro, hours",
        ),
    ):
        assert old in text
        (tmp_path / "params.yaml").write_text(text.replace(old, new))
        assert words in "\n".join(why("prune_eval.csv", PAPERS))
    assert "1 of its trainings: .lsvit/jobs/train/abc" in "\n".join(why("prune_eval.csv", PAPERS))
    assert "hardware    a processor" in "\n".join(why("prune_eval.csv", PAPERS))


def test_every_drawn_file_is_made_from_result_files() -> None:
    """Each name begins as one entry of its paper's says, and the files are there."""
    known = {
        start: files
        for paper in PAPERS
        for start, files in paper.import_reader("charts").DRAWN_FROM.items()
    }
    assert all((ROOT / "results" / file).is_file() for files in known.values() for file in files)
    general = ("captions.md", "claims.json", "claims.md", "headline.json")
    drawn = [file.name for file in stage_results("paper-figures")[0] if file.name not in general]
    assert [name for name in drawn if not any(name.startswith(start) for start in known)] == []
    assert [start for start in known if not any(name.startswith(start) for name in drawn)] == []


def test_why_a_page() -> None:
    """Its numbers, each with the command that says more."""
    lines = why("README.md", PAPERS)
    numbers = NUMBER.findall((ROOT / "README.md").read_text())
    assert [line.strip() for line in lines[1:]] == [
        f"{shown}: uv run lsvit why {words}" for words, shown in numbers
    ]


def test_why_nothing() -> None:
    with pytest.raises(
        UserError, match="nope: found no such file, figure or claim, accepted: a file of results/"
    ):
        why("nope", PAPERS)
