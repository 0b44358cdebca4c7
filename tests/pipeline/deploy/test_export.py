"""Exported folders are what stock timm, the hub and lsvit itself take; predictions say what the model says."""

import json
import re
import shutil
import subprocess
import sys
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

from lsvit.routed import RoutedModel
from papers import PAPERS
from pipeline.config.presets import ModelPreset
from pipeline.data.splits import Split
from pipeline.deploy.export import export, find_training
from pipeline.deploy.predict import choose_routes, open_weights, predict, read_image
from pipeline.errors import UserError
from pipeline.jobs.files import WEIGHTS
from pipeline.models.weights import build
from stages.commands import app
from tests.conftest import ROOT, Training

DISTILLED = ModelPreset(
    timm="deit_tiny_distilled_patch16_224",
    weights="scratch",
    head="class_token",
    num_classes=12,
    kwargs={"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2},
)
MIXER = ModelPreset(timm="resmlp_12_224", weights="scratch", kwargs={"img_size": 32})


def images_for(model: RoutedModel, n: int = 3) -> Tensor:
    embed = getattr(model.backbone, "stem", None) or model.backbone.patch_embed
    return torch.randn(
        n, embed.proj.in_channels, *embed.img_size, generator=torch.Generator().manual_seed(1)
    )


def pixels(prepared: Path, i: int = 0) -> np.ndarray:
    """A validation image (28, 28) uint8."""
    split = Split(prepared, "validation", torch.device("cpu"), 1, 28, (0.0,), (1.0,))
    return (255 * split.take(slice(i, i + 1))[0][0, 0]).round().byte().numpy()


def stock(folder: Path) -> Any:
    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("ls", None),
        ("ls_pred", None),
        ("refit_2", None),
        ("mixed", None),
        ("ls", DISTILLED),
        ("ls", MIXER),
    ],
)
def test_stock_timm_makes_the_model_itself(
    trained: Training, name: str, preset: ModelPreset | None
) -> None:
    model = trained(name, preset)
    folder, _ = export(name, 0, papers=PAPERS)
    images = images_for(model)
    with torch.no_grad():
        assert torch.equal(stock(folder)(images), model(images))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("ls", None),
        ("ls_pos", None),
        ("ls_pred", None),
        ("refit_2", None),
        ("mixed", None),
        ("talking", None),
        ("ls", DISTILLED),
        ("ls_pos", DISTILLED),
        ("refit_2", MIXER),
    ],
)
def test_an_export_opens_as_it_was_trained(
    trained: Training, name: str, preset: ModelPreset | None
) -> None:
    model = trained(name, preset)
    folder, _ = export(name, 0, Path("mine"), papers=PAPERS)
    training = open_weights(f"outs/finetune/{name}/seed_0/{WEIGHTS}")
    images, route = images_for(model), (1, 0)
    for opened in (training, open_weights("mine"), open_weights("mine/model.safetensors")):
        with torch.no_grad():
            assert torch.equal(opened.model(images, route), model(images, route))
            assert torch.equal(opened.model(images), model(images))
        assert opened.classes == training.classes
        assert {
            key: tuple(v) if isinstance(v, list | tuple) else v for key, v in opened.data.items()
        } == training.data
    assert (folder / "position.safetensors").exists() == (name in ("ls_pos", "ls_pred"))


@pytest.mark.slow
def test_an_export_of_which_a_bit_has_changed(trained: Training) -> None:
    """A number of the weights is another then, and every check of safetensors passes."""
    trained("ls_pos")
    folder, _ = export("ls_pos", 0, papers=PAPERS)
    for file in sorted(folder.glob("*.safetensors")):
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(UserError, match=f"{file}: not what was exported"):
            open_weights(str(folder))
        file.unlink()
        with pytest.raises(UserError, match=str(file)):
            open_weights(str(folder))
        file.write_bytes(whole)
    open_weights(str(folder))


@pytest.mark.slow
def test_what_stock_timm_gets_wrong_is_said(trained: Training) -> None:
    model = trained("ls_pos")
    folder, notes = export("ls_pos", 0, papers=PAPERS)
    assert folder == Path("exports/bars_pico_ls_pos_seed_0")
    assert "answers wrongly" in notes[0]
    text = (folder / "README.md").read_text()
    assert "answers wrongly" in text
    assert "timm.create_model" not in text
    images = images_for(model)
    with torch.no_grad():
        assert not torch.allclose(stock(folder)(images), model(images))
    trained("refit_2", MIXER)
    assert (
        "stock timm cannot make a MlpMixer of 2 layers" in export("refit_2", 0, papers=PAPERS)[1][0]
    )
    trained("ls", DISTILLED)
    assert "written doubled" in export("ls", 0, papers=PAPERS)[1][0]
    trained("mixed")
    assert "is left out" in export("mixed", 0, papers=PAPERS)[1][0]
    trained("talking")
    folder, notes = export("talking", 0, papers=PAPERS)
    assert "no talking heads" in notes[0]
    assert "timm.create_model" not in (folder / "README.md").read_text()


