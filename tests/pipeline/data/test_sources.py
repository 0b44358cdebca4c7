"""Readers of every source, on small files in the real formats, whole and damaged."""

import hashlib
import io
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torchvision.datasets
from PIL import Image
from scipy.io import savemat

from pipeline.config.datasets import DatasetPreset
from pipeline.data import imagefiles, sources
from pipeline.data.imagefiles import DEVKIT, IMAGENET_TARS, Items, list_image_folder, list_imagenet
from pipeline.data.shards import Arrays
from pipeline.data.sources import find, read_cifar, unpickle
from pipeline.errors import UserError

NOWHERE = Path("none")


# ---- CIFAR --------------------------------------------------------------------------------------------------------------


PythonPickler: Any = pickle._Pickler  # type: ignore[attr-defined]


class Python2Pickler(PythonPickler):
    """Protocol 2 with byte strings as Python 2 wrote them."""

    dispatch: ClassVar[dict] = dict(PythonPickler.dispatch)

    def save_str(self, value: bytes) -> None:
        self.write(
            b"U" + bytes([len(value)]) + value
            if len(value) < 256
            else b"T" + len(value).to_bytes(4, "little") + value
        )
        self.memoize(value)

    dispatch[bytes] = save_str


def python2(value: Any) -> bytes:
    """As Python 2 and its numpy pickled it."""
    file = io.BytesIO()
    Python2Pickler(file, 2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


class Cifar:
    """A small CIFAR in the official format, its checksums put in place of the official ones."""

    def __init__(self, source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source, self.folder, self.monkeypatch = source, folder, monkeypatch
        self.official: Any = getattr(torchvision.datasets, source.upper())
        self.key = b"fine_labels" if source == "cifar100" else b"labels"
        rng, self.files = np.random.default_rng(0), {}
        for name, _ in [*self.official.train_list, *self.official.test_list]:
            pixels, labels = (
                rng.integers(0, 256, (12, 3072), dtype=np.uint8),
                rng.integers(0, 10, 12).tolist(),
            )
            self.files[name] = {
                b"data": pixels,
                self.key: labels,
                b"coarse_labels": [0] * 12,
                b"filenames": [b"a.png"] * 12,
            }
        self.files[self.official.meta["filename"]] = {
            self.official.meta["key"].encode(): [b"class_%d" % i for i in range(10)]
        }
        self.folder.mkdir()
        self.write()

    @property
    def archive(self) -> Path:
        return self.folder / self.official.filename

    def write(self, replaced: dict[str, bytes | None] | None = None) -> None:
        """Write archive and checksums, some files replaced or left out."""
        contents: dict[str, bytes | None] = {
            name: python2(content) for name, content in self.files.items()
        }
        contents |= replaced or {}
        with tarfile.open(self.archive, "w:gz") as tar:
            for name, content in contents.items():
                if content is not None:
                    member = tarfile.TarInfo(f"{self.official.base_folder}/{name}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        md5s = {name: hashlib.md5(content or b"").hexdigest() for name, content in contents.items()}
        for part in ("train_list", "test_list"):
            self.monkeypatch.setattr(
                self.official,
                part,
                [[name, md5s[name]] for name, _ in getattr(self.official, part)],
            )
        meta = self.official.meta
        self.monkeypatch.setattr(self.official, "meta", meta | {"md5": md5s[meta["filename"]]})
        self.accept()

    def accept(self) -> None:
        """The archive as it is now counts as the official one."""
        self.monkeypatch.setattr(
            self.official, "tgz_md5", hashlib.md5(self.archive.read_bytes()).hexdigest()
        )

    def change(self, **keys: Any) -> None:
        """Other values in the first training file."""
        name = self.official.train_list[0][0]
        self.write(
            {name: python2(self.files[name] | {key.encode(): value for key, value in keys.items()})}
        )


@pytest.fixture(params=["cifar10", "cifar100"])
def cifar(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cifar:
    return Cifar(request.param, tmp_path / "cifar", monkeypatch)


@pytest.mark.filterwarnings(
    "ignore:Python 3.14 will, by default, filter:DeprecationWarning"
)  # torchvision's, on Python 3.12
def test_cifar_is_what_torchvision_reads(cifar: Cifar, tmp_path: Path) -> None:
    """From the archive, unextracted, and from the folder: the pixels, labels and classes of torchvision's own class."""
    from_archive = find(cifar.source, str(cifar.folder), NOWHERE)
    assert not (cifar.folder / cifar.official.base_folder).exists()
    shutil.copytree(cifar.folder, tmp_path / "theirs")
    for train, split in ((True, "train"), (False, "validation")):
        theirs = cifar.official(tmp_path / "theirs", train=train, download=train)
        ours = from_archive.splits[split]
        assert isinstance(ours, Arrays)
        assert np.array_equal(ours.images, theirs.data)
        assert ours.labels.tolist() == theirs.targets
        assert from_archive.classes == theirs.classes
    (tmp_path / "theirs" / cifar.official.filename).unlink()
    from_folder = find(cifar.source, str(tmp_path / "theirs"), NOWHERE)
    ours, same = from_folder.splits["train"], from_archive.splits["train"]
    assert isinstance(ours, Arrays)
    assert isinstance(same, Arrays)
    assert np.array_equal(ours.images, same.images)
    assert np.array_equal(ours.labels, same.labels)
    batch = tmp_path / "theirs" / cifar.official.base_folder / cifar.official.test_list[0][0]
    batch.write_bytes(batch.read_bytes() + b"x")
    with pytest.raises(UserError, match=rf"^{batch}: its md5 is \w+, the official file's is \w+"):
        find(cifar.source, str(tmp_path / "theirs"), NOWHERE)


def _truncate(cifar: Cifar) -> None:
    cifar.archive.write_bytes(cifar.archive.read_bytes()[:-3000])
    cifar.accept()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda cifar: cifar.archive.unlink(), "python.tar.gz: missing"),
        (
            lambda cifar: cifar.archive.write_bytes(b"hello"),
            "its md5 is 5d41402abc4b2a76b9719d911017c592",
        ),
        (_truncate, "truncated or not a .tar.gz"),
        (
            lambda cifar: cifar.write({cifar.official.test_list[0][0]: None}),
            "incomplete: .*test.* not found",
        ),
        (
            lambda cifar: cifar.write({cifar.official.test_list[0][0]: b"\x80\x02hello"}),
            r"test\w*: not a file of CIFAR",
        ),
        (
            lambda cifar: cifar.write({cifar.official.test_list[0][0]: b""}),
            r"test\w*: not a file of CIFAR",
        ),
        (
            lambda cifar: cifar.write({cifar.official.test_list[0][0]: python2([1])}),
            "found list, accepted: a mapping",
        ),
        (
            lambda cifar: cifar.write({cifar.official.meta["filename"]: python2({})}),
            r"meta: no list \w*label_names",
        ),
        (
            lambda cifar: cifar.change(data=np.zeros((12, 3071), np.uint8)),
            r"data: found uint8 \(12, 3071\), accepted: uint8",
        ),
        (lambda cifar: cifar.change(data=np.zeros((12, 3072), np.int32)), r"data: found int32"),
        (lambda cifar: cifar.change(data=None), r"data: found NoneType"),
        (
            lambda cifar: cifar.change(**{cifar.key.decode(): [0] * 11}),
            "labels: accepted: a list of 12",
        ),
        (
            lambda cifar: cifar.change(**{cifar.key.decode(): [0] * 11 + [10]}),
            "labels: found 10, accepted: 0 to 9",
        ),
        (
            lambda cifar: cifar.change(**{cifar.key.decode(): [0] * 11 + [-1]}),
            "labels: found -1, accepted: 0 to 9",
        ),
    ],
)
def test_damaged_cifar_is_named(cifar: Cifar, damage: Callable[[Cifar], object], said: str) -> None:
    damage(cifar)
    with pytest.raises(UserError, match=said) as error:
        read_cifar(cifar.source, cifar.folder)
    assert str(error.value).startswith(str(cifar.archive))
    assert "\n" not in str(error.value)


class Evil:
    """Pickles as a call."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    "call",
    [
        (os.system, "touch {}"),
        (eval, "open({!r}, 'w')"),
        (exec, "open({!r}, 'w')"),
        (getattr, Evil(__import__, "os"), "system"),
        (getattr, Evil(getattr, np.ndarray, "tofile"), "__call__"),
        (np.load, "{}"),
        (np.fromfile, "{}"),
        (np.memmap, "{}", "uint8", "w+", 0, (1,)),
    ],
    ids=lambda call: call[0].__name__,
)
def test_a_malicious_pickle_is_refused_and_runs_nothing(
    call: tuple, protocol: int, tmp_path: Path
) -> None:
    mark = str(tmp_path / "ran")
    pickled = pickle.dumps(
        {b"data": Evil(*(part.format(mark) if isinstance(part, str) else part for part in call))},
        protocol,
    )
    with pytest.raises(
        UserError, match=r"^batch: not a file of CIFAR \(it names [\w.]+, accepted: numpy arrays"
    ):
        unpickle(pickled, "batch")
    assert not Path(mark).exists()


@pytest.mark.parametrize(
    "name",
    [
        "numpy\nndarray.__class__",
        "numpy\nlib.npyio",
        "numpy.core.multiarray\nscalar",
        "builtins\ngetattr",
    ],
)
def test_names_beside_the_allowed_ones_are_refused(name: str) -> None:
    module, attribute = (part.encode() for part in name.split("\n"))
    dotted = (
        b"\x80\x04\x8c"
        + bytes([len(module)])
        + module
        + b"\x8c"
        + bytes([len(attribute)])
        + attribute
        + b"\x93."
    )
    for content in (b"c" + name.encode() + b"\n.", dotted):
        with pytest.raises(UserError, match="it names"):
            unpickle(content, "batch")


def test_cifar_that_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a folder the archive is taken from the downloads, or downloaded there."""
    monkeypatch.setattr(sources, "DOWNLOADS", tmp_path / "downloads")
    kept = Cifar("cifar10", tmp_path / "downloads", monkeypatch)
    assert find("cifar10", None, NOWHERE).classes[0] == "class_0"
    kept.archive.unlink()

    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("torchvision.datasets.utils.download_url", offline)
    with pytest.raises(
        UserError,
        match=r"cifar10: no cifar-10-python.tar.gz in .*failed \(no network\).* datasets.cifar10.folder",
    ):
        find("cifar10", None, NOWHERE)


# ---- image folders ------------------------------------------------------------------------------------------------------


def write_images(
    folder: Path, counts: dict[str, int], suffix: str = ".JPEG", seed: int = 0
) -> None:
    """`folder`/<name>/: so many random images of various sizes."""
    rng = np.random.default_rng(seed)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 256, (*rng.integers(20, 60, 2), 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{name}_{i}{suffix}")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes, five images to train on and three to validate on."""
    write_images(tmp_path / "images" / "train", {"cat": 3, "dog": 2})
    write_images(tmp_path / "images" / "val", {"cat": 1, "dog": 2}, seed=1)
    return tmp_path / "images"


def test_image_folder(
    images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Classes in sorted order, images below subfolders too; hidden files are ignored, others named; a relative path begins at the root."""
    (images / "train" / "cat" / "more").mkdir()
    shutil.move(
        images / "train" / "cat" / "cat_0.JPEG", images / "train" / "cat" / "more" / "cat.PNG"
    )
    (images / "train" / "cat" / ".hidden.jpg").touch()
    (images / "train" / "dog" / "notes.txt").touch()
    (images / "train" / "README").touch()
    monkeypatch.setenv("DVC_ROOT", str(images.parent))
    found = find("image_folder", "images", NOWHERE)
    train = found.splits["train"]
    assert isinstance(train, Items)
    assert found.classes == ["cat", "dog"]
    assert [str(train.path(i).relative_to(images / "train")) for i in range(5)] == [
        "cat/cat_1.JPEG",
        "cat/cat_2.JPEG",
        "cat/more/cat.PNG",
        "dog/dog_0.JPEG",
        "dog/dog_1.JPEG",
    ]
    assert train.labels.tolist() == [0, 0, 0, 1, 1]
    assert found.splits["validation"].labels.tolist() == [0, 1, 1]
    assert train.read(3) == (images / "train" / "dog" / "dog_0.JPEG").read_bytes()
    assert (
        f"{images / 'train'}: 1 other files ignored: {images}/train/dog/notes.txt\n"
        in capsys.readouterr().out
    )


def _rename(source: str, target: str) -> Callable[[Path], object]:
    return lambda images: (images / source).rename(images / target)


def _empty_class(images: Path) -> None:
    (images / "train" / "bird").mkdir()


def _no_classes(images: Path) -> None:
    shutil.rmtree(images / "val")
    write_images(images, {"val": 1})


@pytest.mark.parametrize("name", ["validation", "test"])
def test_other_names_of_the_validation_folder(images: Path, name: str) -> None:
    _rename("val", name)(images)
    assert list_image_folder(images)[0]["validation"].root.name == name


@pytest.mark.parametrize(
    ("damage", "named", "said"),
    [
        (shutil.rmtree, "train", "no such folder, accepted: .*/train/<class>/<image> and"),
        (
            _rename("train", "cats"),
            "train",
            "no such folder, accepted: .*/train/<class>/<image> and",
        ),
        (_rename("val", "vali"), "val", r"no such folder, accepted: .*\(or validation, or test\)"),
        (
            _rename("val/dog", "val/wolf"),
            "val/wolf",
            "a class that the training images do not have; they have 2",
        ),
        (_empty_class, "train/bird", "found no images in it, accepted: .*.jpg"),
        (_rename("val/cat/cat_0.JPEG", "val/cat/cat_0.raw"), "val/cat", "found no images in it"),
        (_no_classes, "val", "accepted: a folder a class"),
    ],
)
def test_wrong_image_folder_is_named(
    images: Path, damage: Callable[[Path], object], named: str, said: str
) -> None:
    damage(images)
    with pytest.raises(UserError, match=said) as error:
        list_image_folder(images)
    assert str(error.value).startswith(f"{images / named}: ")
    assert "\n" not in str(error.value)


def test_a_folder_is_needed() -> None:
    for source in ("imagenet", "image_folder"):
        with pytest.raises(ValueError, match=r"folder\s+null"):
            DatasetPreset(source=source)
    assert DatasetPreset(source="image_folder", folder="images").sizes is None
    assert DatasetPreset(
        source="image_folder", folder="images", train=10, validation=5, heldout=2
    ).sizes == (8, 5, 2)


# ---- ImageNet -----------------------------------------------------------------------------------------------------------

SYNSETS = ["n01440764", "n01443537", "n01484850"]
TRUTH = [3, 1, 2, 3]  # ILSVRC's own numbers of the validation images' classes
OWN_NUMBER = {"n01440764": 2, "n01443537": 3, "n01484850": 1}


def write_tar(path: Path | io.BytesIO, contents: dict[str, bytes], mode: str = "w") -> None:
    with tarfile.open(
        path if isinstance(path, Path) else None,
        mode,
        path if isinstance(path, io.BytesIO) else None,
    ) as tar:  # type: ignore[call-overload]
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def write_devkit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """meta.mat with a node that has children besides, as in the official one, and the ground truth."""
    kinds = [
        ("ILSVRC2012_ID", "i4"),
        ("WNID", "O"),
        ("words", "O"),
        ("gloss", "O"),
        ("num_children", "i4"),
        ("children", "O"),
    ]
    rows: list[tuple] = [(OWN_NUMBER[s], s, f"{s}, fish", "a fish", 0, []) for s in SYNSETS] + [
        (4, "n00001740", "entity", "all", 3, [1, 2, 3])
    ]
    meta = io.BytesIO()
    savemat(meta, {"synsets": np.array(rows, kinds).reshape(-1, 1)})
    truth = "".join(f"{number}\n" for number in TRUTH).encode()
    folder = f"{DEVKIT}/data"
    write_tar(
        path,
        {
            f"{folder}/meta.mat": meta.getvalue(),
            f"{folder}/ILSVRC2012_validation_ground_truth.txt": truth,
        },
        "w:gz",
    )
    known = torchvision.datasets.imagenet.ARCHIVE_META
    monkeypatch.setitem(
        known, "devkit", (known["devkit"][0], hashlib.md5(path.read_bytes()).hexdigest())
    )


@pytest.fixture
def imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same small ImageNet in folders, `folders/`, and in the official tar files, `tars/`."""
    monkeypatch.setattr(imagefiles, "IMAGENET_CLASSES", 3)
    monkeypatch.setattr(imagefiles, "IMAGENET_IMAGES", {"train": 6, "validation": 4})
    train, tars = tmp_path / "folders" / "train", tmp_path / "tars"
    write_images(train, {synset: count for count, synset in enumerate(SYNSETS, 1)})
    write_images(tmp_path / "flat", {"val": 4}, seed=1)
    tars.mkdir()
    outer = {}
    for synset in reversed(SYNSETS):
        inner = io.BytesIO()
        write_tar(
            inner, {path.name: path.read_bytes() for path in sorted((train / synset).iterdir())}
        )
        outer[f"{synset}.tar"] = inner.getvalue()
    write_tar(tars / IMAGENET_TARS["train"], outer)
    validation = {}
    synset_of = {number: synset for synset, number in OWN_NUMBER.items()}
    for i, (number, path) in enumerate(
        zip(TRUTH, sorted((tmp_path / "flat" / "val").iterdir()), strict=True), 1
    ):
        name = f"ILSVRC2012_val_{i:08d}.JPEG"
        validation[name] = path.read_bytes()
        target = tmp_path / "folders" / "val" / synset_of[number]
        target.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target / name)
    write_tar(
        tars / IMAGENET_TARS["validation"], dict(reversed(validation.items()))
    )  # their order in the tar does not count
    write_devkit(tars / f"{DEVKIT}.tar.gz", monkeypatch)
    return tmp_path


def contents(items: Items) -> set[tuple[str, int, bytes]]:
    return {
        (items.path(i).name, int(items.labels[i]), items.read(i)) for i in range(len(items.table))
    }


def test_imagenet_in_tar_files_is_imagenet_in_folders(imagenet: Path) -> None:
    """The bytes read from nested tar files are the folder's, with the same labels; nothing is extracted."""
    in_folders, classes = list_imagenet(imagenet / "folders")
    in_tars, same = list_imagenet(imagenet / "tars")
    assert classes == same == SYNSETS
    assert sorted(path.name for path in (imagenet / "tars").iterdir()) == sorted(
        [*IMAGENET_TARS.values(), f"{DEVKIT}.tar.gz"]
    )
    for split in ("train", "validation"):
        assert contents(in_folders[split]) == contents(in_tars[split])
    assert str(in_tars["train"].path(0)).endswith(
        "ILSVRC2012_img_train.tar/n01440764/n01440764_0.JPEG"
    )


def _cut(name: str) -> Callable[[Path], object]:
    return lambda tars: (tars / name).write_bytes((tars / name).read_bytes()[:-12_000])


@pytest.mark.parametrize(
    ("damage", "named", "said"),
    [
        (
            lambda tars: (tars / IMAGENET_TARS["validation"]).unlink(),
            IMAGENET_TARS["validation"],
            "missing, truncated",
        ),
        (_cut(IMAGENET_TARS["train"]), IMAGENET_TARS["train"], "truncated or not a tar file"),
        (
            lambda tars: (tars / IMAGENET_TARS["train"]).write_bytes(b"x" * 5000),
            IMAGENET_TARS["train"],
            "truncated or not a tar file",
        ),
        (
            lambda tars: write_tar(tars / IMAGENET_TARS["validation"], {"a.JPEG": b"a"}),
            IMAGENET_TARS["validation"],
            "found 1 images",
        ),
        (
            lambda tars: write_tar(tars / IMAGENET_TARS["train"], {}),
            IMAGENET_TARS["train"],
            "class n01440764 is missing",
        ),
        (lambda tars: (tars / f"{DEVKIT}.tar.gz").unlink(), f"{DEVKIT}.tar.gz", "missing"),
        (
            lambda tars: (tars / f"{DEVKIT}.tar.gz").write_bytes(b"x"),
            f"{DEVKIT}.tar.gz",
            "its md5 is",
        ),
        (
            lambda tars: (tars / IMAGENET_TARS["train"]).unlink(),
            "",
            r"found no ImageNet there .*, accepted: train/<synset>/",
        ),
    ],
)
def test_damaged_imagenet_is_named(
    imagenet: Path, damage: Callable[[Path], object], named: str, said: str
) -> None:
    damage(imagenet / "tars")
    with pytest.raises(UserError, match=said) as error:
        list_imagenet(imagenet / "tars")
    assert str(error.value).startswith(f"{imagenet / 'tars' / named}: ")
    assert "\n" not in str(error.value)


def test_incomplete_imagenet_is_refused(imagenet: Path) -> None:
    next((imagenet / "folders" / "train" / SYNSETS[1]).iterdir()).unlink()
    with pytest.raises(UserError, match=r"folders/train: found 5 images, accepted: 6"):
        list_imagenet(imagenet / "folders")
    for split in ("train", "val"):
        shutil.rmtree(imagenet / "folders" / split / SYNSETS[2])
    with pytest.raises(UserError, match=r"folders/train: found 2 classes, accepted: 3"):
        list_imagenet(imagenet / "folders")
