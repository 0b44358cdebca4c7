"""Exported folders are what stock timm, the hub and lsvit take; predictions are the model's."""

import itertools
import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import timm
import torch
import yaml
from huggingface_hub import ModelCard
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

import lsvit
from lsvit.predict import choose_routes, predict, read_image
from lsvit.routed import RoutedModel
from papers import PAPERS
from pipeline.config.presets import ModelPreset
from pipeline.data.resize import Resize, resizing
from pipeline.data.splits import Split
from pipeline.deploy.export import export, find_training
from pipeline.deploy.predict import open_weights
from pipeline.files import read_json, write_json
from pipeline.jobs.files import WEIGHTS
from pipeline.models.start import complete, load_start
from pipeline.models.weights import build, create_backbone, normalisation
from pipeline.tracking.sync import sync
from stages.commands import app
from tests.conftest import Printed, Training, cases_of, change_json, refused

CASES = cases_of(__file__)

DISTILLED = ModelPreset(
    timm="deit_tiny_distilled_patch16_224",
    weights="scratch",
    head="class_token",
    num_classes=12,
    kwargs={"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2},
)
MIXER = ModelPreset(timm="resmlp_12_224", weights="scratch", kwargs={"img_size": 32})
PRESETS = {"distilled": DISTILLED, "mixer": MIXER}
TRAINING = f"outs/finetune/ls/seed_0/{WEIGHTS}"


def images_for(model: RoutedModel, n: int = 3) -> Tensor:
    embed = getattr(model.backbone, "stem", None) or model.backbone.patch_embed
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, embed.proj.in_channels, *embed.img_size, generator=generator)


def validation_images(prepared: Path, mean: Any, std: Any, n: int) -> Tensor:
    """The first validation images, normalised (n, 1, 28, 28)."""
    split = Split(prepared, "validation", torch.device("cpu"), 1, 28, mean, std)
    return split.take(slice(0, n))[0]


def pixels(prepared: Path, i: int = 0) -> np.ndarray:
    """A validation image (28, 28) uint8."""
    image = validation_images(prepared, (0.0,), (1.0,), i + 1)[i, 0]
    return (255 * image).round().byte().numpy()


def stock(folder: Path) -> Any:
    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "preset_name", "notes"), CASES["exports"])
def test_an_export_is_the_model_that_was_trained(
    trained: Training,
    name: str,
    preset_name: str | None,
    notes: list[str],
    printed: Printed,
) -> None:
    """In the pipeline, in the library and in stock timm; what stock timm gets wrong is said."""
    preset = PRESETS.get(preset_name or "")
    model = trained(name, preset)
    folder, found = export(name, 0, Path("mine"), papers=PAPERS)
    assert all(note in line for note, line in zip(notes, found, strict=True))
    images, route = images_for(model), (1, 0)
    training = open_weights(f"outs/finetune/{name}/seed_0/{WEIGHTS}")
    openings = [training, open_weights("mine")]
    if name != "talking":
        openings.append(lsvit.load("mine/model.safetensors"))
    with torch.no_grad():
        for opened in openings:
            assert torch.equal(opened.model(images, route), model(images, route))
            assert torch.equal(opened.model(images), model(images))
            assert opened.classes == training.classes
            for key, value in training.data.items():
                assert np.array_equal(opened.data[key], value)
        card = (folder / "README.md").read_text()
        if "refuses the weights" in notes:
            with pytest.raises(RuntimeError):
                stock(folder)
        else:
            same = torch.equal(stock(folder)(images), model(images))
            assert same == ("answers wrongly" not in notes)
            assert ("timm.create_model" in card) == same
    has_position = name in ("ls_pos", "ls_pred")
    assert (folder / "position.safetensors").exists() == has_position
    assert all(line.lower() in card.lower() for line in found)
    if not {"refuses the weights", "answers wrongly"} & set(notes):
        architecture = read_json(folder / "config.json")["architecture"]
        own = preset.model_dump(include={"head", "num_classes"}) if preset else {}
        given = complete(ModelPreset(timm=architecture, weights="mine/", **own))
        again: Any = create_backbone(given, len(training.classes))
        assert load_start(again, given, training.classes)["head"] == "loaded"
        assert ("position.safetensors: left out" in printed()) == has_position
        with torch.no_grad():
            assert torch.equal(RoutedModel(again.eval())(images, route), model(images, route))
        data = training.data
        assert normalisation(given, {}) == (tuple(data["mean"]), tuple(data["std"]))
        size = data["input_size"][1]
        assert resizing(given, "timm") == Resize(size, "bilinear", size)


