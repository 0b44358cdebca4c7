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
from torch import Tensor

from lsvit.routed import RoutedModel
from lsvit.weights import save_weights
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.errors import UserError
from pipeline.jobs.configs import TrainConfig
from pipeline.models.weights import build, create_backbone, load_start
from pipeline.training.loop import fetch

TAGGED = "vit_small_patch16_224.augreg_in21k_ft_in1k"
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
DISTILLED = ModelPreset(timm="deit_tiny_distilled_patch16_224", kwargs=SMALL, weights="scratch")


def changed(preset: ModelPreset, **values: Any) -> ModelPreset:
    return preset.model_copy(update=values)


def published(path: Path, name: str, **kwargs: Any) -> dict[str, Tensor]:
    """A file as timm publishes it, of a small model whose every tensor is random."""
    torch.manual_seed(1)
    tensors = {
        key: torch.randn_like(t)
        for key, t in timm.create_model(name, **kwargs).state_dict().items()
    }
    save_file(tensors, path)
    return tensors


def start(preset: ModelPreset, num_classes: int) -> tuple[Any, dict[str, str | None]]:
    model = create_backbone(preset, num_classes)
    return model, load_start(model, preset)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub that has one file for every repository."""
    asked: list[tuple[str, str]] = []

    def download(repo: str, filename: str) -> str:
        asked.append((repo, filename))
        assert asked == [("timm/" + TAGGED, "model.safetensors")]
        return str(tmp_path / "hub.safetensors")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    return tmp_path / "hub.safetensors"


def test_hub_weights(hub: Path) -> None:
    tensors = published(hub, "vit_small_patch16_224", num_classes=1000, **SMALL)
    model, loaded = start(ModelPreset(timm=TAGGED, kwargs=SMALL, weights="hub"), 1000)
    assert all(torch.equal(t, tensors[key]) for key, t in model.state_dict().items())
    assert loaded.pop("sha256")
    assert loaded == {
        "timm": TAGGED,
        "tag": "augreg_in21k_ft_in1k",
        "hf_hub_id": "timm/" + TAGGED,
        "license": "apache-2.0",
        "head": "loaded",
    }


def test_hub_weights_are_checked(hub: Path) -> None:
    published(hub, "vit_small_patch16_224", num_classes=1000, **SMALL)
    with pytest.raises(
        UserError, match=r"hub\.safetensors: its sha256 is [0-9a-f]{64}, params\.yaml expects 0000"
    ):
        start(ModelPreset(timm=TAGGED, kwargs=SMALL, weights="hub", sha256="0" * 64), 10)


@pytest.mark.parametrize(
    ("preset", "said"),
    [
        ({"timm": "vit_tinny"}, "found 'vit_tinny'"),
        (
            {"timm": "vit_tiny_patch16_224.orig"},
            "has no weights tagged 'orig', accepted: vit_tiny_patch16_224",
        ),
        (
            {"weights": "hub"},
            "vit_tiny_patch16_224 needs the tag of its weights, "
            "accepted: vit_tiny_patch16_224.augreg",
        ),
        (
            {"timm": "test_vit4", "weights": "hub"},
            "needs the tag of its weights, accepted: scratch, a file",
        ),
        ({"kwargs": {"depth": "many"}}, "timm cannot make vit_tiny_patch16_224: "),
        (
            {"num_classes": 9},
            "num_classes of vit_tiny_patch16_224: found 9, "
            "accepted: null, or at least the data set's 10 classes",
        ),
    ],
)
def test_models_that_cannot_be_made(pico: ModelPreset, preset: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        create_backbone(changed(pico, **preset), 10)
    assert "\n" not in str(error.value)


def test_weights_that_cannot_be_had(
    pico: ModelPreset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: Any) -> str:
        raise OSError("offline\nvery much so")

    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"no")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"architecture": "resnet50"}')
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json").write_text('{"architecture": "vit_tiny_patch16_224"}')
    monkeypatch.setattr("huggingface_hub.hf_hub_download", offline)
    for values, said in (
        (
            {"weights": "none.safetensors"},
            "found 'none.safetensors', which does not exist, accepted",
        ),
        ({"weights": str(bad)}, r"bad\.safetensors: not a safetensors file"),
        ({"weights": str(bad), "sha256": "0" * 64}, "its sha256 is"),
        ({"weights": str(tmp_path / "empty")}, "empty: no config.json naming an architecture"),
        (
            {"weights": str(tmp_path / "other")},
            "found 'resnet50', accepted: 'vit_tiny_patch16_224'",
        ),
        ({"weights": str(tmp_path / "half")}, r"half/model\.safetensors', which does not exist"),
        (
            {"timm": "vit_tiny_patch16_224.augreg_in21k", "weights": "hub"},
            r"three ways .*HF_HOME.*\.safetensors",
        ),
    ):
        with pytest.raises(UserError, match=said) as error:
            start(changed(pico, **values), 10)
        assert "\n" not in str(error.value)


def test_a_folder_of_timms_layout(pico: ModelPreset, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = create_backbone(pico, 10)
    timm.models.save_for_hf(model, str(tmp_path / "mine"), safe_serialization=True)
    again, loaded = start(changed(pico, weights=str(tmp_path / "mine")), 10)
    assert all(
        torch.equal(a, b)
        for a, b in zip(again.state_dict().values(), model.state_dict().values(), strict=True)
    )
    assert (loaded["file"], loaded["tag"], loaded["license"], loaded["head"]) == (
        "mine",
        None,
        None,
        "loaded",
    )


@pytest.mark.slow
def test_weights_that_do_not_fit_are_refused(pico: ModelPreset, tmp_path: Path) -> None:
    """Partial or foreign weights are refused, not silently left at their initialisation."""
    path = tmp_path / "w.safetensors"
    preset = changed(pico, weights=str(path))
    save_weights(build(changed(pico, kwargs=pico.kwargs | {"depth": 3}), 10), path)
    with pytest.raises(
        UserError,
        match=r"w\.safetensors: does not fit VisionTransformer: 12 tensors .* 'blocks\.3\.",
    ):
        start(preset, 10)
    tensors = published(path, "vit_tiny_patch16_224", num_classes=10, **pico.kwargs)
    for wrong, said in (
        ({"blocks.0.norm1.weight": torch.zeros(8)}, "1 tensors .* 'blocks.0.norm1.weight'"),
        ({"surplus": torch.zeros(8)}, "1 tensors .* 'surplus'"),
        ({"head.bias": torch.zeros(8)}, "1 tensors .* 'head.bias'"),
        ({"pos_embed": torch.zeros(1, 4, 16)}, "does not fit VisionTransformer"),
        ({"patch_embed.proj.weight": torch.zeros(3)}, "does not fit VisionTransformer"),
    ):
        save_file(tensors | wrong, path)
        with pytest.raises(UserError, match=said) as error:
            start(preset, 10)
        assert "\n" not in str(error.value)
    save_file({key: t for key, t in tensors.items() if key != "norm.bias"}, path)
    with pytest.raises(UserError, match=r"1 tensors .* 'norm\.bias'"):
        start(preset, 10)


def test_a_head_is_kept_where_it_fits_and_else_drawn(pico: ModelPreset, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    tensors = published(path, "vit_tiny_patch16_224", num_classes=100, **pico.kwargs)
    for outputs, classes, head in (
        (None, 10, "fresh"),
        (None, 100, "loaded"),
        (100, 10, "loaded"),
        (1000, 100, "fresh"),
    ):
        model, loaded = start(changed(pico, weights=str(path), num_classes=outputs), classes)
        assert model.head.weight.shape == (outputs or classes, 16)
        assert loaded["head"] == head
        if head == "loaded":
            assert torch.equal(model.head.weight, tensors["head.weight"])
        assert torch.equal(model.blocks[0].mlp.fc1.weight, tensors["blocks.0.mlp.fc1.weight"])


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
    assert (
        start(changed(DISTILLED, weights=str(path), head="class_token"), 10)[1]["head"] == "loaded"
    )
    with pytest.raises(UserError, match=r"2 tensors .* 'head_dist\.bias'"):
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
        name,
        pretrained=True,
        pretrained_cfg_overlay=overlay,
        img_size=224,
        num_classes=10,
        **kwargs,
    )
    assert torch.equal(model.pos_embed, expected.pos_embed)
    assert model.pos_embed.shape[1] in (256, 257)
    assert loaded["head"] == "fresh"
    assert loaded["license"] is None  # of a local file nobody knows


def test_colour_weights_on_grey_images(pico: ModelPreset, tmp_path: Path) -> None:
    """timm's own adaption: a grey image gives what it gave as three equal channels."""
    path = tmp_path / "w.safetensors"
    tensors = published(
        path, "vit_tiny_patch16_224", num_classes=10, **(pico.kwargs | {"in_chans": 3})
    )
    model, _ = start(changed(pico, weights=str(path)), 10)
    assert torch.allclose(
        model.patch_embed.proj.weight[:, 0], tensors["patch_embed.proj.weight"].sum(1)
    )


