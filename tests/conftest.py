"""Small models, data, configurations and trainings shared by the tests."""

import gc
import gzip
import hashlib
import multiprocessing
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from papers import PAPERS, Variant
from pipeline.config.datasets import DatasetPreset
from pipeline.config.load import load
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Finetune, Pretrain
from pipeline.config.types import Per, Section
from pipeline.data.prepare import prepare
from pipeline.data.sources import CHECKSUMS, IDX_KIND, SPLITS, idx_name
from pipeline.errors import UserError
from pipeline.files import read_json, write_json
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import WEIGHTS, read_meta
from pipeline.jobs.job import TRAIN, Job
from pipeline.report.claims import load_claims
from pipeline.tracking.runs import flatten

if TYPE_CHECKING:
    from lsvit.routed import RoutedModel

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["OMP_WAIT_POLICY"] = (
    "PASSIVE"  # threads that wait for each other leave the processor to the tests beside them
)
os.environ["CUBLAS_WORKSPACE_CONFIG"] = (
    ":4096:8"  # read once in a process: for the tests of deterministic CUDA runs
)
# As a stage does: the fork server imports torch and timm once for a process of pytest, not every
# worker of every test anew.
multiprocessing.set_forkserver_preload(["pipeline.training.loop", "timm"])
ROOT = Path(__file__).parent.parent
LONGEST = ("test_cluster.py", "test_pipeline.py")  # minutes each, most of them waiting
SIZES = {"img_size": 28, "patch_size": 14, "embed_dim": 16, "num_heads": 2}
PICO = SIZES | {"in_chans": 1, "depth": 4}
ALL_SECTIONS: list[type[Section]] = [
    Pretrain,
    Finetune,
    *(section for paper in PAPERS for section in paper.sections),
]
ALL_CLAIMS = [claim for paper in PAPERS for claim in load_claims(paper).claims]
Training = Callable[..., "RoutedModel"]
TrainJobs = Callable[..., list[Job]]
Printed = Callable[[], str]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported stays.

    The garbage collector would look through it for an eighth of all processor time.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is not marked as slow is quick.

    The longest files go first, then those with slow tests, so that none is left for the end.
    """
    for item in items:
        if not item.get_closest_marker("slow"):
            item.add_marker("quick")
    items.sort(
        key=lambda item: (item.path.name not in LONGEST, item.get_closest_marker("slow") is None)
    )


def cases_of(test: str) -> dict[str, Any]:
    """The tables of cases of a test: the YAML file of its name beside it."""
    return yaml.safe_load(Path(test).with_suffix(".yaml").read_text())


@contextmanager
def refused(
    match: str, error: type[Exception] = UserError
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Check that an error is raised within that is one line and matches."""
    with pytest.raises(error, match=match) as raised:
        yield raised
    assert "\n" not in str(raised.value)


def change_json(file: Path, changes: dict[str, Any]) -> None:
    """Give keys of a JSON file other values."""
    write_json(file, read_json(file) | changes)


def shared(job: Job) -> dict[str, Any]:
    """What a job is made with, but for what sets it apart from those that it is averaged with."""
    return {key: value for key, value in flatten(job.record()).items() if key not in job.apart}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the working one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def own_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs belong to a folder of the test's own."""
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))


@pytest.fixture
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository's folder is the working one."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """What was printed since this was called last."""
    return lambda: capsys.readouterr().out


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Models are so small that a second thread would be waited for most of the time."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def params() -> Params:
    """The repository's own params.yaml."""
    return load(ROOT / "params.yaml", papers=PAPERS)


@pytest.fixture(scope="session")
def pico() -> ModelPreset:
    """A 4-layer model of width 16."""
    return ModelPreset(timm="vit_tiny_patch16_224", kwargs=PICO, weights="scratch", init_std=0.14)


def write_idx(path: Path, array: np.ndarray) -> str:
    """Write a gzipped IDX file and return the sha256 of its content."""
    content = struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content, mtime=0))
    return hashlib.sha256(content).hexdigest()