@pytest.mark.slow
def test_an_export_of_which_a_bit_has_changed(trained: Training) -> None:
    """Every check of safetensors passes, but another model would answer."""
    trained("ls_pos")
    folder, _ = export("ls_pos", 0, papers=PAPERS)
    for file in sorted(folder.glob("*.safetensors")):
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with refused(f"{file}: not what was exported"):
            open_weights(str(folder))
        file.unlink()
        with refused(str(file)):
            open_weights(str(folder))
        file.write_bytes(whole)
    open_weights(str(folder))


def write_results(folder: Path) -> None:
    """Rows of two seeds of `ls`: 70 and 74 % in the original order, 60 % in any other."""
    rows = []
    for seed, keep in itertools.product((0, 1), (2, 4)):
        less = (4 - keep) / 10
        rows.append((seed, keep, "sequential", 1, 0.7 + 0.04 * seed - less))
        rows.append((seed, keep, "arbitrary", 12, 0.6 - less))
    table = pd.DataFrame(rows, columns=["seed", "keep", "order", "routes", "accuracy"])
    table = table.assign(dataset="bars", model="pico", variant="ls", route="", images=40)
    table = table.assign(loss=1.0, position_accuracy=None, std_images=0.1)
    folder.mkdir(exist_ok=True)
    table.to_csv(folder / "prune_eval.csv", index=False)
    cell = {"dataset": "bars", "model": "pico", "scale": "minutes", "protocol": "paper"}
    write_json(folder / "cell.json", cell)


def card_of(folder: Path) -> Any:
    return ModelCard((folder / "README.md").read_text())