@pytest.mark.slow
def test_names_of_other_checkpoints(tmp_path: Path) -> None:
    """ResMLP and DeiT-3 as Facebook publishes them."""
    path = tmp_path / "w.safetensors"
    ours = published(path, "resmlp_12_224", img_size=32, num_classes=10)
    renamed = {}
    for key, t in ours.items():
        for a, b in (
            ("stem.", "patch_embed."),
            ("linear_tokens.", "attn."),
            ("mlp_channels.", "mlp."),
            ("ls", "gamma_"),
        ):
            key = key.replace(a, b)
        renamed[key] = t
    save_file(renamed, path)
    model, _ = start(
        ModelPreset(timm="resmlp_12_224", kwargs={"img_size": 32}, weights=str(path)), 10
    )
    assert all(torch.equal(t, ours[key]) for key, t in model.state_dict().items())
    ours = published(path, "deit3_small_patch16_224", num_classes=10, **SMALL)
    save_file(
        {
            key.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): t
            for key, t in ours.items()
        },
        path,
    )
    model, _ = start(
        ModelPreset(timm="deit3_small_patch16_224", kwargs=SMALL, weights=str(path)), 10
    )
    assert all(torch.equal(t, ours[key]) for key, t in model.state_dict().items())


def test_fetch_records_what_was_loaded(
    train_config: Callable[..., TrainConfig], prepared: Path, pico: ModelPreset, tmp_path: Path
) -> None:
    timm.models.save_for_hf(
        create_backbone(pico, 1000), str(tmp_path / "mine"), safe_serialization=True
    )
    for name, outputs in (("a", None), ("b", 1000)):
        (folder := tmp_path / name).mkdir()
        config = train_config().model_copy(
            update={"model": changed(pico, weights="mine", num_classes=outputs)}
        )
        fetch(config, prepared, tmp_path / "mine", folder, lambda row: None)
        loaded = json.loads((folder / "weights.json").read_text())
        assert loaded["file"] == "mine"
        assert str(tmp_path) not in json.dumps(loaded)
        assert loaded["head"] == ("loaded" if outputs else "fresh")
        assert load_file(folder / "weights.safetensors")["head.weight"].shape == (outputs or 10, 16)
        assert build(config.model, 10, weights=folder / "weights.safetensors").num_layers == 4


