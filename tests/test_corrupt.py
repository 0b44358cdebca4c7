"""Damaged files: whatever reads one names it in one line, or computes it anew and says so; no
traceback, no other number."""

import gzip
import hashlib
import os
import random
import shutil
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
from pipeline.files import LARGEST, sound, write_json
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


def table(path: Path) -> None:
    lines = [f"v,{i},{0.5 + i / 100}" for i in range(20)]
    path.write_text("\n".join(["variant,seed,accuracy", *lines, ""]))


def image(path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (28, 28), np.uint8)
    Image.fromarray(pixels).save(path)


def checkpoint(path: Path) -> None:
    torch.save({"model": {"w": random_tensor(64)}, "history": [{"epoch": 0}]}, path)


def tensors(path: Path) -> None:
    save_file({"w": random_tensor(16)}, path)


def random_tensor(side: int) -> torch.Tensor:
    return torch.randn(side, side, generator=torch.Generator().manual_seed(0))


IDX = bytes.fromhex("00000801000000c8") + np.random.default_rng(0).bytes(200)


def goes_on(path: Path) -> Any:
    """What a job would go on from: None is to compute again."""
    return torch.load(path, weights_only=True)["model"]["w"].tolist() if sound(path) else None


def arrays(path: Path) -> None:
    np.savez(path, plane=np.random.default_rng(0).random((8, 2)))


def arrow(path: Path) -> None:
    write_arrow(path, (8, 8), [Arrays(np.zeros((4, 8, 8), np.uint8), np.arange(4))])


def from_root(path: Path) -> None:
    shutil.copy(ROOT / path, path)


# Name of the file: what writes it, and what reads it.
READERS: dict[str, tuple[Callable[[Path], object], Callable[[Path], Any]]] = {
    "params.yaml": (from_root, lambda path: parse(path, papers=PAPERS).model_dump()),
    "dvc.lock": (from_root, lambda path: checksums("finetune")),
    "rows.csv": (table, lambda path: read_rows(path).to_dict()),
    "claims.json": (
        lambda path: write_json(path, {"claims": [], "dataset": "d", "model": "m"}),
        lambda path: other_ledger(Path("none"), path),
    ),
    "weights.safetensors": (tensors, lambda path: read_tensors(path)["w"].tolist()),
    "checkpoint.pt": (checkpoint, goes_on),
    "ls_seed_0.npz": (arrays, lambda path: read_arrays(path)["plane"].tolist()),
    "a.png": (image, lambda path: read_image(path, GREY).tolist()),
    "train-labels-idx1-ubyte.gz": (
        lambda path: path.write_bytes(gzip.compress(IDX, mtime=0)),
        lambda path: read_idx(path, hashlib.sha256(IDX).hexdigest()).tolist(),
    ),
    "train.arrow": (arrow, lambda path: Maps([path])[np.arange(4)][1].tolist()),
}
# A bit that changed in one of these may be seen by none: DVC has the checksums of outs/.
UNSEEN = (".csv", ".json", ".yaml", ".lock", ".safetensors", ".arrow")


def cut(part: float) -> Callable[..., object]:
    return lambda path, content, _: path.write_bytes(content[: int(part * len(content))])


def flip(path: Path, content: bytes, rng: random.Random) -> None:
    flipped = bytearray(content)
    flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    path.write_bytes(flipped)


def zeros(path: Path, *_: object) -> None:
    path.touch()
    os.truncate(path, 2 * LARGEST)


DAMAGES: dict[str, Callable[..., object]] = {
    **{f"cut at {part}": cut(part) for part in (0.02, 0.25, 0.5, 0.9)},
    **{f"flip {i}": flip for i in range(8)},
    "emptied": lambda path, *_: path.write_bytes(b""),
    "replaced by text": lambda path, *_: path.write_text("hello"),
    "folder": lambda path, *_: path.mkdir(),
    "link to itself": lambda path, *_: path.symlink_to(path),
    "zeros": zeros,
}


def damage_file(path: Path, damage: str) -> None:
    """Damage a file in the way of this name, and at a place that the names decide."""
    content = path.read_bytes()
    path.unlink()
    DAMAGES[damage](path, content, random.Random(f"{path.name} {damage}"))


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_or_not_used(here: Path, name: str, damage: str) -> None:
    write, read = READERS[name]
    path = Path(name)
    write(path)
    whole = read(path)
    assert whole is not None
    damage_file(path, damage)
    try:
        found = read(path)
    except (UserError, ValueError) as error:
        said = str(error)
        assert name in said
        assert "\n" not in said or name == "params.yaml"  # there a line a mistake
        return
    untouched = found is None or found == whole
    assert untouched or (path.suffix in UNSEEN and damage.startswith("flip")), (damage, found)


@pytest.fixture
def finished(train_jobs: TrainJobs, own_root: None) -> Job:
    """A job of three epochs, marked as finished over what could be its files."""
    (job,) = train_jobs(0)
    job.begin()
    tensors(job.folder / WEIGHTS)
    write_json(job.folder / "history.json", [{"epoch": 1}])
    job.finish()
    return job


@pytest.mark.parametrize(
    "damage", [name for name in DAMAGES if name != "zeros"]
)  # of which a sum takes seconds
def test_a_finished_job_is_checked(finished: Job, damage: str) -> None:
    """Also where a changed bit makes other weights, which nothing else would notice."""
    assert finished.discard_damaged() == []
    damage_file(finished.folder / WEIGHTS, damage)
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
    checkpoint(path)
    call(finished, said.append)
    assert (at_start, said) == ([True], [])
    damage_file(path, damage)
    call(finished, said.append)
    assert not path.exists()
    assert said == [{"text": "checkpoint.pt is damaged: what it had is computed again"}]


def test_conflict_markers_in_dvc_lock_name_what_helps(here: Path) -> None:
    """`dvc repro` reads the file first, and `git checkout dvc.lock` refuses it within a merge."""
    (here / "dvc.lock").write_text("stages:\n<<<<<<< HEAD\n  a: {}\n=======\n>>>>>>> other\n")
    with refused("dvc.lock: cannot be read .*; `git checkout HEAD dvc.lock` brings it back$"):
        checksums("a")
