"""The library alone: what it imports, and the names that it exports."""

import subprocess
import sys

import pytest

import lsvit

SCRIPT = """
import sys
import torch, timm, numpy
before = set(sys.modules)
import lsvit
for name in lsvit.__all__:
    getattr(lsvit, name)
print(*sorted(name for name in set(sys.modules) - before if not name.startswith("lsvit")))
"""


def test_it_imports_nothing_beyond_torch_timm_and_numpy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_drawing_routes_needs_no_torch() -> None:
    script = (
        "import sys, lsvit; lsvit.arbitrary(lsvit.generator('a'), 4); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'RoutedMdel'"):
        _ = lsvit.RoutedMdel


def test_the_old_place_of_the_model() -> None:
    from lsvit.models import RoutedModel

    assert RoutedModel is lsvit.RoutedModel
