"""Damaged files: whatever reads one names it in one line, or computes it anew and says so; no
traceback, no other number."""

import gzip
import hashlib
import io
import itertools
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from lsvit.predict import read_image
from papers import PAPERS
from pipeline.config.load import parse
from pipeline.data.shards import Arrays, Maps, write_arrow
from pipeline.data.sources import read_idx
from pipeline.declared import checksums
from pipeline.errors import UserError
from pipeline.files import sound
from pipeline.jobs.files import WEIGHTS
from pipeline.jobs.job import DONE, Job, call
from pipeline.jobs.rows import read_rows
from pipeline.jobs.run import run
from pipeline.models.weights import read_tensors
from pipeline.report.comparison import other_ledger
from pipeline.report.results import read_arrays
from tests.conftest import ROOT, Printed, TrainJobs, refused

GREY = {
    "input_size": (1, 28, 28),
    "mean": (0.5,),
    "std": (0.5,),
    "crop_pct": 1.0,
    "crop_mode": "center",
    "interpolation": "bilinear",
}


def png(size: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(size).integers(0, 256, (size, size), np.uint8)).save(
        file, "PNG"
    )
    return file.getvalue()


def table(seed: int) -> bytes:
    return (
        "variant,seed,accuracy\n" + "".join(f"v{seed},{i},{0.5 + i / 100}\n" for i in range(20))
    ).encode()


def checkpoint(seed: int) -> bytes:
    file = io.BytesIO()
    torch.save(
        {
            "model": {"w": torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))},
            "history": [{"epoch": seed}],
        },
        file,
    )
    return file.getvalue()


def tensors(folder: Path, seed: int) -> bytes:
    save_file(
        {"w": torch.randn(16, 16, generator=torch.Generator().manual_seed(seed))}, folder / "made"
    )
    return (folder / "made").read_bytes()


def idx(seed: int) -> bytes:
    content = (
        bytes.fromhex("00000801")
        + (200).to_bytes(4, "big")
        + np.random.default_rng(seed).bytes(200)
    )
    return gzip.compress(content, mtime=0)


IDX_SHA256 = hashlib.sha256(gzip.decompress(idx(0))).hexdigest()


def as_json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()


def goes_on(path: Path) -> Any:
    """What a job would go on from: None is to compute again."""
    return torch.load(path, weights_only=True)["model"]["w"].tolist() if sound(path) else None


def npz(folder: Path, seed: int) -> bytes:
    np.savez(folder / "made.npz", plane=np.random.default_rng(seed).random((8, 2)))
    return (folder / "made.npz").read_bytes()


def of_claims(path: Path) -> Any:
    return other_ledger(Path("none"), path)


# Name of the file, its content by number, and what reads it.
READERS: dict[str, tuple[str, Callable[[Path, int], bytes], Callable[[Path], Any]]] = {
    "params": (
        "params.yaml",
        lambda _, n: (ROOT / "params.yaml").read_bytes(),
        lambda path: parse(path, papers=PAPERS).model_dump(),
    ),
    "lock": (
        "dvc.lock",
        lambda _, n: (ROOT / "dvc.lock").read_bytes(),
        lambda path: checksums("finetune"),
    ),
    "rows": ("rows.csv", lambda _, n: table(n), lambda path: read_rows(path).to_dict()),
    "ledger": (
        "claims.json",
        lambda _, n: as_json({"claims": [], "dataset": "d", "model": f"m{n}"}),
        of_claims,
    ),
    "weights": ("weights.safetensors", tensors, lambda path: read_tensors(path)["w"].tolist()),
    "checkpoint": ("checkpoint.pt", lambda _, n: checkpoint(n), goes_on),
    "arrays": ("ls_seed_0.npz", npz, lambda path: read_arrays(path)["plane"].tolist()),
    "image": ("a.png", lambda _, n: png(28 + n), lambda path: read_image(path, GREY).tolist()),
    "images": (
        "train-labels-idx1-ubyte.gz",
        lambda _, n: idx(n),
        lambda path: read_idx(path, IDX_SHA256).tolist(),
    ),
}
# Without a checksum of their own, as are weights and arrow files: DVC has those of outs/.
UNSEEN = ("rows", "ledger", "params", "lock", "weights", "arrow")
Damage = Callable[[Path, bytes, bytes, random.Random], None]


def cut(part: float) -> Damage:
    def damage(path: Path, content: bytes, other: bytes, rng: random.Random) -> None:
        path.write_bytes(content[: int(part * len(content))])

    return damage


def flip(path: Path, content: bytes, other: bytes, rng: random.Random) -> None:
    flipped = bytearray(content)
    flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    path.write_bytes(flipped)


def to_folder(path: Path, content: bytes, other: bytes, rng: random.Random) -> None:
    path.mkdir()


def to_itself(path: Path, content: bytes, other: bytes, rng: random.Random) -> None:
    path.symlink_to(path)


def zeros(path: Path, content: bytes, other: bytes, rng: random.Random) -> None:
    with path.open("wb") as file:
        file.truncate(2 << 30)


