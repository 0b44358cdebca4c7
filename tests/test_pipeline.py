"""The pipeline as a user meets it: every stage on the smallest presets, and the project's rules."""

import ast
import inspect
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

from papers import PAPERS
from pipeline.config.effective import stage_params
from pipeline.config.load import load
from pipeline.config.sections import PaperFigures
from pipeline.config.types import Section
from pipeline.declared import paths
from pipeline.deploy.predict import open_weights
from pipeline.files import read_json
from pipeline.smoke import PRESETS, copy_repository, environment
from stages import commands as cli
from tests.conftest import ALL_SECTIONS, ROOT, cases_of

CASES = cases_of(__file__)
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
SMOKE = [f"-S{preset}" for preset in PRESETS]
ROOMS = ("lsvit", "pipeline", "papers", "stages")
PICTURES = ("figures", "diagrams", "pruning")
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
DRAWS = ["pipeline/report/figures.py", *(f"papers/*/{name}.py" for name in PICTURES)]
DRAWS += ["lsvit/scanning.py"]  # if it is installed


@pytest.mark.parametrize(
    ("library", "owners"),
    [("mlflow", ["pipeline/tracking/*.py", "pipeline/deploy/*.py"]), ("matplotlib", DRAWS)],
)
def test_mlflow_and_matplotlib_have_their_places(library: str, owners: list[str]) -> None:
    """Tracking and the registry; the papers' figures, and what they share, draw."""
    imports = re.compile(rf"^\s*(import|from) {library}\b", re.M)
    users = {path for path in MODULES if imports.search(path.read_text())}
    assert users
    assert users <= {path for owner in owners for path in ROOT.glob(owner)}


def test_modules_are_short() -> None:
    for path in MODULES:
        assert len(path.read_text().splitlines()) <= 450, path


def own_code(script: str) -> str:
    """The source of a stage's script and of all functions of the papers that it uses."""
    seen: dict[Any, str] = {}
    todo = [import_module(script).main]
    while todo:
        used = inspect.unwrap(todo.pop())
        if used in seen:
            continue
        seen[used] = inspect.getsource(used)
        scope = dict(vars(import_module(used.__module__)))
        names = set()
        for node in ast.walk(ast.parse(seen[used])):
            if isinstance(node, ast.ImportFrom):  # within the function
                scope |= vars(import_module(str(node.module)))
            elif isinstance(node, ast.Name):
                names.add(node.id)
        for name in names & scope.keys():
            is_code = inspect.isclass(scope[name]) or inspect.isroutine(scope[name])
            if is_code and scope[name].__module__.startswith(("papers.", used.__module__)):
                todo.append(scope[name])
    return "\n".join(seen.values())


@pytest.mark.parametrize("name", STAGES)
def test_a_stages_params_are_the_sections_it_reads(name: str) -> None:
    """A section read but not declared would not run the stage again when it changes."""
    stage = STAGES[name]
    source = own_code(stage["cmd"].split()[2])
    declared = {Path(dep).stem for dep in stage["deps"] if dep.startswith("outs/params/")}
    if name == "check-params":
        assert "params.yaml" in stage["deps"]
        return
    given = r"\b(resolve|values|scratch_values|scratch_training|Plan|__init__)\((?:[\w.]+, )?"
    patterns = dict(CASES["reads"])
    sections: list[type[Section]] = [PaperFigures, *ALL_SECTIONS]
    for section in sections:
        patterns[rf"{given}{section.__name__}\b"] = section.name
    read = {key for pattern, key in patterns.items() if re.search(pattern, source)}
    assert read <= declared <= stage_params(load(ROOT / "params.yaml", papers=PAPERS)).keys()


# What DVC's command does, for several of them: it takes longer to start than most of them take.
COMMANDS = """
import json, sys
from dvc.cli import main
for command in json.loads(sys.argv[1]):
    if code := main(command):
        sys.exit(code)
    print(sys.argv[2], flush=True)
"""
END = "---- the end of a command ----"


def ended(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """A Python process that has ended, and what it printed."""
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, **options)


