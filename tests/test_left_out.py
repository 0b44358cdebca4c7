"""Stages of papers that `papers` in params.yaml leaves out: they end at once, with empty outs."""

import re
import shutil
from importlib import import_module
from pathlib import Path

import pytest

from papers import PAPERS
from pipeline.config.effective import stage_params
from pipeline.config.load import load
from pipeline.config.paper import LEFT_OUT
from pipeline.config.params import Params
from pipeline.declared import declared_stages, paths
from pipeline.files import read_json, write_json
from pipeline.jobs.rows import read_rows
from pipeline.report.evidence import Evidence
from pipeline.report.ledger import judge
from tests.conftest import ROOT, cases_of, refused

CASES = cases_of(__file__)

MAIN = [paper for paper in PAPERS if paper.main]
OTHERS = [paper for paper in PAPERS if not paper.main]
SECTIONS = [section.name for paper in OTHERS for section in paper.sections]


def with_line(folder: Path, **keys: str) -> Params:
    """The committed params.yaml, with other values of some keys at its top."""
    text = (ROOT / "params.yaml").read_text("utf-8")
    for key, value in keys.items():
        text = re.sub(rf"^{key}:.*$", f"{key}: {value}", text, flags=re.M)
    (folder / "params.yaml").write_text(text, "utf-8")
    return load(folder / "params.yaml", papers=PAPERS)


@pytest.mark.parametrize(("papers", "model", "run"), CASES["run"])
def test_papers_that_run(papers: str, model: str, run: str | list[str], tmp_path: Path) -> None:
    """What a stage depends on changes for those that do not run alone."""
    params = with_line(tmp_path, papers=papers, model=model)
    names = [paper.name for paper in PAPERS if run == "all" or paper.name in run]
    assert [paper.name for paper in params.running] == names
    asked = with_line(tmp_path, papers=f"[{', '.join(p.name for p in PAPERS)}]", model=model)
    left_out = {section for section in SECTIONS if section not in names}
    values = stage_params(params)
    changed = {name for name, value in stage_params(asked).items() if value != values[name]}
    assert changed == left_out


@pytest.mark.parametrize(("papers", "says"), CASES["refused"])
def test_other_lists_are_refused_in_one_line(papers: str, says: str, tmp_path: Path) -> None:
    with refused(f"^params.yaml: papers: found.*{says}"):
        with_line(tmp_path, papers=papers)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_stage_leaves_nothing_of_another_run(
    section: str, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DVC_STAGE", raising=False)
    with_line(here, papers="[layershuffle]")
    shutil.copy(ROOT / "dvc.yaml", here)
    outs = paths(declared_stages()[section]["outs"])
    for out in outs:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix:
            out.write_text("of another run\n")
        else:
            (out / "of_another_run").mkdir(parents=True)
    with pytest.raises(SystemExit) as ended:
        import_module(f"stages.{section}").main()
    assert ended.value.code == 0
    assert len(capfd.readouterr().out.splitlines()) == 1
    for out in outs:
        if out.suffix == ".csv":
            assert len(read_rows(out)) == 0
        elif out.suffix:
            assert read_json(out) == {}
        else:
            (only,) = out.iterdir()  # DVC warns of a folder that is empty
            assert only.read_text("utf-8") == f"{LEFT_OUT}\n"


def test_claims_of_a_paper_that_was_left_out_are_not_run(tmp_path: Path) -> None:
    """Each names the command that runs it."""
    cell = {"dataset": "d", "model": "m", "scale": "s", "protocol": "paper", "seeds": [0, 1]}
    write_json(tmp_path / "cell.json", cell | {"classes": 10, "latin": []})
    for paper in OTHERS:
        (tmp_path / f"{paper.rows}.csv").write_text("\n")
    ledger = judge(Evidence(tmp_path, PAPERS))
    assert len(ledger["claims"]) > len(OTHERS)
    for entry in ledger["claims"]:
        assert (entry["verdict"], entry["measured"]) == ("not run", None)
        assert "papers=[" in entry["run"]
    assert Evidence(tmp_path, PAPERS).readers("tables") == []