DAMAGES: dict[str, Damage] = {
    **{f"cut at {part}": cut(part) for part in (0.02, 0.25, 0.5, 0.9)},
    **{f"flip {i}": flip for i in range(8)},
    "emptied": lambda path, *_: path.write_bytes(b"") and None,
    "replaced by text": lambda path, *_: path.write_text("hello") and None,
    "folder": to_folder,
    "link to itself": to_itself,
    "zeros": zeros,
}


def prepared_arrow(folder: Path, number: int) -> bytes:
    labels = np.arange(4) + number
    write_arrow(folder / "made", (8, 8), [Arrays(np.full((4, 8, 8), number, np.uint8), labels)])
    return (folder / "made").read_bytes()


READERS["arrow"] = (
    "train.arrow",
    prepared_arrow,
    lambda path: Maps([path])[np.arange(4)][1].tolist(),
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


CASES = [pytest.param(*case, id="-".join(case)) for case in itertools.product(READERS, DAMAGES)]


@pytest.mark.parametrize(("reader", "damage"), CASES)
def test_a_damaged_file_is_named_or_not_used(here: Path, reader: str, damage: str) -> None:
    name, make, read = READERS[reader]
    content, other = make(here, 0), make(here, 1)
    path = Path(name)
    path.write_bytes(content)
    whole = read(path)
    assert whole is not None
    path.unlink()
    DAMAGES[damage](path, content, other, random.Random(f"{reader} {damage}"))
    try:
        found = read(path)
    except (UserError, ValueError) as error:
        said = str(error)
        assert name in said
        assert "\n" not in said or reader == "params"  # there a line a mistake
        return
    untouched = found is None or found == whole
    assert untouched or (reader in UNSEEN and damage.startswith("flip")), (damage, found)


@pytest.fixture
def finished(train_jobs: TrainJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job of three epochs, marked as finished over what could be its files."""
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    (job,) = train_jobs(0)
    job.begin()
    (job.folder / WEIGHTS).write_bytes(tensors(tmp_path, 0))
    (job.folder / "history.json").write_bytes(as_json([{"epoch": 1}]))
    job.finish()
    return job


@pytest.mark.parametrize(
    "damage", [name for name in DAMAGES if name != "zeros"]
)  # of which a sum takes seconds
def test_a_finished_job_is_checked(finished: Job, damage: str, tmp_path: Path) -> None:
    """Also where a changed bit makes other weights, which nothing else would notice."""
    assert finished.discard_damaged() == []
    path = finished.folder / WEIGHTS
    content = path.read_bytes()
    path.unlink()
    DAMAGES[damage](path, content, tensors(tmp_path, 1), random.Random(damage))
    assert finished.discard_damaged() == [WEIGHTS]
    assert not finished.done


@pytest.mark.slow
def test_a_damaged_job_is_run_again_and_it_is_said(finished: Job, printed: Printed) -> None:
    (finished.folder / WEIGHTS).write_bytes(b"")
    run([finished], "cpu")
    folder = f".lsvit/jobs/train/{finished.folder.name}"
    line = f"test seed 0: {WEIGHTS} in {folder} damaged since it finished"
    assert line in printed()
    assert finished.done
    assert finished.discard_damaged() == []
    assert len(read_tensors(finished.folder / WEIGHTS)) > 1


@pytest.mark.parametrize("mended", [True, False])
def test_another_run_finds_the_same_damage_first(
    finished: Job, monkeypatch: pytest.MonkeyPatch, mended: bool
) -> None:
    """It has mended the job, or has begun to, when this run gets the lock: nothing is removed."""
    content = (finished.folder / WEIGHTS).read_bytes()

    @contextmanager
    def locked(job: Job) -> Iterator[None]:
        if mended:
            (job.folder / WEIGHTS).write_bytes(content)
        else:
            (job.folder / DONE).unlink()
        yield

    (finished.folder / WEIGHTS).write_bytes(b"")
    monkeypatch.setattr(Job, "locked", locked)
    assert finished.discard_damaged() == []
    assert finished.done == mended
    assert (finished.folder / "history.json").exists()


@pytest.mark.parametrize(
    "damage", ["cut at 0.5", "flip 0", "emptied", "folder", "link to itself", "zeros"]
)
def test_a_damaged_checkpoint_is_left_out_and_it_is_said(
    finished: Job, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = finished.folder / "checkpoint.pt"
    said: list[dict[str, Any]] = []
    at_start: list[bool] = []
    monkeypatch.setattr(
        "pipeline.training.loop.train", lambda config, folder, **_: at_start.append(sound(path))
    )
    path.write_bytes(checkpoint(0))
    call(finished, said.append)
    assert (at_start, said) == ([True], [])
    path.unlink()
    DAMAGES[damage](path, checkpoint(0), checkpoint(1), random.Random(damage))
    call(finished, said.append)
    assert not path.exists()
    assert said == [{"text": "checkpoint.pt is damaged: what it had is computed again"}]


def test_conflict_markers_in_dvc_lock_name_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dvc repro` reads the file first, and `git checkout dvc.lock` refuses it within a merge."""
    monkeypatch.chdir(tmp_path)
    Path("dvc.lock").write_text("stages:\n<<<<<<< HEAD\n  a: {}\n=======\n>>>>>>> other\n")
    with refused("dvc.lock: cannot be read .*; `git checkout HEAD dvc.lock` brings it back$"):
        checksums("a")
