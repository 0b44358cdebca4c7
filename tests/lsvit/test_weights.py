"""Starting weights: from the hub, a folder or a file; all of them loaded or refused, and what was
loaded is recorded.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from timm.data import ImageNetInfo
from torch import Tensor

from lsvit.routed import RoutedModel
from lsvit.weights import save_weights
from pipeline.config.checks import check_layers
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.files import read_json, write_json
from pipeline.jobs.configs import TrainConfig
from pipeline.models.start import load_start
from pipeline.models.weights import build, create_backbone
from pipeline.training.loop import fetch
from tests.conftest import cases_of, refused
from tests.models import assert_same

CASES = cases_of(__file__)
TAGGED = "vit_small_patch16_224.augreg_in21k_ft_in1k"
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
DISTILLED = ModelPreset(timm="deit_tiny_distilled_patch16_224", kwargs=SMALL, weights="scratch")


def changed(preset: ModelPreset, **values: Any) -> ModelPreset:
    return preset.model_copy(update=values)


def published(path: Path, name: str, **kwargs: Any) -> dict[str, Tensor]:
    """A file as timm publishes it, of a small model whose every tensor is random."""
    torch.manual_seed(1)
    model = timm.create_model(name, **kwargs)
    tensors = {key: torch.randn_like(tensor) for key, tensor in model.state_dict().items()}
    save_file(tensors, path)
    return tensors


def start(preset: ModelPreset, num_classes: int) -> tuple[Any, dict[str, str | None]]:
    """A model with its starting weights, for so many classes of other names than the weights'."""
    model = create_backbone(preset, num_classes)
    return model, load_start(model, preset, [f"c{i}" for i in range(num_classes)])


def test_hub_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "hub.safetensors"

    def download(repo: str, filename: str) -> str:
        assert (repo, filename) == ("timm/" + TAGGED, "model.safetensors")
        return str(file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    tensors = published(file, "vit_small_patch16_224", num_classes=1000, **SMALL)
    preset = ModelPreset(timm=TAGGED, kwargs=SMALL, weights="hub")
    model = create_backbone(preset, 1000)
    synsets = ImageNetInfo("imagenet-1k").label_names()
    loaded = load_start(model, preset, synsets)
    assert_same(model.state_dict(), tensors)
    digest = loaded.pop("sha256")
    assert loaded == {
        "timm": TAGGED,
        "tag": "augreg_in21k_ft_in1k",
        "hf_hub_id": "timm/" + TAGGED,
        "license": "apache-2.0",
        "head": "loaded",
    }
    wrong = rf"hub\.safetensors: its sha256 is {digest}, params\.yaml expects 0000"
    with refused(wrong):
        start(changed(preset, sha256="0" * 64), 10)


@pytest.mark.parametrize(("preset", "said"), CASES["models"])
def test_models_that_cannot_be_made(pico: ModelPreset, preset: dict[str, Any], said: str) -> None:
    with refused(said):
        create_backbone(changed(pico, **preset), 10)


@pytest.mark.parametrize(("values", "said"), CASES["weights"])
def test_weights_that_cannot_be_had(
    pico: ModelPreset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, Any],
    said: str,
) -> None:
    def offline(*_: Any) -> str:
        raise OSError("offline\nvery much so")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", offline)
    Path("bad.safetensors").write_bytes(b"no")
    Path("empty").mkdir()
    for folder, name in (("other", "resnet50"), ("half", "vit_tiny_patch16_224")):
        Path(folder).mkdir()
        write_json(Path(folder, "config.json"), {"architecture": name})
    with refused(said):
        start(changed(pico, **values), 10)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape", "said"), CASES["tensors"])
def test_weights_that_do_not_fit_are_refused(
    name: str, shape: list[int] | None, said: str, pico: ModelPreset, tmp_path: Path
) -> None:
    """Partial or foreign weights are refused, not silently left at their initialisation."""
    path = tmp_path / "w.safetensors"
    tensors = published(path, "vit_tiny_patch16_224", num_classes=10, **pico.kwargs)
    tensors.pop(name, None)
    if shape:
        tensors[name] = torch.zeros(shape)
    save_file(tensors, path)
    with refused(said):
        start(changed(pico, weights=str(path)), 10)


