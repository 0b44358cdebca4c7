"""Sybil tests the examples of the README and docs/.

Blocks of ```python and commands of seconds run in a clone. Blocks of ```py, which need what only a
long run makes, run their imports alone. Other commands are parsed.
"""

import ast
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from sybil import Document, Example, Region, Sybil
from sybil.integration.pytest import SybilItem
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

from pipeline.jobs.portable import use_portable_kernels

use_portable_kernels()  # as a stage does
ROOT = Path(__file__).parent
if sys.dont_write_bytecode:  # else each of the tests' processes compiles torch again
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(ROOT / ".pytest_cache" / "pycache")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
PROGRAMS = Path(sys.executable).parent
COMMAND = re.compile(r"(?:^    |`|&& )uv run (?:--(?:group|extra) \w+ )?((?:\\\n|[^#&`\n])+)", re.M)
SECONDS = re.compile(
    r"lsvit (claims|cost|table|why .*|predict .* --weights weights/.*)"
    r"|dvc (repro .*--dry|metrics diff|exp show .*|plots show|pull .*)"
)


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of what is committed, with the released weights and a photo."""
    folder = tmp_path_factory.mktemp("examples") / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    subprocess.run([PROGRAMS / "dvc", "pull", "-q", "weights.dvc"], cwd=folder, check=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(
        folder / "photo.png"
    )
    return folder


@pytest.fixture
def in_clone(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run an example in the clone, where it may write."""
    import_module("stages.commands")  # here: in another clone it would be refused
    monkeypatch.chdir(clone)


def pytest_xdist_auto_num_workers() -> int:
    """One more than cores: workers wait a third of their time for processes of their tests."""
    return (os.cpu_count() or 1) + 1


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark examples as slow."""
    if isinstance(item, SybilItem):
        item.add_marker("slow")


class Commands:
    """Sybil's parser of commands, each where a page has it first, without `uv run`.

    Args:
        seconds: yield the commands that take seconds, which run, or the others, which are checked.
    """

    def __init__(self, seconds: bool) -> None:
        self.seconds = seconds
        self.found: set[tuple[str, ...]] = set()

    def __call__(self, document: Document) -> Iterator[Region]:
        """Yield the commands of a page."""
        for match in COMMAND.finditer(document.text):
            words = tuple(shlex.split(match[1].replace("\\\n", " ")))
            takes_seconds = SECONDS.fullmatch(" ".join(words)) is not None
            if words not in self.found and takes_seconds is self.seconds:
                self.found.add(words)
                yield Region(match.start(), match.end(), words, run if self.seconds else check)


def run(example: Example) -> None:
    """Run a command by this environment's programs. lsvit's run in this process."""
    program, *words = example.parsed
    if program == "lsvit":
        from typer.testing import CliRunner

        from stages.commands import app

        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
    else:
        subprocess.run([PROGRAMS / program, *words], check=True)


def check(example: Example) -> None:
    """Check a command by :func:`check_words`."""
    check_words(*example.parsed)


def check_words(program: str, *words: str) -> None:
    """Check that the program is there and, of lsvit, mlflow and DVC, that it takes the words."""
    if program == "mkdocs":  # of the group `docs`, which tests do not need
        groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
        assert any(need.startswith(program) for need in groups["docs"])
        return
    assert shutil.which(program, path=PROGRAMS), program
    if program == "lsvit":
        from typer.main import get_command

        from stages.commands import app

        check_options(get_command(app), words)
    elif program == "mlflow":
        with warnings.catch_warnings(action="ignore"):
            from mlflow.cli import cli

        check_options(cli, words)
    elif program == "dvc":
        check_dvc(words)
    elif program == "python":
        assert (ROOT / words[0]).is_file(), words


def check_options(command: Any, words: Sequence[str]) -> None:
    """Let click parse the words. Raises what click raises."""
    context = command.context_class(command)
    if hasattr(command, "commands"):
        _, found, words = command.resolve_command(context, list(words))
        check_options(found, words)
    else:
        command.make_parser(context).parse_args(list(words))


def check_dvc(words: Sequence[str]) -> None:
    """Check that stages and files are there, and that params.yaml with each `-S` loads."""
    from dvc.cli import parse_args
    from dvc.utils.hydra import apply_overrides, get_hydra_sweeps

    from papers import PAPERS
    from pipeline.config.load import load

    logging.disable()  # DVC's handler may hold the captured stream of a test that has ended
    try:
        arguments = parse_args(list(words))
    finally:
        logging.disable(logging.NOTSET)
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text("utf-8"))["stages"]
    for target in getattr(arguments, "targets", None) or ():
        assert target in stages or (ROOT / target).is_file(), target
    if overrides := getattr(arguments, "set_param", None):
        with tempfile.TemporaryDirectory() as folder:
            loaded = []
            for sweep in get_hydra_sweeps({"params.yaml": overrides}):
                file = Path(shutil.copy(ROOT / "params.yaml", folder))
                apply_overrides(file, sweep["params.yaml"])
                loaded.append(load(file, papers=PAPERS))
        assert any(params != load(ROOT / "params.yaml", papers=PAPERS) for params in loaded)


def import_only(example: Example) -> None:
    """Parse Python that is not run, and run its imports."""
    module = ast.parse(example.parsed)
    module.body = [node for node in module.body if isinstance(node, ast.Import | ast.ImportFrom)]
    exec(compile(module, example.path, "exec"), {})  # noqa: S102 (of a page)


pytest_collect_file = (
    Sybil(
        [
            PythonCodeBlockParser(),
            CodeBlockParser("py", import_only),
            Commands(seconds=True),
        ],
        pattern="*.md",
        fixtures=["in_clone"],
        name="run",
    )
    + Sybil([Commands(seconds=False)], pattern="*.md", name="check")
).pytest()