def test_the_file_of_a_preset(pico: ModelPreset, tmp_path: Path) -> None:
    assert pico.local_file() is None
    assert changed(pico, weights="hub").local_file() is None
    assert changed(pico, weights="a.safetensors").local_file(tmp_path) == tmp_path / "a.safetensors"
    assert (
        changed(pico, weights=tmp_path.name).local_file(tmp_path.parent)
        == tmp_path / "model.safetensors"
    )


@pytest.mark.slow
def test_every_preset_is_a_routable_model(params: Params) -> None:
    """All of params.yaml, without memory or weights: known to timm with its tag, outputs for the
    data, the depth of the sections.
    """
    for name, preset in params.models.items():
        with torch.device("meta"):
            model = RoutedModel(create_backbone(changed(preset, init_std=None), 100))
        assert model.num_layers == 12, name
        assert model.backbone.num_classes == 100
        assert preset.weights != "scratch" or preset.init_std


def test_class_token_head_of_the_papers_deit(params: Params) -> None:
    with torch.device("meta"):
        model = RoutedModel(
            create_backbone(
                changed(params.models["deit_b16"], head="class_token", num_classes=1000), 100
            )
        )
        assert model(torch.empty(1, 3, 224, 224)).shape == (1, 1000)


@pytest.mark.parametrize(
    ("key", "own"), [("num_classes", "num_classes"), ("pretrained", "weights")]
)
def test_arguments_that_have_a_key_of_their_own(key: str, own: str) -> None:
    with pytest.raises(ValidationError, match=f"the preset's own key {own}"):
        ModelPreset(timm="test_vit", weights="scratch", kwargs={key: 1})


GROWN: dict[
    str, tuple[dict[str, Any], set[str]]
] = {  # the last products of what a layer adds to its input
    "vit_tiny_patch16_224": (SMALL, {"attn.proj", "mlp.fc2"}),
    "deit_tiny_distilled_patch16_224": (SMALL, {"attn.proj", "mlp.fc2"}),
    "mixer_custom": (
        {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_blocks": 3},
        {"mlp_tokens.fc2", "mlp_channels.fc2"},
    ),
    "resmlp_custom": (
        {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_blocks": 3},
        {"linear_tokens", "mlp_channels.fc2"},
    ),
}


@pytest.mark.parametrize("init_std", [None, 0.1])
@pytest.mark.parametrize("name", GROWN)
def test_growth_scales_what_layers_add(name: str, init_std: float | None) -> None:
    """The l-th layer's by l^g, with and without a spread of its own; every other weight is bit for
    bit as without growth.
    """
    kwargs, added = GROWN[name]
    found = []
    for growth in (0.0, 0.75):
        torch.manual_seed(0)
        preset = ModelPreset(
            timm=name, kwargs=kwargs, weights="scratch", init_std=init_std, init_growth=growth
        )
        found.append(create_backbone(preset, 10).state_dict())
    plain, grown = found
    assert plain.keys() == grown.keys()
    depth = kwargs.get("depth") or kwargs["num_blocks"]
    scaled = {f"blocks.{i}.{part}.weight": (i + 1) ** 0.75 for i in range(depth) for part in added}
    assert scaled.keys() <= plain.keys()
    for key, tensor in plain.items():
        assert torch.equal(grown[key], tensor * scaled.get(key, 1.0)), key
        assert (
            key not in scaled or key.startswith("blocks.0.") or not torch.equal(grown[key], tensor)
        )


def test_published_weights_do_not_grow(pico: ModelPreset, tmp_path: Path) -> None:
    save_weights(build(pico, 10), tmp_path / "mine.safetensors")
    preset = changed(pico, weights=str(tmp_path / "mine.safetensors"))
    models = [
        start(changed(preset, init_growth=growth), 10)[0].state_dict() for growth in (0.0, 2.0)
    ]
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