def test_the_one_head_of_a_distilled_model_starts_fresh(tmp_path: Path) -> None:
    """Also where the data have as many classes as the weights: ImageNet.

    The weights' heads are two that were meant to be averaged.
    """
    path = tmp_path / "w.safetensors"
    tensors = published(path, DISTILLED.timm, num_classes=10, **SMALL)
    for head, said in (("timm", "loaded"), ("class_token", "fresh")):
        model, loaded = start(changed(DISTILLED, weights=str(path), head=head), 10)
        assert loaded["head"] == said
        assert torch.equal(model.head.weight, tensors["head.weight"]) == (said == "loaded")
        assert torch.equal(model.dist_token, tensors["dist_token"])
    save_weights(RoutedModel(model), path)  # a model that has one head already
    _, loaded = start(changed(DISTILLED, weights=str(path), head="class_token"), 10)
    assert loaded["head"] == "loaded"
    with refused(r"2 missing: 'head_dist\.bias'"):
        start(changed(DISTILLED, weights=str(path)), 10)


@pytest.mark.parametrize(
    "name", ["vit_small_patch14_dinov2.lvd142m", "vit_small_patch14_reg4_dinov2.lvd142m"]
)
def test_position_embedding_is_resampled_as_timm_does(name: str, tmp_path: Path) -> None:
    """DINOv2 is published at 518 pixels, without a head."""
    path = tmp_path / "w.safetensors"
    kwargs: dict[str, Any] = {"patch_size": 14, "embed_dim": 32, "depth": 1, "num_heads": 2}
    published(path, name, img_size=518, num_classes=0, **kwargs)
    preset = ModelPreset(timm=name, kwargs=kwargs | {"img_size": 224}, weights=str(path))
    model, loaded = start(preset, 10)
    overlay = {"file": str(path)}
    expected: Any = timm.create_model(
        name, pretrained=True, pretrained_cfg_overlay=overlay, num_classes=10, **preset.kwargs
    )
    assert torch.equal(model.pos_embed, expected.pos_embed)
    assert model.pos_embed.shape[1] in (256, 257)
    assert loaded["head"] == "fresh"
    assert loaded["license"] is None  # of a local file nobody knows


def test_colour_weights_on_grey_images(pico: ModelPreset, tmp_path: Path) -> None:
    """timm's own adaption: a grey image gives what it gave as three equal channels."""
    path = tmp_path / "w.safetensors"
    colour = pico.kwargs | {"in_chans": 3}
    tensors = published(path, "vit_tiny_patch16_224", num_classes=10, **colour)
    model, _ = start(changed(pico, weights=str(path)), 10)
    expected = tensors["patch_embed.proj.weight"].sum(1)
    assert torch.allclose(model.patch_embed.proj.weight[:, 0], expected)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kwargs", "renamed"), CASES["renamed"])
def test_names_of_other_checkpoints(
    name: str, kwargs: dict[str, Any], renamed: dict[str, str], tmp_path: Path
) -> None:
    """ResMLP and DeiT-3 as Facebook publishes them."""
    path = tmp_path / "w.safetensors"
    tensors = published(path, name, num_classes=10, **kwargs)
    theirs = {}
    for key, tensor in tensors.items():
        for ours, other in renamed.items():
            key = key.replace(ours, other)
        theirs[key] = tensor
    save_file(theirs, path)
    model, _ = start(ModelPreset(timm=name, kwargs=kwargs, weights=str(path)), 10)
    assert_same(model.state_dict(), tensors)


