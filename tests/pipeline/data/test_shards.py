"""Image files are decoded to shards with the published pixels; a killed run goes on."""

import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from torchvision import transforms

from pipeline.config.datasets import DatasetPreset
from pipeline.config.presets import ModelPreset
from pipeline.data.decode import UNREADABLE, decode
from pipeline.data.prepare import prepare
from pipeline.data.resize import Resize, resizing
from pipeline.data.shards import open_arrow
from pipeline.data.splits import Split
from pipeline.errors import UserError
from pipeline.jobs.files import read_meta
from tests.conftest import ROOT, Printed, refused
from tests.pipeline.data.test_sources import write_images

CPU = torch.device("cpu")
SIZE = 32
MODEL = ModelPreset(
    timm="vit_tiny_patch16_224.augreg_in21k_ft_in1k", kwargs={"img_size": SIZE}, weights="scratch"
)
PRESET = DatasetPreset(source="image_folder", folder="images")


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are decoded in this process, which needs none to start."""
    pool = "pipeline.data.decode.ProcessPoolExecutor"
    monkeypatch.setattr(pool, lambda *_, **__: ThreadPoolExecutor(1))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a repository with `images/`: 100 to train on, 70 to validate on, in 3 classes."""
    write_images(tmp_path / "images" / "train", {"a": 50, "b": 30, "c": 20})
    write_images(tmp_path / "images" / "val", {"a": 30, "b": 30, "c": 10}, seed=1)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    return tmp_path


def prepared(home: Path, name: str = "out", **keys: Any) -> dict[str, Any]:
    return prepare("set", PRESET.model_copy(update=keys), home, home / name, MODEL)


def pixels(home: Path, split: str) -> np.ndarray:
    files = [home / shard["file"] for shard in read_meta(home / "out")["shards"][split]]
    return np.concatenate([batch.images for file in files for batch in open_arrow(file)])


def pictures() -> dict[str, Image.Image]:
    """Images of every mode that a folder may hold, wide, high and small."""
    noise = np.random.default_rng(0).integers(0, 256, (200, 340, 3), dtype=np.uint8)
    colour = Image.fromarray(noise).resize((90, 53))
    return {
        "wide.jpg": colour,
        "high.png": colour.transpose(Image.Transpose.ROTATE_90),
        "small.png": colour.crop((0, 0, 20, 17)),
        "grey.jpg": colour.convert("L"),
        "palette.gif": colour.convert("P"),
        "cmyk.jpg": colour.convert("CMYK"),
        "alpha.png": colour.convert("RGBA"),
        "bits.png": colour.convert("1"),
        "large.webp": Image.fromarray(noise),
        "exact.png": colour.resize((SIZE, SIZE)),
    }


def timm_transform(model: ModelPreset) -> Any:
    cfg: Any = timm.get_pretrained_cfg(model.timm)
    size = {"input_size": (3, SIZE, SIZE)}
    config = resolve_data_config(size, pretrained_cfg=cfg.to_dict())
    return create_transform(**config, normalize=False)


@pytest.mark.parametrize("name", pictures())
def test_pixels_are_those_of_the_published_transforms(name: str) -> None:
    """All readings, bit for bit: torchvision's transforms, and those that timm makes."""
    file = io.BytesIO()
    pictures()[name].save(file, Image.registered_extensions()[Path(name).suffix])
    image = Image.open(file).convert("RGB")
    steps = [transforms.Resize(SIZE, antialias=True), transforms.CenterCrop(SIZE)]
    published = transforms.Compose([*steps, transforms.PILToTensor()])
    squeezing = MODEL.model_copy(update={"timm": "vit_base_patch16_clip_384.laion2b_ft_in1k"})
    for resize, expected, theirs in (
        (resizing(MODEL, "published"), Resize(SIZE, "bilinear", SIZE), published),
        (resizing(MODEL, "timm"), Resize(35, "bicubic", SIZE), timm_transform(MODEL)),
        (
            resizing(squeezing, "timm"),
            Resize((SIZE, SIZE), "bicubic", SIZE),
            timm_transform(squeezing),
        ),
    ):
        assert resize == expected
        ours = decode(file.getvalue(), resize)
        assert np.array_equal(ours.transpose(2, 0, 1), theirs(image).numpy())


