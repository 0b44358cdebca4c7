"""Files and names that somebody made to do harm."""

import gzip
import json
import struct
from pathlib import Path

import pytest
import torch
from PIL import Image

from lsvit.config.params import parse
from lsvit.data.sources import idx_name, read_idx
from lsvit.errors import UserError, one_line_errors
from lsvit.models.weights import read_tensors
from lsvit.predict import open_weights, read_image


def test_a_safetensors_header_of_2_gb(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(struct.pack("<Q", 2 << 30) + b"{}")
    with pytest.raises(UserError, match=r"weights\.safetensors: not a safetensors file"):
        read_tensors(path)


def test_pickles_are_no_weights(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="not a safetensors file"):
        read_tensors(tmp_path / "model.safetensors")


def test_a_gzip_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsvit.data.sources.LARGEST", 10_000)
    path = tmp_path / idx_name("train", "labels")
    path.write_bytes(gzip.compress(bytes(1_000_000)))
    with pytest.raises(UserError, match="decompresses to more than 10,000 bytes"):
        read_idx(path)


def test_an_image_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("1", (300, 300)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    with pytest.raises(UserError, match=r"a\.png: not an image that can be read"):
        read_image(tmp_path / "a.png", {"input_size": (1, 28, 28)})


BOMB = "a: &a [x, x, x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join(['*a' + str(i - 1 if i else '')] * 8)}]\n" for i in range(1, 12))
BOMB = BOMB.replace("*a0", "*a")


@pytest.mark.parametrize(("text", "said"), [
    ("scale: a\nscale: b\n", "key 'scale' stands twice"), (BOMB, "more than 30 aliases"),
    ("x: !!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
])  # fmt: skip
def test_hostile_yaml(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(UserError) as error:
        parse(tmp_path / "params.yaml")
    assert said in str(error.value)
    assert len(str(error.value)) < 10_000


@pytest.mark.parametrize("config", [
    {"architecture": "../../etc/passwd"}, {"architecture": "__import__"}, {"architecture": ["x"]}, {"architecture": None}, [],
])  # fmt: skip
def test_a_hub_folder_with_a_hostile_config(tmp_path: Path, config: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"config\.json"):
        open_weights(str(tmp_path))


def test_terminal_escapes_of_a_file_name_are_shown_not_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), one_line_errors():
        raise UserError("a\x1b[2Jb.png: not an image")
    assert capsys.readouterr().err == "error: a\\x1b[2Jb.png: not an image\n"
