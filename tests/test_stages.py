"""dvc.yaml: a stage depends on all code that can change what it writes, and on no reader."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from papers import PAPERS
from pipeline.config.paper import Paper
from pipeline.declared import paths
from pipeline.jobs.identity import PACKAGES, imported_modules
from tests.conftest import ROOT

DVC: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text())
STAGES: dict[str, Any] = DVC["stages"]
READERS = ("tables", "figures", "claims", "charts")
# What writes beside the results, and what declares papers, whose sections every stage reads.
APART = {
    "pipeline.errors",
    "pipeline.config.paper",
    "pipeline.tracking.runs",
    "pipeline.tracking.context",
    "pipeline.tracking.store",
    "pipeline.declared",
    "lsvit",
}


def follow(module: str) -> bool:
    """Papers' own modules only declare them; what check-params says of costs is no output."""
    return module not in ("papers", "pipeline.cost") and module.rpartition(".")[0] != "papers"


def executed(stage: str) -> set[str]:
    """The modules behind a stage's script: its imports, and those of the jobs that it makes."""
    modules = imported_modules(script_of(stage), follow=follow)
    texts = [path_of(module).read_text() for module in modules]
    named = r'"((?:lsvit|pipeline|papers)\.[\w.]+)(?::\w+)?"'
    for name in re.findall(named, " ".join(texts)):
        modules |= imported_modules(name, follow=follow)
    if "pipeline.models.extensions" in modules:  # a variant may have any paper's keys
        for paper in PAPERS:
            for key in paper.variant_keys:
                modules |= imported_modules(key.extension.partition(":")[0], follow=follow)
    return {name for name in modules if name.split(".")[0] in PACKAGES} - APART


def script_of(stage: str) -> str:
    """The module that dvc.yaml runs."""
    return str(STAGES[stage]["cmd"].split()[2])


def path_of(module: str) -> Path:
    """The file of a module."""
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_what_it_executes(stage: str) -> None:
    """No module is missing among its deps, and no dep is there for nothing."""
    deps = {ROOT / dep for dep in STAGES[stage]["deps"] if dep.split("/")[0] in PACKAGES}
    modules = executed(stage)
    if stage in ("check-params", "paper-figures", "report"):  # they go through the papers by name
        for paper in PAPERS:
            for room in ("section", "checks") if stage == "check-params" else READERS:
                name = f"papers.{paper.name}.{room}"
                if path_of(name).exists():
                    modules |= set(imported_modules(name, follow=follow)) - APART
    files = {path_of(module) for module in modules}
    missing = {file for file in files if not deps & {file, *file.parents}}
    assert not {file for file in missing if file.exists() and file.read_text()}
    assert not {dep for dep in deps if not any(file.is_relative_to(dep) for file in files)}


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_a_paper_is_declared(paper: Paper) -> None:
    """Its rows are an out of one stage; who reads its files depends on them; figures are plots."""
    rows = f"results/{paper.rows}.csv"
    written = [out for stage in STAGES.values() for out in paths(stage["outs"])]
    assert written.count(Path(rows)) == 1, f"dvc.yaml: {rows} is to be an out of one stage"
    folder = ROOT / "papers" / paper.name
    read = [("paper-figures", rows), ("report", rows)]
    for name in ("section.py", "checks.py"):
        if (folder / name).exists():
            read.append(("check-params", f"papers/{paper.name}/{name}"))
    for stage, file in read:
        assert Path(file) in paths(STAGES[stage]["deps"]), (
            f"dvc.yaml: {file} is missing among the deps of {stage}"
        )
    if paper.figures:
        names = tuple(paper.import_reader("charts").DRAWN_FROM)
        plots = [Path(plot).name for plot in DVC["plots"] if isinstance(plot, str)]
        assert any(name.startswith(names) for name in plots), (
            f"dvc.yaml: no figure of {paper.name} is among the plots"
        )


@pytest.mark.parametrize(
    "stage", [stage for stage in STAGES if stage not in ("paper-figures", "report")]
)
def test_no_reader_makes_a_stage_run(stage: str) -> None:
    """Figures, tables and claims are no dep of a stage that computes."""
    for dep in STAGES[stage]["deps"]:
        if dep.split("/")[0] in PACKAGES:
            for path in (ROOT / dep, *(ROOT / dep).rglob("*.py")):
                assert path.stem not in READERS, path
                assert "/report" not in path.as_posix().removeprefix(str(ROOT)), path


def test_imports_point_one_way() -> None:
    """The contracts of pyproject.toml hold: rooms, papers, readers, stages."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-3000:]
    assert "0 broken" in found.stdout
