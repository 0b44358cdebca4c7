"""Checkpoints as others save them: wrappers, names, and what a folder says of its weights."""

import argparse
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from PIL import Image
from torch import Tensor, nn

import lsvit
from lsvit.checkpoint import read_checkpoint
from lsvit.routed import RoutedModel
from pipeline.config.presets import ModelPreset
from pipeline.data.resize import Resize, resizing
from pipeline.files import read_json, write_json
from pipeline.models.start import check_start, complete, load_start
from pipeline.models.weights import create_backbone, normalisation
from tests.conftest import Printed, cases_of, change_json, refused
from tests.models import assert_same, of_transformers

CASES = cases_of(__file__)
NAME = "vit_tiny_patch16_224"
SIZES: dict[str, Any] = {"img_size": 28, "patch_size": 14, "embed_dim": 16, "num_heads": 2}
SIZES |= {"depth": 2}
NAMES = [str(number) for number in range(12)]
State = dict[str, Tensor]


def vit() -> Any:
    torch.manual_seed(0)
    model: Any = timm.create_model(NAME, num_classes=12, **SIZES)
    with torch.no_grad():
        model.head.bias.copy_(torch.arange(12.0))
    return model.eval()


def prefixed(prefix: str, state: State) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


WRAPPED: dict[str, Callable[[State], Any]] = {
    "": lambda state: state,
    "module.": lambda state: prefixed("module.", state),
    "backbone.": lambda state: RoutedModel(vit()).state_dict(),
    "module._orig_mod.": lambda state: prefixed("module._orig_mod.", state),
    "timm_model.": lambda state: {"state_dict": prefixed("model.timm_model.", state)},
    "'net'": lambda state: {
        "net": prefixed("module.", state),
        "optimizer": {"state": {0: {"step": torch.ones(3)}}, "param_groups": [{}]},
        "epoch": torch.tensor(3),
    },
    "'model_ema'": lambda state: {
        "model": {name: tensor + 1 for name, tensor in state.items()},
        "model_ema": prefixed("module.", state),
        "args": argparse.Namespace(lr=0.1),
    },
    "'state_dict.model'": lambda state: {"state_dict": {"model": state}},
    "'_fsdp_wrapped_module.' is left out": lambda state: {
        "model": {
            name.replace("blocks.0.", "blocks.0._fsdp_wrapped_module._orig_mod."): tensor
            for name, tensor in state.items()
        }
    },
    "_orig_mod.": lambda state: {"n_averaged": torch.tensor(3), **prefixed("_orig_mod.", state)},
}


@pytest.mark.parametrize("said", WRAPPED)
def test_wrappers_are_taken_off_and_said(said: str, tmp_path: Path) -> None:
    state = vit().state_dict()
    torch.save(WRAPPED[said](state), tmp_path / "w.pth")
    lines: list[str] = []
    assert_same(read_checkpoint(tmp_path / "w.pth", lines.append), state)
    assert said in " ".join(lines)
    assert bool(lines) == bool(said)


BAD: dict[str, Any] = {
    "whole model": (lambda state: vit(), "it holds timm.models.vision_transformer"),
    "numpy": (lambda state: {"model": state, "best": np.float64(3)}, "weights_only=True"),
    "list": (lambda state: [1, 2], "found list, accepted: a dictionary of tensors"),
    "empty": (lambda state: {"epoch": 3}, "found no tensors"),
    "two": (
        lambda state: {"student": state, "teacher": state},
        "found weights under 'student', 'teacher'",
    ),
    "quantised": (
        lambda state: {name: tensor.to(torch.int8) for name, tensor in state.items()},
        r"found torch\.int8, accepted: finite floating-point numbers",
    ),
    "complex": (
        lambda state: state | {"cls_token": torch.ones(1, 1, 16, dtype=torch.complex64)},
        r"cls_token: found torch\.complex64",
    ),
    "twice": (
        lambda state: state | prefixed("backbone.", state),
        r"found the same names with 'backbone\.' and without",
    ),
    "sparse": (
        lambda state: state | {"head.weight": state["head.weight"].to_sparse()},
        r"head\.weight: found a sparse or nested tensor",
    ),
    "without memory": (
        lambda state: state | {"head.weight": torch.ones(12, 16, device="meta")},
        r"head\.weight: found .* one without memory",
    ),
    "adapter": (
        lambda state: {
            "base_model.model.blocks.0.attn.qkv.lora_A.default.weight": torch.ones(4, 16)
        },
        r"lora_A\.default\.weight', accepted: whole weights, as by peft's merge",
    ),
    "shard": (
        lambda state: {
            "_fsdp_wrapped_module._flat_param": torch.ones(9),
            "norm.bias": torch.ones(1),
        },
        r"_flat_param', accepted: whole weights, as by FSDP's FULL_STATE_DICT",
    ),
    "not finite": (
        lambda state: state | {"norm.weight": torch.full((16,), torch.nan)},
        r"norm\.weight: found numbers that are not finite",
    ),
}


