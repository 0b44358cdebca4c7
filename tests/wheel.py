"""Checks the installed wheel, in the environment that runs this file: no pytest, no clone.

    python -I tests/wheel.py PAGE.md ...

Each page's Python runs in an empty folder. Then `lsvit predict` answers.
"""

import contextlib
import io
import os
import re
import sys
import sysconfig
import tempfile
from importlib.metadata import entry_points, requires
from pathlib import Path
from typing import Any

import timm
import torch

import lsvit

DECLARED = {"torch": "2.6", "timm": "1.0.20", "numpy": "1.26"}  # the oldest versions
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def check_needs() -> None:
    """The wheel's metadata ask for three packages, in ranges."""
    needs = {need for need in requires("lsvit") or () if "extra ==" not in need}
    assert needs == {f"{name}>={oldest}" for name, oldest in DECLARED.items()}, needs


def check_place() -> None:
    """It is the wheel that is imported, and no other package of a clone comes with it."""
    assert lsvit.__file__
    installed = Path(sysconfig.get_path("purelib")).resolve()
    assert installed in Path(lsvit.__file__).resolve().parents, lsvit.__file__
    for name in ("pipeline", "papers", "stages", "mlflow", "dvc", "pydantic"):
        with contextlib.suppress(ModuleNotFoundError):
            __import__(name)
            raise AssertionError(f"{name} can be imported here")


def run_page(page: Path) -> None:
    """Run the Python of a page, its examples one after another in one namespace."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    examples = PYTHON.findall(page.read_text())
    assert examples, page
    for example in examples:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(example, str(page), "exec"), namespace)
    print(f"{page.name}: {len(examples)} examples ran")


def check_models() -> None:
    """The original order is timm's own forward pass, bit for bit. Another order is another one."""
    transformer: dict[str, Any] = {
        "img_size": 32,
        "patch_size": 16,
        "embed_dim": 32,
        "num_heads": 2,
        "depth": 3,
    }
    families = {
        "vit_tiny_patch16_224": transformer,
        "deit_tiny_distilled_patch16_224": transformer,
        "deit3_small_patch16_224": transformer,
        "vit_small_patch14_reg4_dinov2": transformer,
        "mixer_s16_224": {"img_size": 32},
    }
    torch.manual_seed(0)
    images = torch.randn(2, 3, 32, 32)
    for name, sizes in families.items():
        model = timm.create_model(name, num_classes=5, **sizes).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
            routed = lsvit.RoutedModel(model)
            expected = model(images)
            assert torch.equal(routed(images), expected), name
            assert not torch.allclose(routed(images, (2, 0, 1)), expected, atol=1e-3), name
    print(f"{len(families)} families of models run")


def check_predict() -> None:
    """`lsvit predict` needs neither a clone nor weights."""
    from PIL import Image

    Image.new("L", (28, 28), "white").save("photo.png")
    (program,) = entry_points(group="console_scripts", name="lsvit")
    sys.argv = ["lsvit", "predict", "photo.png", "--order", "arbitrary"]
    output = io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stdout(output):
        program.load()()
    output.seek(0)
    answer = output.read()
    assert "ls_micro, arbitrary, 20 orders" in answer, answer


if __name__ == "__main__":
    pages = [Path(name).resolve() for name in sys.argv[1:]]
    os.chdir(tempfile.mkdtemp())
    check_needs()
    check_place()
    check_models()
    for page in pages:
        run_page(page)
    check_predict()
    print("the wheel works")