@pytest.mark.slow
def test_a_folder_is_decoded_to_shards(home: Path, printed: Printed) -> None:
    """All images once, in files that the metadata lists, with the training pixels' moments."""
    folder = home / "images"
    shutil.copy(folder / "train" / "b" / "b_3.JPEG", folder / "val" / "a" / "a_7.JPEG")
    meta = prepared(home)
    said = printed()
    assert "170 of 170 images" in said
    assert f"1 validation images are trained on too, e.g. {folder}/val/a/a_7.JPEG" in said
    assert [path.name for path in (home / "out").iterdir()] == ["meta.json"]
    assert (meta["classes"], meta["counts"]) == (["a", "b", "c"], {"train": 100, "validation": 70})
    assert (meta["image_shape"], meta["resize"]) == ([SIZE, SIZE, 3], "published")
    shards = meta["shards"]["train"]
    assert [shard["images"] for shard in shards] == [64, 36]
    assert shards[0].keys() == {"file", "images", "sha256"}
    assert not Path(shards[0]["file"]).is_absolute()
    train = pixels(home, "train")
    first = (folder / "train" / "a" / "a_0.JPEG").read_bytes()
    assert np.array_equal(train[0], decode(first, resizing(MODEL, "published")))
    assert np.allclose(meta["mean"], train.mean((0, 1, 2)) / 255, atol=1e-6)
    assert np.allclose(meta["std"], train.std((0, 1, 2)) / 255, atol=1e-6)
    split = Split(home / "out", "validation", CPU, 3, SIZE, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    assert np.bincount(split.maps.labels).tolist() == [30, 30, 10]
    assert set(split.maps.labels[:20]) == {0, 1, 2}  # the first n are of all classes
    index = torch.tensor([69, 3, 65])
    expected = torch.from_numpy(pixels(home, "validation")[index.numpy()]) / 255
    assert torch.allclose(split.take(index)[0], expected.permute(0, 3, 1, 2), atol=1e-6)


def test_wrong_sizes_end_before_decoding(home: Path) -> None:
    refuse = Mock(side_effect=UserError("too few"))
    with refused("too few"):
        prepare("set", PRESET, home, home / "out", MODEL, refuse)
    refuse.assert_called_once_with(100, 70, 0)
    assert not (home / ".lsvit").exists()


@pytest.mark.usefixtures("in_process")
def test_limits_take_random_images_of_all_classes(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the system does not tell a process's cores, as macOS."""
    monkeypatch.delattr(os, "sched_getaffinity")
    meta = prepared(home, train=60, validation=20, heldout=10)
    assert meta["counts"] == {"train": 50, "validation": 20, "heldout": 10}
    assert meta["classes"] == ["a", "b", "c"]
    assert prepared(home, "again", train=60, validation=20, heldout=10) == meta
    images = np.concatenate([pixels(home, split) for split in ("train", "heldout")])
    assert len(np.unique(images.reshape(60, -1), axis=0)) == 60


@pytest.mark.usefixtures("in_process")
def test_unreadable_images_are_all_named(home: Path) -> None:
    """None is left out silently: a list of all of them, then one line. Without them all is well."""
    folder = home / "images" / "train" / "a"
    whole = (folder / "a_1.JPEG").read_bytes()
    damaged = {"a_1.JPEG": whole[: len(whole) // 2], "text.png": b"hello", "empty.png": b""}
    for name, content in damaged.items():
        (folder / name).write_bytes(content)
    with refused(r"^set: 3 of 172 images cannot be read, all in \S+unreadable.txt: "):
        prepared(home)
    (listing,) = home.glob(f".lsvit/data/*/{UNREADABLE}")
    lines = dict(line.split(": ", 1) for line in listing.read_text().splitlines())
    assert lines.keys() == {str(folder / name) for name in damaged}
    assert "truncated" in lines[str(folder / "a_1.JPEG")]
    assert "cannot identify" in lines[str(folder / "text.png")]
    assert not (home / "out").exists()
    for path in lines:
        Path(path).unlink()
    assert prepared(home)["counts"]["train"] == 99


@pytest.mark.usefixtures("in_process")
def test_missing_and_damaged_shards_are_named_and_made_again(home: Path) -> None:
    meta = prepared(home)
    path = home / meta["shards"]["train"][1]["file"]
    whole = path.read_bytes()
    for damage, reason in (
        (path.unlink, "missing"),
        (lambda: path.write_bytes(whole[:-1000]), "damaged"),
    ):
        damage()  # type: ignore[operator]
        with refused(rf"^{path}: {reason}.*`dvc repro -f prepare-data`"):
            Split(home / "out", "train", CPU, 3, SIZE, (0.0,), (1.0,))
        assert prepared(home) == meta
        assert path.read_bytes() == whole


@pytest.mark.usefixtures("in_process")
def test_a_changed_image_is_seen_when_the_folder_is_read_again(home: Path) -> None:
    before = prepared(home)
    assert prepared(home, resize="timm")["sha256"] != before["sha256"]
    folder = home / "images" / "train" / "b"
    shutil.copy(folder / "b_1.JPEG", folder / "b_2.JPEG")
    assert prepared(home)["sha256"] != before["sha256"]
    assert (home / before["shards"]["train"][0]["file"]).exists()  # other experiments may use them


# As `prepared` does, without this module's imports.
PREPARE = """
import sys
from pathlib import Path
from pipeline.config.datasets import DatasetPreset
from pipeline.config.presets import ModelPreset
from pipeline.data.prepare import prepare
from pipeline.data.resize import Resize, resizing
home = Path(sys.argv[1])
preset = DatasetPreset.model_validate_json(sys.argv[2])
model = ModelPreset.model_validate_json(sys.argv[3])
prepare("set", preset, home, home / "killed", model)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_a_killed_preparation_goes_on_and_leaves_no_process(home: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    large = home / "images" / "train" / "a" / "large.jpg"
    Image.fromarray(noise).save(large)
    for i in range(150):
        os.link(large, large.with_stem(f"large_{i}"))
    arguments = [str(home), PRESET.model_dump_json(), MODEL.model_dump_json()]
    process = subprocess.Popen(
        [sys.executable, "-c", PREPARE, *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    while not (finished := list(home.glob(".lsvit/data/*/*.json"))):
        assert process.poll() is None
        time.sleep(0.01)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.kill()
    process.wait()
    assert psutil.wait_procs(children, timeout=20)[1] == []
    assert not (home / "killed").exists()
    times = {path: path.with_suffix(".arrow").stat().st_mtime_ns for path in finished}
    meta = prepared(home)
    assert len(list(finished[0].parent.glob("*.arrow"))) > len(finished)
    assert times == {path: path.with_suffix(".arrow").stat().st_mtime_ns for path in finished}
    shutil.rmtree(home / ".lsvit")
    assert prepared(home) == meta  # as if it had never been killed


def opened(home: Path, device: torch.device, workers: int = 0) -> Split:
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    split = Split(home / "out", "train", device, 3, SIZE, mean, std)
    if workers:  # as of a split that does not fit on the device
        split.resident, split.workers = None, workers
    return split


def assert_same(ours: Iterator[tuple], theirs: Iterator[tuple]) -> None:
    torch.testing.assert_close(list(ours), list(theirs), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of a fork beside threads
@pytest.mark.usefixtures("in_process")
def test_reading_ahead_gives_the_same_batches(home: Path) -> None:
    """With workers and without; the global generator, which dropout draws from, is left alone."""
    prepared(home)
    direct, ahead = opened(home, CPU), opened(home, CPU, workers=2)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert_same(direct.shuffled(16, 1, 2), ahead.shuffled(16, 1, 2))
    assert_same(direct.in_order(40), ahead.in_order(40))
    assert torch.equal(state, torch.get_rng_state())
    resident = opened(home, CPU)
    resident.resident = resident.load()  # as on a device that it fits on
    assert_same(direct.shuffled(16, 1, 2), resident.shuffled(16, 1, 2))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_resident_and_read_ahead_are_the_same(home: Path) -> None:
    prepared(home)
    cuda = torch.device("cuda")
    direct, resident, ahead = opened(home, CPU), opened(home, cuda), opened(home, cuda, workers=2)
    assert resident.resident
    assert not ahead.resident
    assert_same(resident.shuffled(16, 1, 2), ahead.shuffled(16, 1, 2))
    batches = zip(direct.in_order(40), resident.in_order(40), strict=True)
    for (_, images, labels), (_, on_device, equal) in batches:
        assert torch.allclose(images, on_device.cpu(), atol=1e-6)
        assert torch.equal(labels, equal.cpu())