def write_results(folder: Path) -> None:
    """Rows of two seeds as stage prune-eval writes them: `ls` at 70 and 74 % in the original order, 60 % in any other."""
    rows = [
        {
            "dataset": "bars",
            "model": "pico",
            "variant": "ls",
            "seed": seed,
            "keep": keep,
            "order": order,
            "route": "",
            "routes": routes,
            "images": 40,
            "accuracy": (0.7 + 0.04 * seed if order == "sequential" else 0.6) - (4 - keep) / 10,
            "loss": 1.0,
            "position_accuracy": None,
            "std_images": 0.1,
        }
        for seed in (0, 1)
        for keep in (2, 4)
        for order, routes in (("sequential", 1), ("arbitrary", 12))
    ]
    folder.mkdir()
    pd.DataFrame(rows).to_csv(folder / "prune_eval.csv", index=False)
    (folder / "cell.json").write_text(
        json.dumps({"dataset": "bars", "model": "pico", "scale": "minutes", "protocol": "paper"})
    )


def test_the_model_card(trained: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Front matter of the hub, the measured accuracies with their intervals, every hyper-parameter, and code that runs."""
    model = trained("ls", seed=1)
    write_results(Path("results"))
    start = Path("outs/pretrain/seed_0")
    start.mkdir(parents=True)
    (start / "weights.json").write_text(
        json.dumps(
            {"timm": "a.b", "hf_hub_id": "timm/a.b", "sha256": "ff", "license": "apache-2.0"}
        )
    )
    folder, notes = export("ls", 1, papers=PAPERS)
    assert notes == []
    text = (folder / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    assert {key: value for key, value in yaml.safe_load(front).items() if key != "model-index"} == {
        "license": "apache-2.0",
        "library_name": "timm",
        "pipeline_tag": "image-classification",
        "base_model": "timm/a.b",
        "tags": ["timm", "image-classification", "layershuffle"],
        "datasets": ["bars"],
        "metrics": ["accuracy"],
    }
    shown: Any = ModelCard(text)
    evaluated = shown.data.eval_results
    assert {(each.metric_name, each.metric_value) for each in evaluated or ()} == {
        ("top-1 accuracy (%), sequential order", 74.0),
        ("top-1 accuracy (%), arbitrary order", 60.0),
    }
    table = {
        tuple(cell.strip() for cell in line.split("|")[1:-1])
        for line in body.splitlines()
        if line.startswith("| sequential")
    }
    assert ("sequential", "4", "72.00", "[46.59, 97.41]", "2", "1", "40", "74.00") in table
    for said in (
        "timm/a.b, sha256 `ff`",
        "scale: `minutes`",
        "a processor, fp32",
        "| lr",
        "| schedule",
        "the reported validation images chose the epoch",
        "T-shirt/top, Trouser",
    ):
        assert said.lower() in body.lower()
    monkeypatch.chdir(folder)
    blocks = re.findall(r"```python\n(.*?)```", body, re.S)
    assert len(blocks) == 2
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    with torch.no_grad():
        assert torch.equal(names["stock"](names["images"]), model(names["images"]))
    assert json.loads(Path("config.json").read_text())["pretrained_cfg"]["license"] == "apache-2.0"


def test_a_card_without_results(trained: Training) -> None:
    trained()
    write_results(Path("results"))
    cell = json.loads(Path("results/cell.json").read_text())
    for found in ({"dataset": "digits"}, {"protocol": "heldout"}, {"scale": "hours"}):
        Path("results/cell.json").write_text(json.dumps(cell | found))
        text = (export("ls", 0, papers=PAPERS)[0] / "README.md").read_text()
        assert "Not evaluated" in text
        assert "trained from scratch on the same data" in text
        assert "license" not in text.split("---\n")[1]


def test_a_training_that_does_not_say_what_it_ran_on(trained: Training) -> None:
    trained()
    assert "a processor, fp32" in (export("ls", 0, papers=PAPERS)[0] / "README.md").read_text()
    Path("outs/finetune/ls/seed_0/execution.txt").unlink()
    assert "a processor, fp32" not in (export("ls", 0, papers=PAPERS)[0] / "README.md").read_text()


def test_the_exported_config(trained: Training, prepared: Path) -> None:
    trained("refit_2", DISTILLED)
    folder, _ = export("refit_2", 0, papers=PAPERS)
    config = json.loads((folder / "config.json").read_text())
    assert config["architecture"] == "deit_tiny_distilled_patch16_224"
    assert config["label_names"][1] == "Trouser"
    assert (config["num_classes"], config["model_args"]["depth"]) == (12, 2)
    assert (
        "num_classes" not in config["model_args"]
    )  # transformers' TimmWrapper takes no second one
    cfg, meta = config["pretrained_cfg"], json.loads((prepared / "meta.json").read_text())
    assert (cfg["input_size"], cfg["crop_pct"], cfg["interpolation"]) == (
        [3, 32, 32],
        1.0,
        "bilinear",
    )
    assert (cfg["mean"], cfg["std"]) == (meta["mean"] * 3, meta["std"] * 3)
    assert not {"tag", "license", "url", "hf_hub_id"} & cfg.keys()  # of weights that these are not
    head = load_file(folder / "model.safetensors")
    assert not head["head_dist.weight"].any()
    assert json.loads((folder / "lsvit.json").read_text())["head"] == "class_token"


@pytest.mark.slow
def test_an_export_says_how_the_images_were_resized(
    trained: Training, tmp_path: Path, prepared: Path
) -> None:
    """`resize: timm` of a data set: as the evaluation of the weights that timm names."""
    trained("ls", MIXER)
    (data := tmp_path / "outs" / "prepare_data").unlink()
    shutil.copytree(prepared, data)
    (data / "meta.json").write_text(
        json.dumps(json.loads((data / "meta.json").read_text()) | {"resize": "timm"})
    )
    cfg = json.loads((export("ls", 0, papers=PAPERS)[0] / "config.json").read_text())[
        "pretrained_cfg"
    ]
    assert (cfg["crop_pct"], cfg["interpolation"], cfg["crop_mode"]) == (0.875, "bicubic", "center")


def test_trainings_that_are_not_there(trained: Training, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="outs/finetune: not found, no training has finished; `dvc repro`"
    ):
        find_training("ls", 0, ["ls"])
    with pytest.raises(
        UserError, match=r"variant: found 'lss', did you mean 'ls'\? accepted: baseline, ls, "
    ):
        find_training("lss", 0, ["baseline", "ls", "ls_pos"])
    trained("ls", seed=3)
    trained("ls_pos")
    for variant, seed, said in (
        ("lss", 0, r"found 'lss', did you mean 'ls'\? accepted: ls, ls_pos"),
        ("ls", 0, "found 0, accepted: 3"),
    ):
        with pytest.raises(UserError, match=said):
            export(variant, seed, papers=PAPERS)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file: cannot be written"):
        export("ls", 3, Path("file"), papers=PAPERS)
    (tmp_path / "outs" / "params" / "model.json").unlink()
    with pytest.raises(UserError, match=r"outs/params/model\.json: cannot be read"):
        export("ls", 3, papers=PAPERS)
    (tmp_path / "outs" / "prepare_data").unlink()
    with pytest.raises(
        UserError, match=r"outs/prepare_data: not the images that .* was trained on"
    ):
        export("ls", 3, papers=PAPERS)


def test_weights_that_cannot_be_opened(trained: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> str:
        raise OSError("offline")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    trained("ls_pos")
    folder, _ = export("ls_pos", 0, Path("mine"), papers=PAPERS)
    spec = json.loads((folder / "lsvit.json").read_text())
    del spec["sha256"]  # an older version noted none
    (folder / "lsvit.json").write_text(json.dumps(spec))
    shutil.copytree(folder, "parts")
    Path("parts/position.safetensors").unlink()
    shutil.copytree(folder, "misfit")
    shutil.copy("mine/position.safetensors", "misfit/model.safetensors")
    for name, config in (
        ("resnet", {"architecture": "test_resnet"}),
        ("unknown", {"architecture": "vit_tinny"}),
        ("neither", {}),
        ("headless", {"architecture": "test_vit", "num_classes": 0}),
    ):
        shutil.copytree(folder, name)
        Path(name, "config.json").write_text(json.dumps(config))
    shutil.copytree(folder, "broken")
    Path("broken/config.json").write_text("{")
    for where, said in (
        ("nowhere", "weights: nowhere does not exist; accepted: an exported"),
        ("hf-hub:you/model", "hf-hub:you/model cannot be had"),
        ("parts", r"parts/position\.safetensors: not a safetensors file"),
        ("misfit", "does not fit its config.json"),
        ("resnet", "not routable"),
        ("unknown", "timm cannot make this model"),
        ("neither", "neither of an export nor of a training"),
        ("headless", "a model without a head"),
        ("broken", r"broken/config\.json: cannot be read"),
    ):
        with pytest.raises(UserError, match=said) as error:
            open_weights(where)
        assert "\n" not in str(error.value)


def test_an_export_from_the_hub(trained: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained("ls_pos")
    folder, _ = export("ls_pos", 0, papers=PAPERS)
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda repository, allow_patterns: str(folder)
    )
    with torch.no_grad():
        assert torch.equal(
            open_weights("hf-hub:you/model").model(images_for(model)), model(images_for(model))
        )


@pytest.mark.parametrize(("outputs", "name"), [(1000, "tench"), (7, "output 0")])
def test_a_folder_of_stock_timm_opens_too(tmp_path: Path, outputs: int, name: str) -> None:
    """Class names: the folder's own, else ImageNet's, else the number of the output."""
    model: Any = timm.create_model("test_vit", num_classes=outputs).eval()
    with torch.no_grad():
        model.head.bias[0] = 100.0
    timm.models.save_for_hf(model, str(tmp_path), safe_serialization=True)
    opened = open_weights(str(tmp_path))
    image = torch.randn(3, 160, 160)
    with torch.no_grad():
        assert torch.equal(opened.model(image[None]), model(image[None]))
    assert predict(opened, image, [tuple(range(6))], 1)["top"][0]["class"].startswith(name)


@pytest.mark.parametrize(
    ("order", "keep", "expected"),
    [
        ("sequential", None, [(0, 1, 2, 3)]),
        ("reversed", None, [(3, 2, 1, 0)]),
        ("sequential", 3, [(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)]),
        ("reversed", 3, [(2, 1, 0), (3, 1, 0), (3, 2, 0), (3, 2, 1)]),
        ("arbitrary", 1, [(0,), (1,), (2,), (3,)]),
        ("2, 0,0", None, [(2, 0, 0)]),
    ],
)
def test_routes_of_a_prediction(
    pico: ModelPreset, order: str, keep: int | None, expected: list
) -> None:
    assert choose_routes(build(pico, 10), order, keep, 5, 0) == expected


def test_random_routes_of_a_prediction(pico: ModelPreset) -> None:
    model = build(pico, 10)
    routes = choose_routes(model, "arbitrary", None, 20, 0)
    assert len(set(routes)) == 20
    assert (
        routes
        == choose_routes(model, "arbitrary", None, 20, 0)
        != choose_routes(model, "arbitrary", None, 20, 1)
    )
    for order, keep, said in (
        ("backwards", None, "--order: found 'backwards', accepted: sequential"),
        ("0,4", None, "layers from 0 to 3"),
        ("0,-1", None, "--order"),
        ("0,", None, "--order"),
        ("1,0", 2, "without --keep"),
        ("arbitrary", 5, "--keep: found 5, accepted: 1 to 4"),
    ):
        with pytest.raises(UserError, match=said):
            choose_routes(model, order, keep, 20, 0)


def test_an_image_is_read_as_the_pipeline_reads_it(trained: Training, prepared: Path) -> None:
    trained()
    opened = open_weights(f"outs/finetune/ls/seed_0/{WEIGHTS}")
    array, data = pixels(prepared), opened.data
    expected = Split(
        prepared, "validation", torch.device("cpu"), 1, 28, data["mean"], data["std"]
    ).take(slice(0, 1))[0][0]
    Image.fromarray(array).save("grey.png")
    Image.fromarray(array).convert("RGB").save("colour.png")
    Image.fromarray(array).convert("P").save("palette.png")
    Image.fromarray(array.astype(np.uint16) * 257).save("deep.png")
    for name in ("grey", "colour", "palette", "deep"):
        assert torch.allclose(read_image(Path(f"{name}.png"), data), expected, atol=1e-5), name
    Image.fromarray(array).convert("RGBA").resize((90, 40)).save("wide.png")
    assert read_image(Path("wide.png"), data).shape == (1, 28, 28)
    assert read_image(
        Path("grey.png"), data | {"input_size": (3, 32, 32), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    ).shape == (3, 32, 32)


def test_a_prediction_is_the_mean_over_the_orders(trained: Training) -> None:
    model = trained()
    opened = open_weights(f"outs/finetune/ls/seed_0/{WEIGHTS}")
    image, routes = images_for(model, 1)[0], choose_routes(model, "arbitrary", 3, 7, 0)
    found = predict(opened, image, routes, 3)
    with torch.no_grad():
        each = torch.stack([model(image[None], route).softmax(-1)[0] for route in routes])
    best = int(each.mean(0).argmax())
    first = found["top"][0]
    assert (first["index"], first["class"], found["orders"], len(found["top"])) == (
        best,
        opened.classes[best],
        7,
        3,
    )
    assert first["probability"] == pytest.approx(float(each[:, best].mean()), abs=1e-5)
    assert first["std"] == pytest.approx(float(each[:, best].std()), abs=1e-5)
    assert found["agree"] == int((each.argmax(1) == best).sum())
    single = predict(opened, image, [(0, 1, 2, 3)], 50)
    assert single["agree"] == 1
    assert [row["std"] for row in single["top"]] == [None] * 10


def test_the_commands(trained: Training, prepared: Path) -> None:
    trained("ls", DISTILLED)
    run = CliRunner().invoke
    done = run(app, ["export", "ls", "--out", "mine"])
    assert done.exit_code == 0
    assert done.output.splitlines()[0] == "mine: written"
    assert "written doubled" in done.output
    for i in range(2):
        Image.fromarray(pixels(prepared, i)).save(f"{i}.png")
    done = run(
        app,
        [
            "predict",
            "0.png",
            "1.png",
            "--weights",
            "mine",
            "--order",
            "arbitrary",
            "--top",
            "2",
            "--json",
        ],
    )
    found = json.loads(done.output)
    assert [(one["image"], one["order"], one["keep"], one["orders"]) for one in found] == [
        (f"{i}.png", "arbitrary", 2, 2) for i in (0, 1)
    ]
    done = run(app, ["predict", "0.png", "--weights", "mine", "--order", "arbitrary"])
    assert f"{found[0]['top'][0]['class']} is the answer in" in " ".join(done.output.split())
    assert f"{found[0]['top'][0]['probability']:.4f}" in done.output
    Path("bad.png").write_bytes(b"no image")
    for name in ("bad.png", "absent.png"):
        with pytest.raises(UserError, match=f"^{name}: not an image that can be read"):
            run(app, ["predict", name, "--weights", "mine"], catch_exceptions=False)


@pytest.mark.slow
def test_the_released_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fresh clone, before any training: fetched by one command, they open in timm and transformers and answer along any route."""
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    subprocess.run(["git", "clone", "-q", ROOT, tmp_path / "clone"], check=True)
    monkeypatch.chdir(tmp_path / "clone")
    subprocess.run([sys.executable, "-m", "dvc", "pull", "-q", "weights.dvc"], check=True)
    released = yaml.safe_load(Path("dvc.yaml").read_text())["artifacts"]
    assert set(released) == {"baseline", "ls", "ls_pred", "layerdrop"}
    images = torch.randn(2, 1, 28, 28)
    Image.fromarray(torch.randint(256, (40, 28), dtype=torch.uint8).numpy()).save("photo.png")
    for each in released.values():
        model, data, classes = open_weights(each["path"])
        wrapper: Any = AutoModelForImageClassification.from_pretrained(each["path"])
        processor: Any = AutoImageProcessor.from_pretrained(each["path"])
        assert torch.equal(
            processor(Image.open("photo.png"))["pixel_values"][0],
            read_image(Path("photo.png"), data),
        )
        assert [*wrapper.config.id2label.values()] == classes
        with torch.inference_mode():
            assert torch.equal(stock(Path(each["path"]))(images), model(images))
            assert torch.equal(wrapper(images).logits, model(images))
            assert model(images, tuple(reversed(range(12)))).shape == (2, len(classes))
        spec = json.loads(Path(each["path"], "lsvit.json").read_text())
        rows = pd.read_csv("results/prune_eval.csv", dtype={"route": str})
        own = rows[(rows["variant"] == spec["name"]) & (rows["seed"] == 0) & (rows["keep"] == 12)]
        shown: Any = ModelCard(Path(each["path"], "README.md").read_text())
        for found in shown.data.eval_results:  # they are those of the committed results
            order = own[
                own["order"] == ("arbitrary" if "arbitrary" in found.metric_name else "sequential")
            ]
            assert found.metric_value == round(
                100 * order[order["routes"] == order["routes"].max()]["accuracy"].mean(), 2
            )
        assert spec["variant"]["per"] == ("latin" if "ls" in spec["name"] else "batch")
        cell = json.loads(Path("results/cell.json").read_text())
        assert (spec["dataset"], spec["model"], spec["scale"], spec["seed"]) == (
            cell["dataset"],
            cell["model"],
            cell["scale"],
            0,
        )