def test_a_scripted_model_is_refused_without_a_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    with warnings.catch_warnings(action="ignore"):  # torch.jit is deprecated
        torch.jit.trace(nn.Linear(1, 1), torch.ones(1, 1)).save(tmp_path / "w.pt")
    with refused("weights_only=True", ValueError):
        read_checkpoint(tmp_path / "w.pt")
    assert not recwarn


@pytest.mark.parametrize("name", BAD)
def test_other_files_are_refused_in_a_line(name: str, tmp_path: Path) -> None:
    make, said = BAD[name]
    file = tmp_path / "w.pth"
    torch.save(make(vit().state_dict()), file)
    preset = ModelPreset(timm=NAME, kwargs=SIZES, weights=str(file))
    with refused(said) as error:
        check_start(vit(), preset)
    assert str(file) in str(error.value)


# ---- transformers ------------------------------------------------------------------------------

CLASSIFIER = "ForImageClassification"
BODIES = {
    "vit_base_patch14_dinov2": "Dinov2",
    "vit_base_patch14_reg4_dinov2": "Dinov2WithRegisters",
    "vit_giant_patch14_dinov2": "Dinov2",
}


def theirs(kind: str = "ViT", head: str = CLASSIFIER, **more: Any) -> Any:
    """One of transformers' models, small, with random weights."""
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    sizes |= {"image_size": 28, "patch_size": 14, "intermediate_size": 48}
    made = of_transformers(kind, head, **sizes, **more).eval()
    torch.manual_seed(0)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3)
    return made


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "head"),
    [("ViT", CLASSIFIER), ("DeiT", CLASSIFIER), ("DeiT", f"{CLASSIFIER}WithTeacher")],
)
def test_transformers_classifiers_load(kind: str, head: str, tmp_path: Path) -> None:
    """As they save themselves, and as torch saves them: the names differ since version 5."""
    model = theirs(kind, head, num_labels=3)
    model.config.id2label = {0: "cat", 1: "dog", 2: "owl"}
    model.save_pretrained(tmp_path / "saved")
    said = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 1], "resample": 3}
    write_json(tmp_path / "saved" / "preprocessor_config.json", said)
    (tmp_path / "torch").mkdir()
    shutil.copy(tmp_path / "saved" / "config.json", tmp_path / "torch")
    torch.save(prefixed("module.", model.state_dict()), tmp_path / "torch" / "pytorch_model.bin")
    images = torch.randn(2, 3, 28, 28)
    for folder in ("saved", "torch"):
        opened = lsvit.load(tmp_path / folder)
        assert opened.classes == ["cat", "dog", "owl"]
        assert opened.transform(Image.new("RGB", (40, 30))).shape == (3, 28, 28)
        assert torch.allclose(opened.model(images), model(images).logits, atol=1e-5)
    data = lsvit.load(tmp_path / "saved").data
    assert (data["mean"], data["interpolation"]) == ([0.1, 0.2, 0.3], "bicubic")


def test_a_folder_without_preprocessor_config_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs(num_labels=2).save_pretrained(tmp_path)
    lsvit.load(tmp_path)
    said = "no preprocessor_config.json says mean and std of its pixels, .* vit_base_patch16_224"
    assert re.search(said, capsys.readouterr().err)


