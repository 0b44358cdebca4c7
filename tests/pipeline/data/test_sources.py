"""Readers of every source, on small files in the real formats, whole and damaged."""

import hashlib
import io
import itertools
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torchvision.datasets
from PIL import Image
from scipy.io import savemat

from pipeline.config.datasets import DatasetPreset
from pipeline.data import imagenet as imagenet_files
from pipeline.data import sources
from pipeline.data.decode import key
from pipeline.data.imagefiles import Items, list_image_folder
from pipeline.data.imagenet import DEVKIT, TRAIN_TAR, VALIDATION_TAR, list_imagenet
from pipeline.data.prepare import choose
from pipeline.data.resize import Resize
from pipeline.data.shards import Arrays
from pipeline.data.sources import find
from tests.conftest import Printed, cases_of, refused

CASES = cases_of(__file__)

NOWHERE = Path("none")
Damage = Callable[[Path], object]


def write_tar(path: Path, contents: dict[str, bytes], mode: str = "w") -> None:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


# ---- CIFAR ---------------------------------------------------------------------------------------


@pytest.fixture(params=["cifar10", "cifar100"])
def cifar(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """torchvision's class; a small archive at `cifar/` counts as its official one."""
    official: Any = getattr(torchvision.datasets, request.param.upper())
    label_key = "fine_labels" if request.param == "cifar100" else "labels"
    rng = np.random.default_rng(0)
    contents = {}
    for part in ("train_list", "test_list"):
        files = []
        for name, _ in getattr(official, part):
            pixels = rng.integers(0, 256, (12, 3072), dtype=np.uint8)
            labels = rng.integers(0, 10, 12).tolist()
            content = pickle.dumps({"data": pixels, label_key: labels, "coarse_labels": [0] * 12})
            contents[f"{official.base_folder}/{name}"] = content
            files.append([name, hashlib.md5(content).hexdigest()])
        monkeypatch.setattr(official, part, files)
    meta = official.meta
    content = pickle.dumps({meta["key"]: [f"class_{i}" for i in range(10)]})
    contents[f"{official.base_folder}/{meta['filename']}"] = content
    monkeypatch.setattr(official, "meta", meta | {"md5": hashlib.md5(content).hexdigest()})
    (tmp_path / "cifar").mkdir()
    archive = tmp_path / "cifar" / official.filename
    write_tar(archive, contents, "w:gz")
    monkeypatch.setattr(official, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    return official


@pytest.mark.filterwarnings("ignore:Python 3.14 will, by default, filter:DeprecationWarning")
def test_cifar_is_what_torchvision_reads(cifar: Any, tmp_path: Path) -> None:
    """From the archive and from what it held, all parts and the classes."""
    source = cifar.__name__.lower()
    from_archive = find(source, str(tmp_path / "cifar"), NOWHERE)
    (tmp_path / "cifar" / cifar.filename).unlink()
    unpacked = find(source, str(tmp_path / "cifar"), NOWHERE)
    for split in ("train", "validation"):
        theirs = cifar(tmp_path / "cifar", train=split == "train")
        for ours in (from_archive.splits[split], unpacked.splits[split]):
            assert isinstance(ours, Arrays)
            assert np.array_equal(ours.images, theirs.data)
            assert ours.labels.dtype == np.uint8
            assert ours.labels.tolist() == theirs.targets
    assert from_archive.classes == unpacked.classes == theirs.classes
    for name in (cifar.test_list[0][0], cifar.meta["filename"]):
        file = tmp_path / "cifar" / cifar.base_folder / name
        whole = file.read_bytes()
        file.write_bytes(whole + b"x")
        with refused(rf"^{file}: its md5 is \w+, the official file's is \w+"):
            find(source, str(tmp_path / "cifar"), NOWHERE)
        file.write_bytes(whole)


def test_a_damaged_archive_of_cifar_is_named_and_kept(cifar: Any, tmp_path: Path) -> None:
    archive = tmp_path / "cifar" / cifar.filename
    archive.write_bytes(b"hello")
    for damage in ("its md5 is 5d41402abc4b2a76b9719d911017c592", "missing"):
        with refused(f"^{archive}: {damage}"):
            find(cifar.__name__.lower(), str(tmp_path / "cifar"), NOWHERE)
        archive.unlink(missing_ok=True)


@pytest.mark.filterwarnings("ignore:Python 3.14 will, by default, filter:DeprecationWarning")
def test_cifar_that_is_nowhere(cifar: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a folder the archive is taken from the downloads, or downloaded there."""
    source = cifar.__name__.lower()
    monkeypatch.setattr(sources, "DOWNLOADS", tmp_path / "cifar")
    assert find(source, None, NOWHERE).classes[0] == "class_0"
    shutil.rmtree(tmp_path / "cifar")
    offline = Mock(side_effect=OSError("no network"))
    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", offline)
    with refused(rf"failed \(no network\).* datasets.{source}.folder"):
        find(source, None, NOWHERE)


# ---- image folders -------------------------------------------------------------------------------


def write_images(folder: Path, counts: dict[str, int], seed: int = 0) -> None:
    """`folder`/<name>/: so many random images of various sizes."""
    rng = np.random.default_rng(seed)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 256, (*rng.integers(20, 60, 2), 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{name}_{i}.JPEG")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes, five images to train on and three to validate on."""
    write_images(tmp_path / "images" / "train", {"cat": 3, "dog": 2})
    write_images(tmp_path / "images" / "val", {"cat": 1, "dog": 2}, seed=1)
    return tmp_path / "images"


@pytest.mark.usefixtures("own_root")
def test_image_folder(images: Path) -> None:
    """A relative one begins at the repository; "test" is a name of the second split, too."""
    (images / "val").rename(images / "test")
    found = find("image_folder", "images", NOWHERE)
    train = found.splits["train"]
    assert isinstance(train, Items)
    assert found.classes == ["cat", "dog"]
    assert train.labels.tolist() == [0, 0, 0, 1, 1]
    assert found.splits["validation"].labels.tolist() == [0, 1, 1]
    assert train.read(3) == (images / "train" / "dog" / "dog_0.JPEG").read_bytes()


def rename(source: str, target: str) -> Damage:
    return lambda images: (images / source).rename(images / target)


def no_classes(images: Path) -> None:
    shutil.rmtree(images / "val")
    (images / "val").mkdir()


def no_images(images: Path) -> None:
    for file in images.glob("val/*/*"):
        file.rename(file.with_suffix(".raw"))


def two_forms(images: Path) -> None:
    write_empty(images / "train", "caf\u00e9/1.png", "cafe\u0301/1.png")


def write_empty(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_folders_are_read_as_torchvision_reads_them(images: Path, printed: Printed) -> None:
    """The same classes, files and order; links are followed. A line counts what is left out."""
    train = images / "train"
    write_empty(images / "pool", "1.JPG", "owl/2.webp", "caf\udce9/3.png")
    write_empty(train / "cat", "b/1.tif", "b-c/2.TIFF", "b/x/3.png", "caf\udce9\x1b/4.jpg")
    (train / "cow\udcff\n").symlink_to(images / "pool")  # the class is a link
    (train / "dog" / "linked").symlink_to("../cat/b")
    expected = torchvision.datasets.ImageFolder(str(train))
    for name, target in itertools.chain(*CASES["unused"].values()):
        if target:
            (train / name).symlink_to(target)
        else:
            write_empty(train, name)
    os.mkfifo(train / "cat" / "pipe.png")
    shutil.rmtree(images / "val" / "dog")
    (images / "labels.csv").touch()
    splits, classes = list_image_folder(images)
    items = splits["train"]
    found = [(str(items.path(i)), int(items.labels[i])) for i in range(len(items.table))]
    assert found == expected.samples
    assert classes == ["cat", r"cow\udcff\n", "dog"]
    said = printed()
    assert said.replace("\n", "").isprintable()
    for reason, files in CASES["unused"].items():
        assert f"{len(files)} {reason}" in said
    assert "1 no regular files (cat/pipe.png)" in said
    assert "2 beside train and val (labels.csv)" in said
    assert "no image of 2 of 3 classes" in said
    assert "2 images have a second class too" in said


def test_other_images_of_the_same_sizes_and_times_are_decoded_anew(images: Path) -> None:
    """As an archive with fixed times leaves them, unpacked over another one."""
    file = next((images / "train" / "cat").iterdir())
    file.write_bytes(b"one")
    os.utime(file, (1, 1))
    resize = Resize(8, "bilinear", 8)
    before = key(list_image_folder(images)[0], resize)
    assert key(list_image_folder(images)[0], resize) == before
    file.write_bytes(b"two")
    os.utime(file, (1, 1))
    assert key(list_image_folder(images)[0], resize) != before


def test_classes_without_an_image_to_train_on_are_counted(printed: Printed) -> None:
    arrays = Arrays(np.zeros((6, 2, 2, 1), np.uint8), np.array([0, 0, 1, 1, 2, 3]))
    splits = {"train": arrays, "validation": arrays}
    choose("birds", DatasetPreset(source="embedded", train=6), splits)
    assert not printed()
    choose("birds", DatasetPreset(source="embedded", train=4), splits)
    assert "leave 2 of 4 classes no image to train on" in printed()


def test_a_class_in_another_normal_form_is_the_same_class(images: Path) -> None:
    """As a folder has it that was copied from macOS."""
    write_empty(images / "train", "caf\u00e9/1.png")
    write_empty(images / "val", "cafe\u0301/1.png")
    splits, classes = list_image_folder(images)
    assert classes == ["caf\u00e9", "cat", "dog"]
    assert (splits["validation"].labels == 0).sum() == 1


def test_validation_images_that_are_trained_on_are_told(images: Path, printed: Printed) -> None:
    """A link instead of a second folder is a common way to begin, and easily forgotten."""
    list_image_folder(images)
    assert "the images to train on" not in printed()
    shutil.rmtree(images / "val")
    (images / "val").symlink_to("train")
    list_image_folder(images)
    assert "val: the images to train on" in printed()


@pytest.mark.parametrize(
    ("damage", "file", "reason"),
    [
        (shutil.rmtree, "train", "no such folder, accepted: .*/train/<class>/<image> and"),
        (rename("val", "vali"), "val", r"no such folder, accepted: .*\(or validation, or test\)"),
        (rename("val/dog", "val/wolf"), "val/wolf", "a class that the training images do not have"),
        (
            lambda images: (images / "train" / "bird").mkdir(),
            "train",
            "no image of 1 of 3 classes: bird, accepted",
        ),
        (
            lambda images: shutil.rmtree(images / "train" / "dog"),
            "train",
            "one class, cat, accepted",
        ),
        (two_forms, "train", "two folders whose names differ by Unicode's normal form"),
        (no_images, "val", "no image of 2 of 2 classes: cat, dog, accepted"),
        (no_classes, "val", "accepted: .*/val/<class>/<image>"),
    ],
)
def test_wrong_image_folder_is_named(images: Path, damage: Damage, file: str, reason: str) -> None:
    damage(images)
    with refused(f"^{images / file}: .*{reason}"):
        list_image_folder(images)


def test_a_folder_is_needed() -> None:
    for source in ("imagenet", "image_folder"):
        with pytest.raises(ValueError, match="the folder with the images"):
            DatasetPreset(source=source)
    preset = DatasetPreset(source="image_folder", folder="images")
    assert preset.sizes is None
    sizes = {"train": 10, "validation": 5, "heldout": 2}
    assert preset.model_copy(update=sizes).sizes == (8, 5, 2)


# ---- ImageNet ------------------------------------------------------------------------------------

SYNSETS = ["n01440764", "n01443537", "n01484850"]
OWN_NUMBER = {"n01440764": 2, "n01443537": 3, "n01484850": 1}  # ILSVRC's
TRUTH = ["n01443537", "n01484850", "n01440764", "n01443537"]  # of the validation images


def write_devkit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """meta.mat with a node that has children, as the official one has, and the ground truth."""
    kinds = [("ILSVRC2012_ID", "i4"), ("WNID", "O"), ("words", "O"), ("num_children", "i4")]
    rows: list[tuple] = [(OWN_NUMBER[synset], synset, "a fish", 0) for synset in SYNSETS]
    rows.append((4, "n00001740", "entity", 3))
    meta = io.BytesIO()
    savemat(meta, {"synsets": np.array(rows, kinds).reshape(-1, 1)})
    truth = "".join(f"{OWN_NUMBER[synset]}\n" for synset in TRUTH)
    contents = {
        f"{DEVKIT}/data/meta.mat": meta.getvalue(),
        f"{DEVKIT}/data/ILSVRC2012_validation_ground_truth.txt": truth.encode(),
    }
    write_tar(path, contents, "w:gz")
    known = torchvision.datasets.imagenet.ARCHIVE_META
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setitem(known, "devkit", (known["devkit"][0], md5))


@pytest.fixture
def imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same small ImageNet in folders, `folders/`, and in the official tar files, `tars/`."""
    monkeypatch.setattr(imagenet_files, "NUM_CLASSES", 3)
    monkeypatch.setattr(imagenet_files, "TRAIN_IMAGES", 6)
    monkeypatch.setattr(imagenet_files, "VALIDATION_IMAGES", 4)
    train, tars = tmp_path / "folders" / "train", tmp_path / "tars"
    write_images(train, {synset: count for count, synset in enumerate(SYNSETS, 1)})
    tars.mkdir()
    outer = {}
    for synset in reversed(SYNSETS):
        path = tmp_path / "inner.tar"
        write_tar(path, {file.name: file.read_bytes() for file in (train / synset).iterdir()})
        outer[f"{synset}.tar"] = path.read_bytes()
    write_tar(tars / TRAIN_TAR, outer)
    validation = {}
    for i, synset in enumerate(TRUTH, 1):
        file = tmp_path / "folders" / "val" / synset / f"ILSVRC2012_val_{i:08d}.JPEG"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes([i]))  # nothing decodes it
        validation[file.name] = bytes([i])
    write_tar(tars / VALIDATION_TAR, dict(reversed(validation.items())))  # in any order
    write_devkit(tars / f"{DEVKIT}.tar.gz", monkeypatch)
    return tmp_path


def contents(items: Items) -> set[tuple[str, int, bytes]]:
    return {
        (items.path(i).name, int(items.labels[i]), items.read(i)) for i in range(len(items.table))
    }


def test_imagenet_in_tar_files_is_imagenet_in_folders(imagenet: Path) -> None:
    """Nested tar files give the folder's bytes and labels; nothing is extracted."""
    files = sorted((imagenet / "tars").iterdir())
    in_folders, classes = list_imagenet(imagenet / "folders")
    in_tars, same = list_imagenet(imagenet / "tars")
    assert classes == same == SYNSETS
    assert sorted((imagenet / "tars").iterdir()) == files
    for split in ("train", "validation"):
        assert contents(in_folders[split]) == contents(in_tars[split])
    first = in_tars["train"].path(0)
    assert first == imagenet / "tars" / TRAIN_TAR / "n01440764" / "n01440764_0.JPEG"


def keep_one_image(tars: Path, synsets: list[str]) -> None:
    image = (tars.parent / "inner.tar").read_bytes()
    write_tar(tars / TRAIN_TAR, {f"{synset}.tar": image for synset in synsets})


def cut(tars: Path) -> None:
    (tars / TRAIN_TAR).write_bytes((tars / TRAIN_TAR).read_bytes()[:-12_000])


@pytest.mark.parametrize(
    ("damage", "file", "reason"),
    [
        (lambda tars: (tars / VALIDATION_TAR).unlink(), VALIDATION_TAR, "missing, truncated"),
        (cut, TRAIN_TAR, "truncated or not a tar file"),
        (
            lambda tars: write_tar(tars / VALIDATION_TAR, {"a.JPEG": b"a"}),
            VALIDATION_TAR,
            "found 1 images, accepted: 4",
        ),
        (
            lambda tars: keep_one_image(tars, SYNSETS[:1]),
            TRAIN_TAR,
            "found 1 classes, accepted: 3",
        ),
        (lambda tars: keep_one_image(tars, SYNSETS), TRAIN_TAR, "found 3 images, accepted: 6"),
        (lambda tars: (tars / f"{DEVKIT}.tar.gz").write_bytes(b"x"), f"{DEVKIT}.tar.gz", "its md5"),
        (lambda tars: (tars / TRAIN_TAR).unlink(), "", "found no ImageNet there .*, accepted: "),
    ],
)
def test_damaged_imagenet_is_named(imagenet: Path, damage: Damage, file: str, reason: str) -> None:
    tars = imagenet / "tars"
    damage(tars)
    with refused(f"^{tars / file}: .*{reason}"):
        list_imagenet(tars)