def run(command: list[str], folder: Path, seconds: float | None = None) -> str:
    """What a process prints that ends well."""
    done = ended(command, cwd=folder, timeout=seconds, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def dvc(folder: Path, *commands: str, seconds: float | None = None) -> list[str]:
    """What `dvc` prints for each command."""
    words = json.dumps([shlex.split(command) for command in commands])
    return run(["-c", COMMANDS, words, END], folder, seconds).split(END)[: len(commands)]


@pytest.fixture(scope="module")
def smoked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`lsvit smoke`, its copy kept."""
    folder = tmp_path_factory.mktemp("smoke") / "copy"
    status = ["git", "status", "--porcelain"]
    before = subprocess.check_output(status, cwd=ROOT)
    done = ended(["-m", "stages.commands", "smoke", "--keep", str(folder)], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "smoke.log").write_text(done.stdout)
    assert before == subprocess.check_output(status, cwd=ROOT), "another working tree"
    return folder


def test_smoke_is_not_kept_in_a_file(tmp_path: Path) -> None:
    (file := tmp_path / "file").touch()
    done = CliRunner().invoke(cli.app, ["smoke", "--keep", str(file)])
    assert (done.exit_code, type(done.exception)) == (2, SystemExit)


@pytest.mark.slow
def test_smoke_passes_through_every_stage_and_prints_the_table(smoked: Path) -> None:
    log = (smoked / "smoke.log").read_text()
    for stage in STAGES:
        assert f"Running stage '{stage}'" in log
    assert "62.77 ± 0.41" in log  # as published
    variants = load(ROOT / "params.yaml", papers=PAPERS).variants
    rows = ["baseline", *variants, "logistic_regression", "ls_pos_misled"]
    for name, column, values in [*CASES["smoked"], ("table1", "variant", rows)]:
        assert set(pd.read_csv(smoked / "results" / f"{name}.csv")[column]) == set(values)
    figures = {path.stem for path in (smoked / "results" / "figures").glob("*.png")}
    assert set(CASES["figures"]) <= figures


@pytest.mark.slow
def test_nothing_is_left_to_do_and_what_was_made_is_shown(smoked: Path) -> None:
    """Figures made again are the same bytes. Metrics and plots say something."""
    files = sorted((smoked / "results" / "figures").iterdir())
    before = [file.read_bytes() for file in files]
    shows = ("metrics show", "metrics diff --all", "plots show -o plots")
    again = ("status dvc.yaml", "repro", "repro -f -s paper-figures")
    status, nothing, _, shown, compared, _ = dvc(smoked, *again, *shows)
    assert "up to date" in status
    assert "Running stage" not in nothing
    assert [file.read_bytes() for file in files] == before
    assert "ls.arbitrary" in shown
    assert "results" in compared
    assert "figure_1b" in (smoked / "plots" / "index.html").read_text()


@pytest.mark.slow
def test_dvc_knows_every_file_that_stages_write(smoked: Path) -> None:
    listing = ["git", "ls-files", "--others", "results"]
    files = subprocess.check_output(listing, cwd=smoked, text=True).splitlines()
    outs = [out for stage in STAGES.values() for out in paths(stage["outs"])]
    undeclared = [file for file in files if not any(Path(file).is_relative_to(o) for o in outs)]
    assert undeclared == []


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_exits_answer_within_a_budget(smoked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(smoked)
    Image.fromarray(np.arange(784, dtype=np.uint8).reshape(28, 28)).save(smoked / "photo.png")
    exits = smoked / "outs/exits/classifier_wise/ls/seed_0"
    used = read_json(exits / "exits.json")
    weights = "outs/finetune/ls/seed_0/weights.safetensors"
    ask = ["predict", "photo.png", "--weights", weights, "--exits", str(exits), "--json"]
    (cheapest,) = answer([*ask, "--flops", str(used["flops"][0])])
    first = {"depth": used["depths"][0], "flops": used["flops"][0]}
    assert first.items() <= cheapest["exit"].items()
    many = ["--flops", "1e12", "--average", "--order", "arbitrary", "--orders", "1"]
    (average,) = answer([*ask, *many])
    assert average["exit"]["depth"] == used["depths"][-1]  # nobody needs to leave early


def answer(arguments: list[str]) -> list[dict]:
    """What `lsvit` prints as JSON, run in this process, which has imported torch."""
    done = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.slow
def test_weights_that_changed_since_their_stage(
    smoked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(smoked)
    file = Path("outs/finetune/ls/seed_0/weights.safetensors")
    open_weights(str(file))
    assert not capsys.readouterr().err
    whole = file.read_bytes()
    file.unlink()  # it may be a link into DVC's cache
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    open_weights(str(file))
    assert capsys.readouterr().err.startswith(f"warning: {file}: not as its stage left it")
    file.write_bytes(whole)


@pytest.mark.slow
def test_after_a_tracked_run_sync_adds_nothing(smoked: Path) -> None:
    assert "0 runs added" in run(["-m", "stages.commands", "track", "sync"], smoked)


REFUSED = """
import sys


class Refused:
    def find_spec(self, name, path=None, target=None):
        if name in ("dvc", "mlflow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Refused())
"""


@pytest.mark.slow
def test_stages_run_without_dvc_and_mlflow(
    smoked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They leave the same bytes, and say that nothing is tracked. A sync tracks it later."""
    folder = tmp_path / "copy"
    left = shutil.ignore_patterns("outs", ".lsvit", ".dvc", ".git", "mlflow.db*", "mlartifacts")
    shutil.copytree(smoked, folder, ignore=left)
    (tmp_path / "sitecustomize.py").write_text(REFUSED)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        for stage in ("check_params", "prepare_data", "pretrain"):
            printed = run(["-m", f"stages.{stage}"], folder)
        assert printed.count("MLflow is not installed, so nothing is tracked") == 1
        assert "track sync" in printed
    weights = sorted(file.relative_to(folder) for file in folder.rglob("weights.safetensors"))
    assert weights
    for file in weights:
        assert (folder / file).read_bytes() == (smoked / file).read_bytes()
    assert not (folder / "mlflow.db").exists()
    added = run(["-m", "stages.commands", "track", "sync"], folder)
    (number,) = re.findall(r"(\d+) runs added", added)
    assert int(number) >= len(weights)


@pytest.mark.slow
def test_a_queued_experiment_tracks_in_the_real_repository(smoked: Path) -> None:
    """In a temporary copy: nothing is trained again, and what is new is in the real store."""
    store = smoked / "mlflow.db"
    before = tracked_runs(store)
    variants = load(smoked / "params.yaml", papers=PAPERS).all_variants
    stages = """pretrain prune-eval analysis exits smoothing inversion painters nodes
                questions paper-figures report"""
    trainings = {"pretrain seed 0", "end_to_end_vit_6 seed 0"}
    trainings.update(variants, (f"{variant} seed 0" for variant in variants))
    assert {*stages.split(), *trainings} <= set(before)
    with closing(sqlite3.connect(store)) as database:
        names = {name for (name,) in database.execute("SELECT name FROM experiments")}
    papers = ("pretrain", "layershuffle", "exits", "smoothing", "inversion", "questions", "stages")
    expected = {f"{paper}/fashion_mnist_tiny/vit_pico/smoke" for paper in papers}
    assert names == expected | {"Default", "exits/counting/vit_pico/smoke"}
    # LS is declared anew, with a value that it has anyway; the evaluations are few
    values = ("prune_eval.seed=1", "prune_eval.keep=[12]", "prune_eval.samplers=[reversed]")
    changed = [f"-S{value}" for value in (*values, "+variants.ls.finetune.threads=1")]
    queue = shlex.join(["exp", "run", "--queue", *SMOKE, *changed, "prune-eval"])
    try:  # until the worker ends, which holds the pipe
        dvc(smoked, queue, "queue start", seconds=300)
    except subprocess.TimeoutExpired:
        # Its monitor died of a message read while it was written (kombu's transport by files)
        dvc(smoked, "queue stop")
    status = run(["-c", WAIT_FOR_QUEUE, "300"], smoked)
    ends = [line for line in status.splitlines() if "Success" in line or "Failed" in line]
    (log,) = dvc(smoked, f"queue logs {ends[0].split()[0]}")
    assert "Success" in status, log
    assert "Running stage 'prune-eval'" in log
    # A finished training is not repeated, also not from the copy
    assert "ls seed 0: finished before" in log
    assert "epoch 1/1" not in log
    assert not list(smoked.glob(".dvc/tmp/exps/**/mlflow.db"))
    added = list((Counter(tracked_runs(store)) - Counter(before)).elements())
    assert added == ["prune-eval"]


# One process that asks again and again: DVC takes seconds to start, which the experiment needs.
WAIT_FOR_QUEUE = """
import contextlib, io, sys, time
from dvc.cli import main
deadline = time.monotonic() + float(sys.argv[1])
while True:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["queue", "status"]) == 0
    if "Success" in said.getvalue() or "Failed" in said.getvalue() or time.monotonic() > deadline:
        break
    time.sleep(1)
print(said.getvalue())
"""


def tracked_runs(store: Path) -> list[str]:
    """The names of the runs in a store, read without MLflow, which takes seconds to import."""
    names = """SELECT runs.name FROM runs JOIN experiments USING (experiment_id)
               WHERE experiments.name LIKE '%/fashion_mnist_tiny/vit_pico/smoke'
               AND runs.lifecycle_stage = 'active'"""
    with closing(sqlite3.connect(store)) as database:
        return [name for (name,) in database.execute(names)]


@pytest.mark.slow
def test_an_unknown_preset_ends_before_any_compute(tmp_path: Path) -> None:
    copy_repository(tmp_path / "copy")
    command = ["-m", "dvc", "exp", "run", "--pull", "-S", "model=vit_micra"]
    done = ended(command, cwd=tmp_path / "copy", env=environment())
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "error: params.yaml: model: found 'vit_micra', did you mean 'vit_micro'?" in said
    assert "Traceback" not in said
    assert "Running stage 'prepare-data'" not in said


def test_help_is_quick() -> None:
    """Late imports: the help needs none of the heavy libraries."""
    code = (
        "import sys; from stages.commands import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'pydantic', 'torch', 'timm', 'mlflow', 'pandas', 'matplotlib', 'umap', 'dvc'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = ended(["-c", code], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "smoke" in done.stdout


@pytest.mark.slow
def test_commands_users_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As the command ends: the first one as a process, all of them by its entry point."""
    monkeypatch.chdir(tmp_path)
    for command, said in CASES["mistakes"]:
        monkeypatch.setattr(sys, "argv", ["lsvit", *command.split()])
        with pytest.raises(SystemExit) as end:
            cli.main()
        errors = capfd.readouterr().err
        assert end.value.code == 2
        assert said in errors
        assert errors.count("\n") == 1
        if command == "table":
            variables = os.environ | {"PYTHONPATH": str(ROOT)}
            done = ended(["-m", "stages.commands", command], env=variables)
            assert (done.returncode, done.stderr) == (2, errors)
