"""The library alone: what it imports, and the names that it exports."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import lsvit

SCRIPT = """
import sys
from pathlib import Path
import torch, timm, numpy
before = set(sys.modules)
import lsvit, lsvit.cli
for name in lsvit.__all__:
    getattr(lsvit, name)
print(*sorted(name for name in set(sys.modules) - before if not name.startswith("lsvit")))
"""


DRAW = "import sys, lsvit; lsvit.arbitrary(lsvit.generator('a'), 4); print('torch' in sys.modules)"


@pytest.mark.parametrize(("script", "printed"), [(SCRIPT, ""), (DRAW, "False")])
def test_it_imports_no_more_than_it_needs(script: str, printed: str) -> None:
    """All of it, the command too, torch, timm and numpy; what draws routes not even torch."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == printed


def test_its_names_and_version_can_be_read() -> None:
    assert set(lsvit.__all__) <= set(dir(lsvit))
    assert lsvit.__version__ == version("lsvit")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'RoutedMdel'"):
        _ = lsvit.RoutedMdel


def test_the_old_place_of_the_model() -> None:
    from lsvit.models import RoutedModel

    assert RoutedModel is lsvit.RoutedModel


USERS_SCRIPT = """
import numpy as np
import timm
from torch import Tensor, nn
import lsvit

def last_first(rng: np.random.Generator, num_layers: int) -> lsvit.Route:
    return tuple(reversed(range(num_layers)))

model: nn.Module = timm.create_model("vit_tiny_patch16_224")
shuffled: lsvit.Shuffle = lsvit.shuffle(model, last_first, seed=3)
step: int = shuffled.step
lsvit.unshuffle(model)
lsvit.shuffle(model, lsvit.drop(0.2))
with lsvit.in_order(model, (2, 0, 1)):
    scores: list[lsvit.Score] = lsvit.evaluate(model, [], orders=3, keep=(3, 6))
top1: float = scores[0].top1
found: lsvit.Scan = lsvit.scan(model, [])
found.plot("scan.png")
routed = lsvit.RoutedModel(model, lsvit.Position(predict=lsvit.Predict()))
loss: Tensor = lsvit.position_loss(lsvit.PositionLogits(routed).logits)
lsvit.shuffle(model, seed="three")
"""


@pytest.mark.slow
def test_types_pass_strict_checks_of_users(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(USERS_SCRIPT)
    config = tmp_path / "mypy.ini"  # reading torch's own types would take most of the time
    config.write_text("[mypy]\nstrict = true\n[mypy-torch.*,timm.*]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    (error,) = [line for line in done.stdout.splitlines() if "error:" in line]
    assert 'Argument "seed" to "shuffle" has incompatible type "str"' in error
