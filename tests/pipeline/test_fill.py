"""What `lsvit fill` trains, and in which order; that it finds what stages made, tests/test_pipeline.py shows."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from papers import PAPERS
from papers.exits.section import Exits
from pipeline import fill
from pipeline.config.effective import files
from pipeline.config.params import Params
from pipeline.cost.work import Stage, Work
from pipeline.errors import UserError
from pipeline.jobs.files import DATA, read_meta
from pipeline.jobs.job import Job
from pipeline.training.judging import judging_loss
from tests.conftest import ROOT, write_raw


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell's values are checked, which takes a second, and has its own tests."""
    monkeypatch.setattr(fill, "check", lambda params: None)


@pytest.mark.usefixtures("unchecked")
def test_choices_are_cells() -> None:
    found = fill.grid(["scale=smoke,minutes", "dataset=fashion_mnist_tiny", "seeds=[0,1]"], PAPERS)
    assert {name: params.scale for name, params in found.items()} == {
        "scale=smoke": "smoke",
        "scale=minutes": "minutes",
    }
    assert {(params.dataset, *params.seeds) for params in found.values()} == {
        ("fashion_mnist_tiny", 0, 1)
    }
    assert list(fill.grid([], PAPERS)) == [""]


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("model=vit_pico,vit_pcio", r"model: found 'vit_pcio'"),
        ("model=glob(vit*)", r"^-S: found model=glob\(vit\*\), accepted: KEY=VALUE"),
        ("model=[vit", r"^-S: found model=\[vit, accepted: KEY=VALUE"),
        ("engine=local,ray", "^-S: engine: found several, accepted: one for all cells"),
    ],
)
def test_wrong_choices_are_one_line(override: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        fill.grid([override], PAPERS)
    assert "\n" not in str(caught.value)


def test_a_wrong_folder_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"params\.yaml: not found"), fill.prepared([], PAPERS):
        pass
    assert not list(tmp_path.iterdir())


SCRIPT = """
import time
from pipeline import fill

fill.grid, fill.images = lambda overrides: {"": None}, lambda params, place: (print("there", flush=True), time.sleep(600))
with fill.prepared([], PAPERS):
    pass
"""


@pytest.mark.slow
def test_what_was_prepared_is_removed_where_it_is_terminated(tmp_path: Path) -> None:
    """As `kill` ends it: by the signal, as its parent sees, but in order."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DVC_ROOT": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"there\n"
        assert len(list(tmp_path.glob(".lsvit/fill-*"))) == 1
        process.send_signal(signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM
    assert not list(tmp_path.glob(".lsvit/fill-*"))


def test_every_training_has_its_threads(params: Params) -> None:
    """Those of papers too, which take more than the variants' here."""
    training = params.smoothing.model_copy(
        update={"training": params.smoothing.training | {"threads": 3}}
    )
    cells = [
        fill.Cell("", params, DATA),
        fill.Cell("", params.model_copy(update={"smoothing": training}), DATA),
    ]
    assert [fill.threads_of(cells[:count]) for count in (1, 2)] == [1, 3]


def test_waves_of_cells_run_as_one() -> None:
    assert list(fill.together([iter([[1], [2, 3]]), iter([[4]])])) == [[1, 4], [2, 3]]  # type: ignore[list-item]


def test_images_are_the_workspaces_or_prepared_anew(
    monkeypatch: pytest.MonkeyPatch, params: Params, tmp_path: Path
) -> None:
    write_raw(tmp_path / "raw", {"train": 96, "validation": 40})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fill, "EMBEDDED", tmp_path / "raw")
    bars = params.datasets[params.dataset].model_copy(
        update={"train": 90, "validation": 40, "heldout": 10}
    )
    params = params.model_copy(update={"datasets": params.datasets | {params.dataset: bars}})
    made = fill.images(params, tmp_path / "place")
    assert read_meta(made)["counts"] == {"train": 80, "validation": 40, "heldout": 10}
    for name, file in fill.MADE_OF.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(files(params)[name])
    shutil.copytree(made, DATA)
    monkeypatch.setattr("pipeline.data.prepare.prepare", lambda *_: pytest.fail("prepared again"))
    assert fill.images(params, tmp_path / "elsewhere") == DATA
    next(iter(fill.MADE_OF.values())).write_text("another")
    assert fill.images(params, tmp_path / "place") == made