def test_the_model_card(trained: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """Front matter of the hub, accuracies with intervals, hyper-parameters, code that runs."""
    model = trained("ls", seed=1)
    write_results(Path("results"))
    start = Path("outs/pretrain/seed_0")
    start.mkdir(parents=True)
    origin = {"timm": "a.b", "hf_hub_id": "timm/a.b", "sha256": "ff", "license": "apache-2.0"}
    write_json(start / "weights.json", origin)
    folder, _ = export("ls", 1, papers=PAPERS)
    assert folder == Path("exports/bars_pico_ls_seed_1")
    text = (folder / "README.md").read_text()
    card: Any = ModelCard(text)
    about = (card.data.license, card.data.base_model, card.data.library_name)
    assert about == ("apache-2.0", "timm/a.b", "timm")
    results = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert results == {
        "top-1 accuracy (%), sequential order": 74.0,
        "top-1 accuracy (%), arbitrary order": 60.0,
    }
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    tables = [[cell.strip() for cell in line] for line in lines]
    numbers = ["sequential", "4", "2", "1", "40", "72.00", "46.59", "97.41", "74.00"]
    assert sorted(numbers) in [sorted(cells) for cells in tables]
    options = {cells[0]: cells[1] for cells in tables if len(cells) == 2}
    assert (options["seed"], options["ran on"]) == ("`1`", '`"a processor, fp32"`')
    assert {"route", "lr", "schedule", "position"} <= options.keys()
    assert "$" not in text
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(block, names)
    with torch.no_grad():
        assert torch.equal(names["stock"](names["images"]), model(names["images"]))


def test_a_card_without_results(trained: Training) -> None:
    trained()
    Path("outs/finetune/ls/seed_0/execution.txt").unlink()  # an older training has none
    cell = Path("results/cell.json")
    for change in ({"dataset": "digits"}, {"protocol": "heldout"}, {"scale": "hours"}):
        write_results(Path("results"))
        change_json(cell, change)
        folder, _ = export("ls", 0, papers=PAPERS)
        about = card_of(folder).data
        assert not about.eval_results
        assert about.license is None


def test_a_card_of_a_training_that_was_not_evaluated(trained: Training) -> None:
    """The results are of the one before it, by what DVC noted."""
    trained()
    write_results(Path("results"))
    for evaluated, shown in (("b.dir", False), ("a.dir", True)):
        trainings = {"path": "outs/finetune", "md5": "a.dir"}
        read = trainings | {"md5": evaluated}
        write_lock({"finetune-variants": {"outs": [trainings]}, "prune-eval": {"deps": [read]}})
        folder, _ = export("ls", 0, papers=PAPERS)
        assert bool(card_of(folder).data.eval_results) == shown


def test_a_training_of_another_scale_than_the_parameters(trained: Training) -> None:
    """As an interrupted run at another scale leaves them."""
    trained()
    preset = {"path": "outs/params/model.json", "md5": "of another scale"}
    outs = {"path": "outs/finetune", "md5": "a.dir"}
    write_lock({"finetune-variants": {"deps": [preset], "outs": [outs]}})
    for command in (partial(export, "ls", 0), sync):
        with refused("stage finetune-variants ran with another model or scale than outs/params"):
            command(papers=PAPERS)


def write_lock(stages: dict[str, Any]) -> None:
    Path("dvc.lock").write_text(yaml.safe_dump({"stages": stages}))


def test_the_exported_config(trained: Training, prepared: Path) -> None:
    trained("refit_2", DISTILLED)
    folder, _ = export("refit_2", 0, papers=PAPERS)
    config = read_json(folder / "config.json")
    assert config["architecture"] == "deit_tiny_distilled_patch16_224"
    assert config["label_names"][1] == "Trouser"
    assert (config["num_classes"], config["model_args"]["depth"]) == (12, 2)
    assert "num_classes" not in config["model_args"]  # transformers' wrapper takes no second one
    cfg = config["pretrained_cfg"]
    meta = read_json(prepared / "meta.json")
    expected = {"input_size": [3, 32, 32], "crop_pct": 1.0, "interpolation": "bilinear"}
    expected |= {"mean": meta["mean"] * 3, "std": meta["std"] * 3}
    assert cfg | expected == cfg
    assert not {"tag", "license", "url", "hf_hub_id"} & cfg.keys()  # of weights that these are not
    assert not load_file(folder / "model.safetensors")["head_dist.weight"].any()
    assert read_json(folder / "lsvit.json")["head"] == "class_token"


@pytest.mark.slow
def test_an_export_says_how_the_images_were_resized(trained: Training, prepared: Path) -> None:
    """`resize: timm` of a data set: as the evaluation of the weights that timm names."""
    trained("ls", MIXER)
    data = Path("outs/prepare_data")
    data.unlink()
    shutil.copytree(prepared, data)
    change_json(data / "meta.json", {"resize": "timm"})
    folder, _ = export("ls", 0, papers=PAPERS)
    cfg = read_json(folder / "config.json")["pretrained_cfg"]
    assert (cfg["crop_pct"], cfg["interpolation"], cfg["crop_mode"]) == (0.875, "bicubic", "center")


def test_trainings_that_are_not_there(trained: Training) -> None:
    """Or are of no order, or not of these images."""
    for name, reason in (
        ("ls", "outs/finetune: not found, no training has finished; `dvc repro`"),
        ("lss", r"variant: found 'lss', did you mean 'ls'\? accepted: baseline, ls, "),
    ):
        with refused(reason):
            find_training(name, 0, ["baseline", "ls", "ls_pos"])
    with refused("weights: mine does not exist|mine does not exist; accepted: an exported"):
        open_weights("mine")
    trained("ls", seed=3)
    trained("ls_pos")
    trained("shared")
    Path("file").write_text("")
    for name, seed, reason in (
        ("lss", 0, r"found 'lss', did you mean 'ls'\? accepted: ls, ls_pos, shared"),
        ("ls", 0, "found 0, accepted: 3"),
        ("ls", 3, "file: cannot be written"),
        ("shared", 0, "trained with route repeat_first, accepted: a variant that runs each"),
    ):
        with refused(reason):
            export(name, seed, Path("file"), papers=PAPERS)
    Path("outs/prepare_data").unlink()
    with refused(r"outs/prepare_data: not the images that .* was trained on"):
        export("ls", 3, papers=PAPERS)


@pytest.mark.parametrize(("files", "reason"), CASES["damaged"])
def test_weights_that_cannot_be_opened(
    trained: Training, files: dict[str, str | None], reason: str
) -> None:
    trained("ls_pos")
    folder, _ = export("ls_pos", 0, Path("mine"), papers=PAPERS)
    spec = read_json(folder / "lsvit.json")
    digests = spec.pop("sha256")  # an older version noted none
    write_json(folder / "lsvit.json", spec)
    for name, text in files.items():
        if text is None:
            (folder / name).unlink()
        elif text in digests:
            shutil.copy(folder / text, folder / name)
        else:
            (folder / name).write_text(text)
    with refused(reason):
        open_weights("mine")


def test_an_export_from_the_hub(trained: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained("ls_pos")
    folder, _ = export("ls_pos", 0, papers=PAPERS)

    def fetch(repository: str, allow_patterns: list[str]) -> str:
        if repository != "you/model":
            raise OSError("offline")
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    images = images_for(model)
    with torch.no_grad():
        assert torch.equal(open_weights("hf-hub:you/model").model(images), model(images))
    with refused("hf-hub:you/another cannot be had"):
        open_weights("hf-hub:you/another")


@pytest.mark.parametrize(("outputs", "name"), [(1000, "tench"), (7, "output 0")])
def test_a_folder_of_stock_timm_opens_too(tmp_path: Path, outputs: int, name: str) -> None:
    """Class names: the folder's own, else ImageNet's, else the number of the output."""
    model: Any = timm.create_model("test_vit", num_classes=outputs).eval()
    with torch.no_grad():
        model.head.bias[0] = 100.0
    timm.models.save_for_hf(model, str(tmp_path), safe_serialization=True)
    opened = lsvit.load(str(tmp_path))
    image = torch.randn(3, 160, 160)
    with torch.no_grad():
        assert torch.equal(opened.model(image[None]), model(image[None]))
    assert predict(opened, image, [tuple(range(6))], 1)["top"][0]["class"].startswith(name)


@pytest.mark.parametrize(("order", "keep", "expected"), CASES["routes"])
def test_routes_of_a_prediction(
    pico: ModelPreset, order: str, keep: int | None, expected: list
) -> None:
    assert list(map(list, choose_routes(build(pico, 10), order, keep, 5, 0))) == expected


def test_random_routes_of_a_prediction(pico: ModelPreset) -> None:
    model = build(pico, 10)
    first, again, other = (choose_routes(model, "arbitrary", None, 20, n) for n in (0, 0, 1))
    assert len(set(first)) == 20
    assert first == again != other
    for order, keep, reason in (
        ("backwards", None, "order: found 'backwards', accepted: sequential"),
        ("0,4", None, "layers from 0 to 3"),
        ("1,0", 2, "without keep"),
        ("arbitrary", 5, "keep: found 5, accepted: 1 to 4"),
    ):
        with refused(reason, ValueError):
            choose_routes(model, order, keep, 20, 0)


def test_an_image_is_read_as_the_pipeline_reads_it(trained: Training, prepared: Path) -> None:
    trained()
    data = open_weights(TRAINING).data
    (expected,) = validation_images(prepared, data["mean"], data["std"], 1)
    values = pixels(prepared)
    grey = Image.fromarray(values)
    deep = Image.fromarray(values.astype(np.uint16) * 257)
    for image in (grey, grey.convert("RGB"), grey.convert("P"), deep):
        image.save("image.png")
        found = read_image(Path("image.png"), data)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5, msg=image.mode)
    grey.convert("RGBA").resize((90, 40)).save("wide.png")
    assert read_image(Path("wide.png"), data).shape == (1, 28, 28)


def test_a_prediction_is_the_mean_over_the_orders(trained: Training) -> None:
    model = trained()
    opened = open_weights(TRAINING)
    images, routes = images_for(model, 1), choose_routes(model, "arbitrary", 3, 7, 0)
    with torch.no_grad():
        each = torch.cat([model(images, route).softmax(-1) for route in routes]).double().numpy()
    best = each.mean(0).argmax()
    found = predict(opened, images[0], routes, 3)
    assert (found["orders"], len(found["top"])) == (7, 3)
    assert found["top"][0] == {
        "index": best,
        "class": opened.classes[best],
        "probability": pytest.approx(each[:, best].mean(), abs=1e-5),
        "std": pytest.approx(each[:, best].std(ddof=1), abs=1e-5),
    }
    assert found["agree"] == (each.argmax(1) == best).sum()
    single = predict(opened, images[0], [(0, 1, 2, 3)], 50)
    assert [row["std"] for row in single["top"]] == [None] * 10


def test_the_commands(trained: Training, prepared: Path) -> None:
    trained("ls", DISTILLED)

    def run(words: str) -> str:
        return CliRunner().invoke(app, words.split(), catch_exceptions=False).output

    exported = run("export ls --out mine")
    assert exported.splitlines()[0] == "mine: written"
    assert "written doubled" in exported
    for i in range(2):
        Image.fromarray(pixels(prepared, i)).save(f"{i}.png")
    options = "--weights mine --order arbitrary"
    answers = json.loads(run(f"predict 0.png 1.png {options} --top 2 --json"))
    assert [answer["image"] for answer in answers] == ["0.png", "1.png"]
    assert f"{answers[0]['top'][0]['probability']:.4f}" in run(f"predict 0.png {options}")
    Path("bad.png").write_bytes(b"no image")
    faults = {"bad.png": "not an image that can be read", "absent.png": "there is no such file"}
    for name, fault in faults.items():
        with refused(f"^{name}: {fault}"):
            run(f"predict {name} --weights mine")


@pytest.mark.slow
@pytest.mark.usefixtures("in_clone")
def test_the_released_weights() -> None:
    """In a fresh clone, after one command, they open in timm, transformers and lsvit."""
    from transformers import AutoModelForImageClassification

    released = yaml.safe_load(Path("dvc.yaml").read_text())["artifacts"]
    assert set(released) == {"baseline", "ls", "ls_latin", "layerdrop"}
    images = torch.randn(2, 1, 28, 28)
    evaluations = pd.read_csv("results/prune_eval.csv", dtype={"route": str})
    for artifact in released.values():
        path = Path(artifact["path"])
        model, _, classes = lsvit.load(str(path))
        wrapper: Any = AutoModelForImageClassification.from_pretrained(path)
        assert [*wrapper.config.id2label.values()] == classes
        with torch.inference_mode():
            assert torch.equal(stock(path)(images), model(images))
            assert torch.equal(wrapper(images).logits, model(images))
        own = evaluations.query(f"variant == '{path.name}' and seed == 0 and keep == 12")
        for result in card_of(path).data.eval_results:  # they are those of the committed results
            name = "arbitrary" if "arbitrary" in result.metric_name else "sequential"
            order = own[own["order"] == name]
            accuracy = order[order["routes"] == order["routes"].max()]["accuracy"].mean()
            assert result.metric_value == round(100 * accuracy, 2)
