"""What a configuration costs: images of a real training, FLOPs and time against sums by hand."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from lsvit.routed import RoutedModel
from papers import PAPERS
from papers.exits.section import Exits
from papers.inversion.compute.plan import Plan as Inversions
from papers.questions.section import Questions
from papers.smoothing.compute.plan import Plan as Smoothings
from pipeline.config.load import overridden
from pipeline.config.paper import Work
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Finetune
from pipeline.config.variant import Variant
from pipeline.cost import (
    Hardware,
    Rates,
    announce,
    count_training,
    estimate,
    known_hardware,
    list_work,
    mean_length,
    with_counted_images,
)
from pipeline.flops import count_variant
from pipeline.jobs.configs import TrainConfig
from pipeline.training.loop import train
from stages.commands import app
from tests.conftest import ROOT, Printed, refused

COST = ROOT / "benchmarks" / "cost.json"


def hardware(workers: int) -> Hardware:
    """A machine that trains half as fast as it evaluates, and wide models ten times as fast."""
    narrow = Rates(width=16, training=5, evaluation=10)
    wide = Rates(width=768, training=50, evaluation=100)
    return Hardware(workers=workers, rates=[narrow, wide], source="a test")


def rows_of(params: Params, **known: Hardware) -> dict[str, dict[str, Any]]:
    """The rows of an estimate by stage and name."""
    estimated = estimate(params, known or {"one": hardware(1)})
    return {f"{stage} {name}".strip(): dict(row) for (stage, name), row in estimated.iterrows()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"images": 70, "epochs": 2},
        {"validation_orders": "trained"},
        {"route": {"drop": 0.5}, "epochs": 1},
    ],
)
def test_images_are_those_of_a_real_training(
    options: dict[str, Any],
    train_config: Callable[..., TrainConfig],
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = train_config(**options)
    embed = RoutedModel.embed
    images = Counter[bool]()

    def count(model: RoutedModel, batch: torch.Tensor) -> torch.Tensor:
        images[model.training] += len(batch)
        return embed(model, batch)

    monkeypatch.setattr(RoutedModel, "embed", count)
    train(config, prepared, None, tmp_path, lambda row: None)
    work = Work("test", "", 1, config.model, config.variant, config.options)
    assert count_training(work, (96, 40, 0)) == (images[True], images[False])


@pytest.fixture(scope="module")
def small(params: Params, pico: ModelPreset) -> Params:
    """Two seeds of a baseline and of LS on 90 images of a model of 4 layers, and one paper."""
    models = type(params.models[params.model])
    datasets = type(params.datasets[params.dataset])
    options = {"epochs": 2, "batch_size": 20, "images": None}
    bars = {"source": "embedded", "train": 100, "validation": 40, "heldout": 10}
    return params.model_copy(
        update={
            "papers": ["painters"],
            "dataset": "bars",
            "datasets": {"bars": datasets.model_validate(bars)},
            "model": "pico",
            "models": {"pico": models.model_validate(pico.model_dump())},
            "seeds": [0, 1],
            "variants": {"ls": Variant(route="arbitrary")},
            "pretrain": params.pretrain.model_copy(update=options | {"seeds": 1}),
            "finetune": params.finetune.model_copy(update=options | {"baseline_epochs": 1}),
            "painters": params.painters.model_copy(
                update={"variants": ["ls"], "treated": [2], "kinds": ["skip"], "images": 30}
            ),
        }
    )


def test_flops_and_time_are_sums(small: Params, pico: ModelPreset) -> None:
    """Also of a paper's passes: in one all 4 layers are run, in another 2."""
    rows = rows_of(small, one=hardware(1), two=hardware(2))
    model = count_variant(pico, 10)
    options = small.resolve(Finetune, "ls")
    trained = options.epochs * (90 // options.batch_size * options.batch_size)
    passes = options.epochs * (2 * 40 + 10) * model.whole(4)
    training = 3 * trained * model.whole(4)
    assert rows["finetune ls"]["flops"] == 2 * (training + passes)
    seconds = 2 * (training / 5 + passes / 10)
    assert rows["finetune ls"]["one"] == pytest.approx(seconds / 3600)
    assert rows["finetune ls"]["two"] == pytest.approx(seconds / 3600 / 2)
    assert rows["pretrain"]["one"] == rows["pretrain"]["two"]  # a single model
    assert rows["finetune ls"]["training_images"] == 2 * trained
    assert rows["finetune baseline"]["training_images"] < 2 * trained
    assert rows["painters"]["flops"] == 2 * 30 * (model.whole(4) + model.whole(2))
    assert rows["painters"]["evaluation_images"] == 2 * 30 * 2


def test_a_run_says_what_is_to_do_before_it_does(
    small: Params, here: Path, printed: Printed
) -> None:
    """Of a GPU no time is told."""
    (here / "benchmarks").mkdir()
    shutil.copy(COST, here / "benchmarks")
    announce(small)
    assert "finetune: 4 trainings, about " in printed()
    announce(small.model_copy(update={"device": "cuda"}))
    said = printed()
    assert "painters: 4 passes over images\n" in said
    assert "speed was never measured" in said


@pytest.mark.usefixtures("in_root")
def test_images_of_a_folder_are_counted_before_a_run(tmp_path: Path) -> None:
    """Where they are too few for a value, it is refused before anything is trained."""
    for split, count in {"train": 50, "val": 20}.items():
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(count):
                Image.new("L", (28, 28), i).save(tmp_path / split / name / f"{i}.png")
    keys = ["dataset=image_folder", f"datasets.image_folder.folder={tmp_path}"]
    keys += ["model=vit_pico", "models.vit_pico.kwargs.in_chans=3", "scale=smoke"]
    params = overridden(keys, PAPERS)
    assert with_counted_images(params).sizes == (100, 40, 0)
    for path in tmp_path.glob("val/*/1?.png"):
        path.unlink()
    for path in tmp_path.glob("val/*/[5-9].png"):
        path.unlink()
    with refused(r"analysis\.images: found 10, .* [0-9]+ was lowered to the images there are$"):
        with_counted_images(params)


def test_hours_are_at_rates_of_the_nearest_width(pico: ModelPreset) -> None:
    work = Work("test", "", 1, pico)
    hours = [hardware(1).hours(work, width, 50 * 3600, 0) for width in (8, 64, 384, 1024)]
    assert hours == [10, 10, 10, 1]


def test_every_paper_lists_its_work(params: Params) -> None:
    trainings = Counter[str]()
    for work in list_work(params, 12):
        trainings[work.stage] += work.models if work.training else 0
    assert trainings["finetune"] == len(params.seeds) * len(params.all_variants)
    assert trainings["smoothing"] == len(Smoothings(params).models())
    inversions = Inversions(params)
    families = [family for family in inversions.options.families.values() if family.timm]
    assert trainings["inversion"] == len(families) * len(inversions.seeds)
    assert trainings["questions"] == sum(params.resolve(Questions).common.values())
    measured = {stage for stage, number in trainings.items() if not number}
    assert measured == {"prune-eval", "analysis", "exits", "painters", "nodes"}


@pytest.mark.usefixtures("in_root")
def test_trainings_with_exits() -> None:
    """Later steps of the layer-wise strategy have three starts; counting is end-to-end too."""
    params = overridden(["scale=hours"], PAPERS)
    exits = params.resolve(Exits)
    works = [work for work in list_work(params, 12) if work.stage == "exits" and work.training]
    end_to_end = 1 + len(exits.placements) * len(exits.branches)
    steps = sum(1 + 3 * len(placement) for placement in exits.placements)
    layer_wise = steps * len(exits.layer_wise_branches)
    counting = len(exits.counting.lrs or exits.backbone_lrs)
    trainings = (end_to_end + layer_wise) * len(exits.backbone_lrs) + end_to_end * counting
    assert sum(work.models for work in works) == len(params.seeds) * trainings


def test_what_cannot_be_counted_is_refused(small: Params) -> None:
    treated = small.painters.model_copy(update={"treated": [3]})
    wrong = small.model_copy(update={"painters": treated})
    with refused(r"painters\.treated: found 3, accepted: at most 2"):
        rows_of(wrong)
    folder = type(small.datasets["bars"]).model_validate({"source": "image_folder", "folder": "x"})
    unknown = small.model_copy(update={"datasets": {"bars": folder}})
    with refused("its folder tells how many images"):
        rows_of(unknown)


@pytest.mark.parametrize(
    ("spec", "length"),
    [({"drop": 0.3}, 8.4), ("arbitrary", 12), ({"skip": [0, 2]}, 10), ({"order": [1, 1, 0]}, 3)],
)
def test_mean_length_of_routes(spec: Any, length: float) -> None:
    assert mean_length(spec, 12) == pytest.approx(length, rel=0.03)


@pytest.mark.usefixtures("in_root")
def test_overrides_are_those_of_dvc(params: Params) -> None:
    """Nothing else in the file changes."""
    changed = overridden(["seeds=[3]", "finetune.epochs=2", "scale=hours"], PAPERS)
    assert (changed.seeds, changed.finetune.epochs, changed.scale) == ([3], 2, "hours")
    others = {"scale", "seeds", "finetune"}
    assert changed.model_dump(exclude=others) == params.model_dump(exclude=others)
    assert overridden(["scale=null"], PAPERS) == params
    with refused(r"^-S: found nothing=1, accepted: KEY=VALUE"):
        overridden(["nothing=1"], PAPERS)
    with refused("found 'vit_nano'"):
        overridden(["model=vit_nano"], PAPERS)


@pytest.mark.slow
def test_the_command_needs_no_data_and_no_weights(here: Path) -> None:
    shutil.copy(ROOT / "params.yaml", here)
    (here / "benchmarks").mkdir()
    file = here / "benchmarks" / "cost.json"
    with refused(r"benchmarks/cost\.json: cannot be read"):
        known_hardware()
    file.write_text("{")
    with refused("cannot be read"):
        known_hardware()
    shutil.copy(COST, file)
    printed = CliRunner().invoke(app, ["cost"], catch_exceptions=False).stdout
    assert "finetune" in printed
    assert "total" in printed
    assert {path.name for path in here.iterdir()} == {"params.yaml", "benchmarks"}