def test_cells_are_trained_wave_by_wave(
    monkeypatch: pytest.MonkeyPatch, params: Params, prepared: Path, tmp_path: Path
) -> None:
    """Two cells, one of them with given weights. Nothing is trained: each job finds its inputs and leaves what a training would."""
    exits = {
        "strategies": ["classifier_wise", "end_to_end", "layer_wise"],
        "variants": {"ls": ["mlp"]},
        "branches": ["mlp"],
        "placements": [[1]],
        "layer_wise_branches": ["mlp"],
        "counting_strategies": [],
        "backbone_lrs": [0.1],
    }
    section = Exits.model_validate(params.exits.model_dump() | exits)
    scratch = params.model_preset.model_copy(update={"exits": {}})
    given = scratch.model_copy(update={"weights": "given.safetensors"})
    cells = [
        fill.Cell(
            name,
            params.model_copy(
                update={
                    "models": params.models | {params.model: preset},
                    "scale": "published",
                    "exits": section,
                    "seeds": [3],
                }
            ),
            prepared,
        )
        for name, preset in (("a", given), ("b", scratch))
    ]
    (tmp_path / "given.safetensors").write_text("given")
    (tmp_path / ".lsvit").mkdir()
    ran: list[list[str]] = []

    def pretended(jobs: Sequence[Job], *_: object, **__: object) -> None:
        ran.append([job.title for job in jobs])
        for job in jobs:
            assert all(path is None or path.exists() for path in job.inputs.values())
            job.folder.mkdir(parents=True)
            (job.folder / "weights.safetensors").write_text(job.key)
            (job.folder / "history.json").write_text(
                json.dumps([{judging_loss("validation", job.config.variant): 0.5}])
            )

    monkeypatch.setattr(fill, "run", pretended)
    monkeypatch.setattr(fill, "PLANS", ())
    fill.fill(cells)
    assert ran[0] == ["a: pretrain", "b: pretrain seed 3"]
    second = [
        *cells[0].params.all_variants,
        "end_to_end_none",
        "end_to_end_mlp_1",
        "layer_wise_mlp_1 step 1",
    ]
    assert ran[1] == [f"{cell}: {name} seed 3" for cell in "ab" for name in second]
    assert ran[2] == [
        f"{cell}: {name} seed 3"
        for cell in "ab"
        for name in ("exits of ls", "layer_wise_mlp_1 step 2")
    ]
    assert not any(ran[3:])
    assert not list(tmp_path.glob(".lsvit/fill-*"))


def test_what_is_expected_of_several_cells_and_workers(
    monkeypatch: pytest.MonkeyPatch, params: Params
) -> None:
    """Twice the trainings and the time; half of it on twice the workers."""
    job = [Work(True, 9000, 75, 1e5, 1e9, 1e12)]
    monkeypatch.setattr(
        "pipeline.cost.estimate.stages",
        lambda params: [Stage("finetune", "ls", [job] * 8), Stage("exits", "", [job] * 4)],
    )

    def said(cells: int, workers: int) -> tuple[int, float]:
        monkeypatch.setattr("pipeline.fill.workers_here", lambda device, threads: workers)
        monkeypatch.setattr("pipeline.cost.estimate.format_seconds", lambda seconds: f"{seconds} s")
        first, *lines = fill.expected([fill.Cell(str(i), params, DATA) for i in range(cells)])
        assert f"{workers} side by side" in first
        return int(first.split()[0]), float(
            next(line for line in lines if "2 cores" in line).split()[0]
        )

    (one, alone), (two, twice), (same, half) = said(1, 1), said(2, 1), said(2, 2)
    assert (one, two, same) == (12, 24, 24)
    assert twice == pytest.approx(2 * alone)
    assert half == pytest.approx(alone)
