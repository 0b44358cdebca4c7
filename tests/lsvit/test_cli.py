"""The command `lsvit`: all of a clone's commands there, `predict` where the wheel is alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from lsvit import cli
from tests.conftest import Printed, cases_of
from tests.models import save_vit

CASES = cases_of(__file__)


def test_a_clone_has_all_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr("stages.commands.main", lambda: called.append("clone"))
    cli.main()
    assert called == ["clone"]


@pytest.mark.parametrize(("words", "message"), CASES["mistakes"])
def test_without_a_clone_a_mistake_is_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli, "CLONE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["lsvit", *words])
    monkeypatch.chdir(tmp_path)
    Image.new("L", (2, 2)).save("a.png")
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_without_a_clone_predict_answers(tmp_path: Path, printed: Printed) -> None:
    """About an image, by a folder that timm has written."""
    save_vit(tmp_path / "vit", 4)
    image = tmp_path / "a.png"
    Image.new("RGB", (30, 40), "red").save(image)
    words = ["--weights", str(tmp_path / "vit"), "--order", "arbitrary", "--top", "2", "--json"]
    cli.run(["predict", str(image), *words])
    (answer,) = json.loads(printed())
    assert answer["image"] == str(image)
    assert answer["orders"] == 6  # all that there are of 3 layers
    assert len(answer["top"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("module", ["lsvit.cli", "stages.commands"])
def test_a_closed_output_is_no_fault(module: str) -> None:
    code = f"from {module} import main; main()"
    if module == "lsvit.cli":
        code = "import sys; from lsvit.cli import run; run(sys.argv[1:])"
    command = [sys.executable, "-c", code, "predict", "none.png", "--weights", "ls_micro"]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, encoding="utf-8"
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: none.png: there is no such file")
    assert done.stderr.count("\n") == 1
