"""The command `lsvit`: all of a clone's commands there, `predict` where the wheel is alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from lsvit import cli


def test_a_clone_has_all_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr("stages.commands.main", lambda: called.append("clone"))
    cli.main()
    assert called == ["clone"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "required"),
        (["predict", "a.png"], "--weights"),
        (
            ["predict", "a.png", "--weights", "x", "--top", "0"],
            "--top: found 0, accepted: at least 1",
        ),
        (["smoke"], "invalid choice: 'smoke'"),
    ],
)
def test_without_a_clone_a_mistake_is_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli, "CLONE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["lsvit", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_wheel_needs_no_pipeline() -> None:
    code = "import sys, lsvit.cli; assert not {'pipeline', 'stages', 'typer'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