def write_raw(folder: Path, counts: dict[str, int]) -> None:
    """Small learnable images in the original format: a bright bar whose place is the class."""
    folder.mkdir(parents=True)
    sums = []
    for number, split in enumerate(SPLITS):
        rng = np.random.default_rng(number)
        labels = rng.integers(0, 10, counts[split]).astype(np.uint8)
        images = rng.integers(0, 60, (counts[split], 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label + 2 : 2 * label + 6] = 255
        for part, array in zip(IDX_KIND, (images, labels), strict=True):
            name = idx_name(split, part)
            sums.append(f"{write_idx(folder / name, array)}  {name}\n")
    (folder / CHECKSUMS).write_text("".join(sums))


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A folder of raw files: 96 training and 40 validation images."""
    write_raw(tmp_path / "raw", {"train": 96, "validation": 40})
    return tmp_path / "raw"


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same files, prepared."""
    folder = tmp_path_factory.mktemp("data")
    write_raw(folder / "raw", {"train": 96, "validation": 40})
    prepare("bars", DatasetPreset(source="embedded"), folder / "raw", folder / "prepared")
    return folder / "prepared"


def run_fields(
    data: Path, model: ModelPreset, variant: Variant | None = None, **others: Any
) -> dict[str, Any]:
    """What the configurations of all jobs have, here on the CPU and by default of a plain model."""
    fields: dict[str, Any] = {
        "title": "test",
        "dataset": "bars",
        "model_name": "pico",
        "model": model,
        "variant": variant or Variant(route="sequential"),
        "device": "cpu",
        "data_sha256": read_meta(data)["sha256"],
        "weights_sha256": None,
    }
    return fields | others


@pytest.fixture(scope="session")
def train_config(params: Params, pico: ModelPreset, prepared: Path) -> Callable[..., TrainConfig]:
    """A factory of training configurations.

    `seed`, keys of a variant as named, and any key of `finetune`.
    """

    def make(seed: int = 0, per: Per = "batch", **options: Any) -> TrainConfig:
        keys = {key: options.pop(key) for key in Variant.model_fields.keys() & options.keys()}
        variant = Variant.model_validate({"route": "arbitrary"} | keys)
        defaults = {"batch_size": 32, "epochs": 3, "validation_batch_size": 20, "lr": 0.003}
        values = params.finetune.model_dump() | defaults | options
        fields = run_fields(prepared, pico, variant)
        return TrainConfig(**fields, seed=seed, options=Finetune(**values), per=per)

    return make


@pytest.fixture(scope="session")
def train_jobs(train_config: Callable[..., TrainConfig], prepared: Path) -> TrainJobs:
    """A factory of trainings, one for each of these seeds; other keys as `train_config` has."""

    def make(*seeds: int, data: Path = prepared, **options: Any) -> list[Job]:
        jobs = []
        for seed in seeds:
            config = train_config(seed=seed, **options)
            inputs = {"data": data, "weights": None}
            jobs.append(Job(f"test seed {seed}", TRAIN, config, inputs, config.options.epochs))
        return jobs

    return make


@pytest.fixture
def outs(here: Path, own_root: None, prepared: Path) -> Path:
    """In a repository's folder, the working one from here, what stages leave.

    Prepared images, nothing else yet.
    """
    (here / "outs").mkdir()
    (here / "outs" / "prepare_data").symlink_to(prepared)
    return here / "outs"


@pytest.fixture
def trained(outs: Path, train_config: Callable[..., TrainConfig]) -> Training:
    """A folder like the repository's.

    The factory leaves a training there, of random weights, and returns its model.
    """
    import torch

    from lsvit.weights import save_weights
    from pipeline.models.weights import build
    from tests.models import disturb

    shutil.copy(ROOT / "params.yaml", outs.parent)
    (outs / "params").mkdir()
    write_json(outs / "params" / "model.json", ["pico", "minutes", {}])

    def make(name: str = "ls", preset: ModelPreset | None = None, seed: int = 0) -> "RoutedModel":
        config = train_config(seed=seed, **cases_of(__file__)["variants"][name])
        config = config.model_copy(update={"title": name} | ({"model": preset} if preset else {}))
        folder = outs / "finetune" / name / f"seed_{seed}"
        folder.mkdir(parents=True)
        torch.manual_seed(seed)
        model = build(config.model, 10, config.variant).eval()
        disturb(model, 0.1)
        save_weights(model, folder / WEIGHTS)
        (folder / "execution.txt").write_text("a processor, fp32\n")
        write_json(folder / "config.json", Job("", "", config, {}).record())
        return model

    return make