def test_weights_in_shards_are_refused(tmp_path: Path) -> None:
    model = theirs(num_labels=2)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    shard = min(tmp_path.glob("model-*"))
    for where in (tmp_path, tmp_path / "model.safetensors.index.json"):
        with refused(r"index\.json: found weights in shards, accepted: one file", ValueError):
            lsvit.load(where)
    with refused(r"missing: ", ValueError):
        lsvit.load(shard)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as transformers writes it, of a model of two classes."""
    folder = tmp_path_factory.mktemp("published")
    theirs(num_labels=2).save_pretrained(folder)
    return folder


def said_of(folder: Path, processor: Any, to: Path) -> Path:
    """A copy of the folder in which preprocessor_config.json says this."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    write_json(to / "preprocessor_config.json", processor)
    return to


PROCESSOR = CASES["processor"]


@pytest.mark.parametrize(("kind", "said"), CASES["read as transformers does"])
def test_images_are_made_as_transformers_does(
    kind: str, said: dict[str, Any], published: Path, tmp_path: Path
) -> None:
    """But for the last bit of its resizing."""
    said = PROCESSOR | {"image_processor_type": kind} | said
    opened = lsvit.load(said_of(published, said, tmp_path))
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((240, 120), 3)
    expected = getattr(transformers, kind).from_pretrained(tmp_path)(image, return_tensors="pt")
    found = opened.transform(image)
    assert (found - expected["pixel_values"][0]).abs().max() < 0.05


@pytest.mark.parametrize(
    ("file", "change", "said"), [*CASES["not of the pixels"], *CASES["not of the model"]]
)
def test_what_means_another_model_or_other_pixels_is_refused(
    file: str, change: dict[str, Any], said: str, published: Path, tmp_path: Path
) -> None:
    said_of(published, PROCESSOR, tmp_path)
    change_json(tmp_path / file, change)
    with refused(said, ValueError):
        lsvit.load(tmp_path)
    preset = ModelPreset(timm="vit_base_patch16_224", weights=f"{tmp_path}/")
    with refused(said):
        complete(preset)


def test_dinov2_gets_images_of_the_size_of_its_crop(tmp_path: Path, printed: Printed) -> None:
    """Its position embedding is published for larger ones."""
    model = theirs("Dinov2", "Model")
    model.save_pretrained(tmp_path / "saved")
    crop = {"do_center_crop": True, "crop_size": {"height": 14, "width": 14}, "size": 16}
    said = PROCESSOR | {"image_processor_type": "BitImageProcessor"} | crop
    said_of(tmp_path / "saved", said, tmp_path)
    preset = complete(ModelPreset(timm="vit_base_patch14_dinov2", weights=f"{tmp_path}/"))
    assert preset.kwargs["img_size"] == 14
    assert resizing(preset, "timm") == Resize(16, "bilinear", 14)
    load_start(create_backbone(preset, 2), preset, ["a", "b"])
    assert "brought to the model's size: pos_embed" in printed()


@torch.no_grad()
@pytest.mark.parametrize("name", BODIES)
def test_transformers_dinov2_loads(name: str, tmp_path: Path) -> None:
    gated = {"use_swiglu_ffn": True} if "giant" in name else {}
    model = theirs(BODIES[name], "Model", **gated)
    model.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "w.pt")
    sizes: dict[str, Any] = {"img_size": 28, "embed_dim": 24, "depth": 2, "num_heads": 3}
    if not gated:
        sizes["mlp_ratio"] = 4
    ours: Any = timm.create_model(name, num_classes=0, **sizes).eval()
    images = torch.randn(2, 3, 28, 28)
    expected = model(images).last_hidden_state
    # A gated MLP is read as transformers saves it: in memory its first product is two.
    for file in ("model.safetensors",) if gated else ("model.safetensors", "w.pt"):
        ours.load_state_dict(read_checkpoint(tmp_path / file))
        assert torch.allclose(ours.forward_features(images), expected, atol=1e-5)


# ---- what a folder says ------------------------------------------------------------------------


def write(folder: Path, names: list[str] | None = NAMES, **cfg: Any) -> None:
    """A folder in timm's layout."""
    config = {"label_names": names} if names else {}
    timm.models.save_for_hf(vit(), str(folder), model_config=config, safe_serialization=True)
    damage(folder, pretrained_cfg=cfg)


