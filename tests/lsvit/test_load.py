"""The models that come with the package."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

import lsvit
from lsvit import cli
from lsvit.predict import MICRO, RELEASED
from tests.conftest import ROOT, Printed, refused


def released() -> dict[str, str]:
    """The md5 of every released file, by its path below weights/."""
    (out,) = yaml.safe_load((ROOT / "weights.dvc").read_text())["outs"]
    md5 = out["md5"]
    listing = ROOT / "dvc_remote" / "files" / "md5" / md5[:2] / md5[2:]
    return {entry["relpath"]: entry["md5"] for entry in json.loads(listing.read_text())}


@pytest.mark.parametrize("name", MICRO)
def test_they_are_the_released_ones(name: str) -> None:
    variant = name.removesuffix("_micro")
    expected = {path: md5 for path, md5 in released().items() if path.startswith(f"{variant}/")}
    found = {}
    for file in (RELEASED / name).iterdir():
        found[f"{variant}/{file.name}"] = hashlib.md5(file.read_bytes()).hexdigest()
    assert found == expected


@pytest.mark.usefixtures("here")
def test_one_is_loaded_by_its_name() -> None:
    opened = lsvit.load("ls_micro")
    assert opened.model.num_layers == 12
    assert len(opened.classes) == 10
    images = torch.stack([opened.transform(Image.new("RGB", (60, 40), "white"))])
    assert images.shape == (1, 1, 28, 28)
    assert images.max() > 1  # normalised
    with torch.no_grad():
        assert opened.model(images, (3, 1, 2, 0)).shape == (1, 10)


@pytest.mark.usefixtures("here")
def test_a_folder_of_the_name_is_asked_for_by_its_path() -> None:
    Path("ls_micro").mkdir()
    lsvit.load("ls_micro")
    for folder in ("./ls_micro", Path("ls_micro")):
        with refused("does not exist; accepted: ls_micro", ValueError):
            lsvit.load(folder)


def test_predict_takes_one_if_none_is_named(tmp_path: Path, printed: Printed) -> None:
    """It says which, and answers with the classes' names."""
    photo = tmp_path / "photo.png"
    Image.new("L", (28, 28), "white").save(photo)
    cli.run(["predict", str(photo), "--top", "10"])
    answer = printed()
    assert f"{photo}: ls_micro" in answer
    for name in lsvit.load("ls_micro").classes:
        assert name in answer
