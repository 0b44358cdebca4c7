"""Pixels of every kind: training and `lsvit predict` read the same ones, or refuse the file."""

import json
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lsvit import cli
from lsvit.predict import open_image
from pipeline.config.datasets import DatasetPreset
from pipeline.data.decode import decode
from pipeline.data.prepare import prepare
from pipeline.data.resize import Resize
from pipeline.data.shards import Arrays
from pipeline.data.sources import Source
from tests.conftest import refused

GREY = np.tile(np.arange(0, 256, 8, dtype=np.uint8), (32, 1))
DEEP = GREY.astype(np.uint16) * 257
PALETTE = Image.fromarray(GREY).convert("P")
AS_IT_IS = Resize((32, 32), "bilinear", 32)
Write = Callable[[Path], object]


def save(mode: str, **options: Any) -> Write:
    return lambda path: Image.fromarray(GREY).convert(mode).save(path, **options)


def save_array(pixels: np.ndarray) -> Write:
    return lambda path: Image.fromarray(pixels).save(path)


def pgm(white: int) -> Write:
    content = (GREY / 255 * white).round().astype(">u2").tobytes()
    return lambda path: path.write_bytes(b"P5 32 32 %d\n" % white + content)


def tiff(bits: int, sample_format: int = 1, photometric: int = 1) -> Write:
    """A file with one strip of zeros."""
    size = 32 * 32 * bits // 8
    tags = [(256, 32), (257, 32), (258, bits), (259, 1), (262, photometric), (273, 8), (277, 1)]
    tags += [(278, 32), (279, size), (339, sample_format)]
    content = b"II*\0" + struct.pack("<I", 8 + size) + bytes(size) + struct.pack("<H", len(tags))
    for tag, value in tags:
        content += struct.pack("<HHII", tag, 4, 1, value)
    return lambda path: path.write_bytes(content + bytes(4))


READ: dict[str, Write] = {
    "la.png": save("LA"),
    "rgba.webp": save("RGBA", lossless=True),
    "cmyk.tif": save("CMYK"),
    "transparent.png": lambda path: PALETTE.save(path, transparency=bytes([0, 128])),
    "animated.gif": save("L", save_all=True, append_images=[Image.new("L", (32, 32))]),
    "16.png": save_array(DEEP),
    "16.tiff": save_array(DEEP),
    "16.pgm": pgm(65535),
    "12.pgm": pgm(4095),
}
REFUSED: dict[str, Write] = {
    "int32.tiff": save_array(GREY.astype(np.int32)),
    "uint32.tiff": tiff(32),
    "float.tiff": save_array(GREY.astype(np.float32) / 255),
    "double.tiff": tiff(64, 3),
    "signed8.tiff": tiff(8, 2),
    "signed16.tiff": tiff(16, 2),
    "12.tiff": tiff(12),
    "white_is_zero.tiff": tiff(16, 1, 0),
    "float.pgm": lambda path: path.write_bytes(b"Pf 32 32 -1.0\n" + bytes(4096)),
    "empty.png": lambda path: path.touch(),
}


@pytest.mark.parametrize("name", READ)
def test_pixels_keep_their_brightness(tmp_path: Path, name: str) -> None:
    READ[name](tmp_path / name)
    with warnings.catch_warnings(action="error"):
        predicted = np.asarray(open_image(tmp_path / name))
    assert np.abs(predicted.astype(int) - GREY[..., None]).max() <= 1
    assert np.array_equal(decode((tmp_path / name).read_bytes(), AS_IT_IS), predicted)


@pytest.mark.parametrize("name", REFUSED)
def test_pixels_without_a_known_white_are_refused(tmp_path: Path, name: str) -> None:
    REFUSED[name](tmp_path / name)
    with refused(rf"{name}: not an image that can be read", ValueError):
        open_image(tmp_path / name)
    with pytest.raises((ValueError, OSError)):
        decode((tmp_path / name).read_bytes(), AS_IT_IS)


def test_a_channel_without_differences_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.zeros((4, 8, 8, 3), np.uint8)
    images[::2, ..., :2] = 200
    split = Arrays(images, np.arange(4) % 2)
    source = Source({"train": split, "validation": split}, ["a", "b"])
    monkeypatch.setattr("pipeline.data.prepare.find", lambda *_: source)
    with refused(r"standard deviation .* 0\.0\], accepted: above 0"):
        prepare("set", DatasetPreset(source="cifar10"), tmp_path, tmp_path / "out")


def test_odd_names_are_escaped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "caf\udce9\x1b\n.png"
    Image.fromarray(GREY).save(path)
    cli.run(["predict", str(path)])
    assert r"caf\udce9\x1b\n.png: ls_micro" in capfd.readouterr().out
    cli.run(["predict", "--json", str(path)])
    (answer,) = json.loads(capfd.readouterr().out)
    assert answer["image"] == rf"{tmp_path}/caf\udce9\x1b\n.png"
    with pytest.raises(SystemExit):
        cli.run(["predict", f"{path}x"])
    assert r"caf\udce9\x1b\n.pngx: there is no such file" in capfd.readouterr().err