@pytest.mark.parametrize("outputs", [None, 1000])
def test_fetch_records_what_was_loaded(
    outputs: int | None,
    train_config: Callable[..., TrainConfig],
    prepared: Path,
    pico: ModelPreset,
    tmp_path: Path,
) -> None:
    """A folder in timm's layout."""
    mine = tmp_path / "mine"
    backbone = create_backbone(pico, 1000)
    timm.models.save_for_hf(backbone, str(mine), safe_serialization=True)
    preset = changed(pico, weights="mine", num_classes=outputs)
    config = train_config().model_copy(update={"model": preset})
    fetch(config, prepared, mine, tmp_path, lambda row: None)
    loaded = read_json(tmp_path / "weights.json")
    expected = {"file": "mine", "tag": None, "license": None}
    assert (expected | {"head": "loaded" if outputs else "fresh"}).items() <= loaded.items()
    assert str(tmp_path) not in json.dumps(loaded)
    tensors = load_file(tmp_path / "weights.safetensors")
    assert tensors["head.weight"].shape == (outputs or 10, 16)
    if outputs:
        assert_same(tensors, backbone.state_dict())


def test_random_weights_are_drawn_by_seed(
    train_config: Callable[..., TrainConfig], prepared: Path, pico: ModelPreset, tmp_path: Path
) -> None:
    """As the preset says, without a training."""
    preset = changed(pico, weights="random")
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        config = train_config(seed=seed).model_copy(update={"model": preset})
        fetch(config, prepared, None, tmp_path / str(seed), lambda row: None)
        torch.manual_seed(seed)
        expected = create_backbone(pico, 10).state_dict()
        assert_same(load_file(tmp_path / str(seed) / "weights.safetensors"), expected)


def test_the_file_of_a_preset(pico: ModelPreset, tmp_path: Path) -> None:
    assert pico.local_file() is None
    assert changed(pico, weights="hub").local_file() is None
    assert changed(pico, weights="a.safetensors").local_file(tmp_path) == tmp_path / "a.safetensors"
    folder = changed(pico, weights=tmp_path.name)
    assert folder.local_file(tmp_path.parent) == tmp_path / "model.safetensors"


@pytest.mark.slow
def test_every_preset_is_a_routable_model(params: Params) -> None:
    """All of params.yaml, without memory or weights: known to timm with its tag, outputs for the
    data, the depth of the sections.
    """
    for name, preset in params.models.items():
        with torch.device("meta"):
            model = RoutedModel(create_backbone(changed(preset, init_std=None), 100))
        check_layers(params.model_copy(update={"model": name}), model.num_layers)
        assert model.backbone.num_classes == 100
        assert preset.weights != "scratch" or preset.init_std


@pytest.mark.parametrize(
    ("key", "own"), [("num_classes", "num_classes"), ("pretrained", "weights")]
)
def test_arguments_that_have_a_key_of_their_own(key: str, own: str) -> None:
    with pytest.raises(ValidationError, match=f"the preset's own key {own}"):
        ModelPreset(timm="test_vit", weights="scratch", kwargs={key: 1})


@pytest.mark.parametrize("init_std", [None, 0.1])
@pytest.mark.parametrize(("name", "kwargs", "added"), CASES["grown"])
def test_growth_scales_what_layers_add(
    name: str, kwargs: dict[str, Any], added: list[str], init_std: float | None
) -> None:
    """The l-th layer's by l^g, with and without a spread of its own; every other weight is bit for
    bit as without growth.
    """
    preset = ModelPreset(timm=name, kwargs=kwargs, weights="scratch", init_std=init_std)
    states = []
    for growth in (0.0, 0.75):
        torch.manual_seed(0)
        states.append(create_backbone(changed(preset, init_growth=growth), 10).state_dict())
    plain, grown = states
    depth = kwargs.get("depth") or kwargs["num_blocks"]
    factors = {f"blocks.{i}.{part}.weight": (i + 1) ** 0.75 for i in range(depth) for part in added}
    assert factors.keys() <= plain.keys()
    for key, tensor in plain.items():
        assert torch.equal(grown[key], tensor * factors.get(key, 1.0)), key
    for part in added:
        assert plain[f"blocks.1.{part}.weight"].any()  # else nothing could grow


def test_published_weights_do_not_grow(pico: ModelPreset, tmp_path: Path) -> None:
    save_weights(build(pico, 10), tmp_path / "mine.safetensors")
    preset = changed(pico, weights=str(tmp_path / "mine.safetensors"))
    plain, grown = (start(changed(preset, init_growth=growth), 10)[0] for growth in (0.0, 2.0))
    assert_same(grown.state_dict(), plain.state_dict())
