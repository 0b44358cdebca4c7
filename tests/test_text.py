"""Texts are UTF-8 whatever the locale, and what git does not say is unknown."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from papers import PAPERS
from pipeline.report.why import why
from pipeline.tracking.context import git_tags
from stages.check_params import committed
from tests.conftest import ROOT, refused

FOLDERS = ("lsvit", "pipeline", "papers", "stages", "docs", "benchmarks", "examples")
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
LOCALES = [ASCII, {"LC_ALL": "C.UTF-8"}, {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "ascii"}]


def without_encoding(file: Path) -> Iterator[str]:
    """Calls that take the locale's encoding."""
    for call in ast.walk(ast.parse(file.read_text("utf-8"))):
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
        words = [word.arg for word in call.keywords]
        of = ast.unparse(call.func)
        mode = [a.value for a in call.args if isinstance(a, ast.Constant)][-1:]
        path_open = of == "open" or "path" in of.lower() or ".with_name" in of
        implicit = {
            "read_text": not call.args,
            "write_text": len(call.args) < 2,
            "open": path_open and "b" not in str(mode) and "tarfile" not in of,
        }
        if "encoding" not in words and (implicit.get(str(name)) or "universal_newlines" in words):
            yield f"{file}:{call.lineno}"
        if of.startswith("subprocess") and "text" in words:
            yield f"{file}:{call.lineno}"


def test_every_text_has_its_encoding() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    assert not [place for file in files for place in without_encoding(file)]


def test_every_locale_gives_the_same_bytes(tmp_path: Path) -> None:
    """Of a page, a file's name and the console."""
    folder = tmp_path / "Bär"
    folder.mkdir()
    script = tmp_path / "script.py"
    script.write_text(
        "import stages, pathlib\n"
        "from pipeline.files import write_json\n"
        "print('Løvlie ± 1 → 2')\n"
        f"folder = next(pathlib.Path({str(tmp_path)!r}).glob('B*'))\n"
        "write_json(folder / 'é.json', folder.name)\n",
        "utf-8",
    )
    seen = set()
    for variables in LOCALES:
        env = os.environ | variables | {"PYTHONPATH": str(ROOT)}
        printed = subprocess.check_output([sys.executable, script], env=env)
        file = folder / "é.json"
        seen.add((printed, file.read_bytes()))
        file.unlink()
    assert seen == {("Løvlie ± 1 → 2\n".encode(), b'"B\\u00e4r"\n')}


def refuse(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git refuses a repository of another owner, which this variable imitates."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)


def remove_git(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))


def unpack(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".git").rename(folder / "elsewhere")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(folder.parent))


def unpack_inside_another(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository around an unpacked copy says nothing of it."""
    subprocess.run(["git", "rm", "-qrf", "--cached", "."], cwd=folder, check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    command = ["git", *identity, "commit", "-qm", "other", "--allow-empty"]
    subprocess.run(command, cwd=folder, check=True)


@pytest.mark.parametrize(
    ("hide", "reason", "cure"),
    [
        (refuse, "dubious ownership", "safe.directory"),
        (remove_git, "cannot be started", "accepted: git"),
        (unpack, "not a git repository", "git init"),
        (unpack_inside_another, "dvc.yaml", "git init"),
    ],
)
def test_what_git_does_not_say_is_unknown(
    hide: Callable[..., Any],
    reason: str,
    cure: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--shared", ROOT, folder], check=True)
    monkeypatch.chdir(folder)
    hide(folder, monkeypatch)
    git_tags.cache_clear()
    try:
        assert set(git_tags().values()) == {"unknown"}
    finally:
        git_tags.cache_clear()
    assert reason in capsys.readouterr().err
    assert any("unknown" in line and reason in line for line in why("figure_1c", PAPERS))
    with refused(f"{reason}.*{cure}"):
        committed()


def test_git_changes_no_line_endings(tmp_path: Path) -> None:
    """With core.autocrlf a clone's results would differ from the checksums in dvc.lock."""
    shutil.copy(ROOT / ".gitattributes", tmp_path)
    file = tmp_path / "table1.csv"
    file.write_bytes(b"variant,n\nls,5\n")
    commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a", "--no-gpg-sign"]
    for words in (["init", "-q"], ["config", "core.autocrlf", "true"], ["add", "-A"], commit):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)
    file.unlink()
    subprocess.run(["git", "checkout", "-q", "--", "."], cwd=tmp_path, check=True)
    assert file.read_bytes() == b"variant,n\nls,5\n"