def given(weights: Path | str, **more: Any) -> ModelPreset:
    return complete(ModelPreset(timm=NAME, weights=str(weights), **more))


@pytest.mark.parametrize(("names", "classes", "more", "head", "said"), CASES["heads"])
def test_heads_are_joined_to_classes_by_name(
    names: list[str] | None,
    classes: list[str],
    more: dict[str, Any],
    head: str,
    said: str,
    tmp_path: Path,
    printed: Printed,
) -> None:
    write(tmp_path, names)
    preset = given(tmp_path, **more)
    model = create_backbone(preset, len(classes))
    assert load_start(model, preset, classes)["head"] == head
    assert said in printed()
    if head == "loaded" and names and set(classes) <= set(names):
        for place, name in enumerate(classes):
            assert model.head.bias[place] == names.index(name)
    elif head == "loaded":
        assert torch.equal(model.head.bias, torch.arange(12.0))


def test_more_names_than_outputs_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [*NAMES, "one more"])
    preset = given(tmp_path)
    with refused(r"config\.json: found 13 names of classes"):
        load_start(create_backbone(preset, 12), preset, NAMES)
    with refused(r"config\.json: found 13 names of classes", ValueError):
        lsvit.load(tmp_path)


def test_a_folders_own_pixels_and_arguments_are_used(tmp_path: Path) -> None:
    own: dict[str, Any] = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    write(tmp_path, **own, crop_pct=0.7, interpolation="bilinear")
    for weights in (tmp_path, tmp_path / "model.safetensors"):
        preset = given(weights)
        assert (preset.kwargs["num_heads"], preset.kwargs["img_size"]) == (2, 28)
        assert normalisation(preset, {}) == (tuple(own["mean"]), tuple(own["std"]))
        assert resizing(preset, "timm") == Resize(40, "bilinear", 28)
    changed = given(tmp_path, pixels={"crop_pct": 0.5})  # params.yaml comes first
    assert resizing(changed, "timm") == Resize(56, "bilinear", 28)
    assert normalisation(changed, {})[0] == (0.1, 0.2, 0.3)


def test_pixels_of_the_tag_change_no_preset(tmp_path: Path) -> None:
    """Finished trainings from such weights are found again."""
    write(tmp_path)
    preset = ModelPreset(timm=NAME, kwargs=SIZES, weights=str(tmp_path))
    assert complete(preset).pixels is None
    assert "pixels" not in complete(preset).effective()


@pytest.mark.parametrize("start", [b'{"architecture": "vit', b"\xff\xfe\xff"])
def test_a_config_that_cannot_be_read_is_not_passed_over(start: bytes, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "config.json").write_bytes(start)
    with refused(r"config\.json: not JSON"):
        given(tmp_path / "model.safetensors")


def test_digests_that_are_no_mapping_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    write_json(tmp_path / "lsvit.json", {"variant": {}, "sha256": ["a"]})
    with refused(r"lsvit\.json: cannot be read \(AttributeError", ValueError):
        lsvit.load(tmp_path)


def test_a_config_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    write(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text("utf-8"), "utf-8-sig")
    assert given(tmp_path / "model.safetensors").kwargs["num_heads"] == 2


def test_weights_below_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert given("~/model.safetensors").local_file() == tmp_path / "model.safetensors"
    assert lsvit.load("~/model.safetensors").classes == NAMES
    with refused(r"~nobody-here/w\.pth does not exist", ValueError):
        lsvit.load("~nobody-here/w.pth")


def damage(folder: Path, **changes: Any) -> None:
    """Change the config.json of a folder; a mapping changes keys below it."""
    file = folder / "config.json"
    config = read_json(file)
    for key, value in changes.items():
        config[key] = config[key] | value if isinstance(value, dict) else value
    write_json(file, config)


@pytest.mark.parametrize(("changes", "said"), CASES["foreign"])
def test_another_models_weights_are_refused(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """Also where every tensor has the right shape."""
    write(tmp_path)
    damage(tmp_path, **changes)
    preset = ModelPreset(timm=NAME, kwargs=SIZES, weights=str(tmp_path))
    with refused(said):
        check_start(create_backbone(complete(preset), 12), complete(preset))
