"""params.yaml: wrong values end in one line before any compute; presets resolve in the documented order."""

import copy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from papers import PAPERS
from papers.exits.section import Exits
from papers.inversion import checks
from papers.inversion.compute.presets import family_preset
from papers.layershuffle.section import Analysis
from papers.smoothing.section import Smoothing
from pipeline.config.checks import check_layers
from pipeline.config.datasets import COLOURED
from pipeline.config.load import load, parse
from pipeline.config.params import whole
from pipeline.config.presets import ModelPreset
from pipeline.config.remarks import describe_lowered, describe_overruled
from pipeline.config.sections import Finetune, Pretrain
from pipeline.config.types import Section
from pipeline.errors import UserError, raise_all
from pipeline.jobs.plan import run_config
from stages.check_params import build, main
from tests.conftest import ROOT

# (dotted key, value; DELETE removes the key), what the one line must say
DELETE = object()
WRONG: list[tuple[str, Any, list[str]]] = [
    ("sedes", [1], ["sedes", "unknown key", "did you mean 'seeds'?"]),
    ("finetune.epoch", 3, ["finetune.epoch", "unknown key", "did you mean 'epochs'?"]),
    ("variants.ls.rout", "arbitrary", ["variants.ls.rout", "did you mean 'route'?"]),
    ("models.vit_b16.weight", "hub", ["models.vit_b16.weight", "did you mean 'weights'?"]),
    (
        "variants.ls_pos.position.encode.dims",
        3,
        ["variants.ls_pos.position.encode.dims", "did you mean 'dim'?"],
    ),
    (
        "models.vit_micro.finetune.learning_rate",
        0.1,
        ["models.vit_micro.finetune.learning_rate", "unknown key", "lr"],
    ),
    (
        "datasets.fashion_mnist_tiny.analysis.image",
        3,
        ["datasets.fashion_mnist_tiny.analysis.image", "did you mean 'images'?"],
    ),
    (
        "variants.ls.finetune",
        {"epohcs": 3},
        ["variants.ls.finetune.epohcs", "did you mean 'epochs'?"],
    ),
    ("model", "vit_micr", ["model", "'vit_micr'", "did you mean 'vit_micro'?"]),
    ("dataset", "mnist", ["dataset", "'mnist'", "fashion_mnist_10k"]),
    ("device", "gpu", ["device", "'gpu'", "auto", "cuda"]),
    ("seeds", [], ["seeds", "[]", "at least 1"]),
    ("seeds", 3, ["seeds", "3", "list"]),
    ("seeds", [0, -1], ["seeds.1", "-1"]),
    ("seeds", [0, 0], ["seeds", "0 twice"]),
    ("seeds", ["a"], ["seeds.0", "'a'", "integer"]),
    ("finetune.epochs", -1, ["finetune.epochs", "-1", "greater than or equal to 1"]),
    ("finetune.epochs", 1.5, ["finetune.epochs", "1.5", "integer"]),
    ("finetune.epochs", True, ["finetune.epochs", "True", "a number"]),
    ("finetune.lr", "fast", ["finetune.lr", "'fast'", "number"]),
    ("finetune.lr", 0, ["finetune.lr", "0", "greater than 0"]),
    ("finetune.lr", float("nan"), ["finetune.lr", "nan", "finite"]),
    ("finetune.optimizer", "adamx", ["finetune.optimizer", "'adamx'", "did you mean 'adam"]),
    ("finetune.schedule", "one_cycel", ["finetune.schedule", "did you mean 'one_cycle'?"]),
    ("finetune.betas", [0.9], ["finetune.betas.1", "missing"]),
    ("finetune.betas", [0.9, 1.0], ["finetune.betas.1", "less than 1"]),
    ("finetune.precision", "fp16", ["finetune.precision", "'fp16'", "bf16"]),
    ("finetune.lr", DELETE, ["finetune.lr", "missing"]),
    ("variants.ls.finetune", {"epochs": -2}, ["variants.ls.finetune.epochs", "-2"]),
    ("models.vit_b16.finetune.lr", -1, ["models.vit_b16.finetune.lr", "-1"]),
    (
        "variants.ls.route",
        "arbitary",
        ["variants.ls.route", "'arbitary'", "did you mean 'arbitrary'?"],
    ),
    (
        "variants.layerdrop.route",
        {"drop": 1.5},
        ["variants.layerdrop.route", "{'drop': 1.5}", "0 <= p < 1"],
    ),
    (
        "variants.layerdrop.route",
        {"skip": 0.1},
        ["variants.layerdrop.route", "{'skip': 0.1}", "{skip: [layers]}"],
    ),
    (
        "variants.layerdrop.route",
        {"drp": 0.1},
        ["variants.layerdrop.route", "{drop: p}", "did you mean 'drop'?"],
    ),
    ("variants.ls.per", "image", ["variants.ls.per", "'image'", "sample"]),
    ("variants.ls_pos.route", {"fix_first": 13}, ["variants.ls_pos.route", "13", "at most 12"]),
    ("variants.refit_3.route", {"order": [0, 3]}, ["variants.refit_3.route", "3", "at most 2"]),
    ("prune_eval.samplers", ["backwards"], ["prune_eval.samplers.0", "'backwards'", "reversed"]),
    ("variants.ls.route", [2, 0, 1], ["variants.ls.route", "[2, 0, 1]", "{order: [layers]}"]),
    ("variants.ls.route", {"swap": float("inf")}, ["variants.ls.route", "{swap: k}"]),
    ("variants.ls.route", {"skip": {3: 1}}, ["variants.ls.route", "{skip: [layers]}"]),
    ("variants.ls_pos.route", {"order": [0] * 13}, ["variants.ls_pos.route", "13", "at most 12"]),
    ("prune_eval.per", "order", ["prune_eval.per", "'order'", "sample", "pass", "batch"]),
    ("protocol", "held_out", ["protocol", "'held_out'", "did you mean 'heldout'?"]),
    ("datasets.fashion_mnist_10k.heldout", 0, ["datasets.fashion_mnist_10k.heldout", "0"]),
    (
        "variants.ls_pred.position.predict.token",
        "first",
        ["variants.ls_pred.position.predict.token", "'first'", "class_token"],
    ),
    ("variants.a-b", {"route": "sequential"}, ["variants", "'a-b'"]),
    ("variants.pretrained", {"route": "sequential"}, ["variants", "pretrained"]),
    ("variants.refit_3.layers", 0, ["variants.refit_3.layers", "0", "greater than or equal to 1"]),
    ("variants.refit_3.layers", 13, ["variants.refit_3.layers", "13", "at most 12"]),
    ("prune_eval.keep", [3, 13], ["prune_eval.keep", "13", "at most 12"]),
    ("prune_eval.keep", [], ["prune_eval.keep", "[]", "at least 1"]),
    ("prune_eval.orders", 0, ["prune_eval.orders", "0"]),
    ("analysis.layer", 12, ["analysis.layer", "12", "at most 11"]),
    ("analysis.variants", ["lss"], ["analysis.variants", "'lss'", "did you mean 'ls'?"]),
    ("analysis.min_dist", 2, ["analysis.min_dist", "2"]),
    ("analysis.neighbors", 1000, ["analysis.neighbors", "1000", "at most 999"]),
    ("exits.depths", [3, 12], ["exits.depths", "12", "at most 11"]),
    ("exits.depths", [6, 3], ["exits.depths", "[6, 3]", "increasing order"]),
    ("exits.placements", [[3, 3]], ["exits.placements.0", "[3, 3]", "increasing order, each once"]),
    ("exits.placements", [[6], [3, 12]], ["exits.placements", "12", "at most 11"]),
    ("exits.keep", 13, ["exits.keep", "13", "at most 12"]),
    (
        "exits.branches",
        ["mlp", "cnn_ignored"],
        ["exits.branches.1", "'cnn_ignored'", "did you mean 'cnn_ignore'?"],
    ),
    (
        "models.vit_micro.exits.variants",
        {"lss": None},
        ["exits.variants", "'lss'", "did you mean 'ls'?"],
    ),
    ("exits.variants", {"ls": ["mpl"]}, ["exits.variants.ls.0", "'mpl'", "did you mean 'mlp'?"]),
    ("exits.strategies", ["end_to_ends"], ["exits.strategies.0", "did you mean 'end_to_end'?"]),
    ("exits.lrs", [0], ["exits.lrs.0", "0", "greater than 0"]),
    ("exits.counting.canvas", 8, ["exits.counting.canvas", "8", "16"]),
    ("models.vit_b16.exits.epoch", 3, ["models.vit_b16.exits.epoch", "did you mean 'epochs'?"]),
    (
        "variants.ls.exits",
        {"branch": "vti", "depths": [3]},
        ["variants.ls.exits.branch", "'vti'", "did you mean 'vit'?"],
    ),
    (
        "variants.ls_pos.exits",
        {"branch": "vit", "depths": [12]},
        ["variants.ls_pos.exits.depths", "12", "at most 11"],
    ),
    (
        "baseline.exits",
        {"branch": "vit", "depths": [3], "step": 2},
        ["baseline: exits.step", "2", "none"],
    ),
    (
        "variants.ls.losses",
        {"contrast": 1},
        ["variants.ls.losses.contrast", "unknown key", "did you mean 'contrastive'?"],
    ),
    (
        "variants.ls.losses",
        {"cosine": -1},
        ["variants.ls.losses.cosine.weight", "-1", "greater than or equal to 0"],
    ),
    (
        "variants.ls.losses",
        {"cosine": True},
        ["variants.ls.losses.cosine.weight", "True", "a number"],
    ),
    (
        "variants.ls.losses",
        {"contrastive": {"normalise": True}},
        ["contrastive.normalise", "did you mean 'normalize'?"],
    ),
    (
        "variants.ls.recipe",
        {"droppath": 0.1},
        ["variants.ls.recipe.droppath", "did you mean 'drop_path'?"],
    ),
    (
        "variants.ls.recipe",
        {"erasing": 1.1},
        ["variants.ls.recipe.erasing", "1.1", "less than or equal to 1"],
    ),
    ("variants.ls.talking_heads", "maybe", ["variants.ls.talking_heads", "'maybe'"]),
    ("variants.scratch", {"route": "sequential"}, ["variants", "scratch"]),
    ("smoothing.depths", [0], ["smoothing.depths.0", "0", "greater than or equal to 1"]),
    ("smoothing.variants", ["lss"], ["smoothing.variants", "'lss'", "did you mean 'ls'?"]),
    ("smoothing.removed", ["mixupp"], ["smoothing.removed.0", "'mixupp'", "did you mean 'mixup'?"]),
    (
        "models.vit_micro.smoothing.removed",
        ["mixup"],
        ["smoothing.removed", "'mixup'", "drop_path"],
    ),
    ("smoothing.losses", [{"cosin": 1}], ["smoothing.losses.0.cosin", "did you mean 'cosine'?"]),
    (
        "smoothing.losses",
        [{"cosine": 1}, {"cosine": 0.5}],
        ["smoothing.losses", "cosine twice", "accepted: once"],
    ),
    (
        "smoothing.best",
        {"contrastive": 2, "mixing": 1},
        ["smoothing.losses", "contrastive+mixing", "`best`"],
    ),
    (
        "finetune.validation_orders",
        "trained",
        ["finetune.validation_orders", "'trained'", "accepted: all"],
    ),
    ("smoothing.kwargs", {"depth": 6}, ["smoothing.kwargs.depth", "6", "smoothing.depths"]),
    (
        "models.vit_micro.smoothing.kwargs",
        {"patch_size": 28},
        ["smoothing", "patch_size 28", "2 patches or more"],
    ),
    ("smoothing.training", {"epoch": 3}, ["smoothing.training.epoch", "did you mean 'epochs'?"]),
    (
        "models.vit_micro.smoothing.training",
        {"batch_size": 9999, "images": None},
        ["training.batch_size", "9999", "at most 9000"],
    ),
    (
        "models.vit_micro.smoothing.kwargs",
        {"patch_size": 5},
        ["vit_micro.smoothing.kwargs.patch_size", "5", "divisor of img_size 28"],
    ),
    ("variants.trained", {"route": "sequential"}, ["variants", "trained"]),
    ("models.vit_micro.inversion.images", 2001, ["inversion.images", "2001", "at most 2000"]),
    ("inversion.variants", ["lss"], ["inversion.variants", "'lss'", "did you mean 'ls'?"]),
    (
        "inversion.optimisers",
        {"adam": {"method": "adm", "lrs": [1], "steps": 1}},
        ["inversion.optimisers.adam.method", "'adm'", "adam"],
    ),
    ("inversion.optimisers", {}, ["inversion.optimisers", "at least 1"]),
    (
        "inversion.optimisers",
        {"adam": {"method": "adam", "lrs": [0], "steps": 1}},
        ["inversion.optimisers.adam.lrs.0", "greater than 0"],
    ),
    (
        "models.vit_micro.inversion.families",
        {"vit": {"kwargs": {"depth": 2}}},
        ["inversion.families.vit", "timm", "None"],
    ),
    (
        "models.vit_micro.inversion.families",
        {"a b": {}},
        ["models.vit_micro.inversion.families", "a b"],
    ),
    (
        "models.vit_micro.inversion.families.vit_micro",
        {"timm": "mixer_custom"},
        ["inversion.families", "'vit_micro'", "another name"],
    ),
    ("inversion.met", 0, ["inversion.met", "0", "greater than 0"]),
    (
        "models.vit_micro.inversion.batch_size",
        0,
        ["inversion.batch_size", "0", "greater than or equal to 1"],
    ),
    ("inversion.depths", [0], ["inversion.depths.0", "0", "greater than or equal to 1"]),
    (
        "scales.minutes.inversion.families.vit.kwargs.num_heads",
        5,
        ["inversion.families.vit.kwargs.num_heads", "5", "divisor"],
    ),
    (
        "models.vit_micro.inversion.ablations",
        {"vitt": [["mlp"]]},
        ["inversion.ablations", "'vitt'", "did you mean 'vit'?"],
    ),
    (
        "models.vit_micro.inversion.ablations",
        {"vit": [["norm"]]},
        ["inversion.ablations.vit.0.0", "'norm'", "did you mean 'norms'?"],
    ),
    (
        "inversion.transplants",
        {"mixer": [["pos_embed"]]},
        ["inversion.transplants.mixer", "'pos_embed'", "patch_embed, norm1"],
    ),
    (
        "models.vit_micro.inversion.class_images",
        {"step": 3},
        ["inversion.class_images.step", "did you mean 'steps'?"],
    ),
    (
        "models.vit_micro.inversion.training",
        {"batch_size": 9999, "images": None},
        ["training.batch_size", "9999", "at most 9000"],
    ),
    (
        "models.vit_b16.inversion.image",
        3,
        ["models.vit_b16.inversion.image", "did you mean 'images'?"],
    ),
    ("variants.ls.finetune", {"baseline_epochs": 2}, ["baseline_epochs", "epochs"]),
    ("paper_figures.dpi", 99999, ["paper_figures.dpi", "99999"]),
    (
        "models.vit_micro.kwargs.num_heads",
        5,
        ["models.vit_micro.kwargs.num_heads", "5", "divisor of embed_dim 32"],
    ),
    (
        "models.vit_micro.kwargs.patch_size",
        5,
        ["models.vit_micro.kwargs.patch_size", "5", "divisor of img_size 28"],
    ),
    ("models.vit_micro.kwargs.depth", 0, ["models.vit_micro.kwargs.depth", "0", "at least 1"]),
    ("models.vit_micro.kwargs.embed_dim", "wide", ["models.vit_micro.kwargs.embed_dim", "'wide'"]),
    ("models.vit_b16.weights", "imagenet", ["models.vit_b16.weights", "'imagenet'", "safetensors"]),
    ("models.vit_b16.sha256", "abc", ["models.vit_b16.sha256", "'abc'"]),
    ("datasets.fashion_mnist_tiny.train", 0, ["datasets.fashion_mnist_tiny.train", "0"]),
    (
        "datasets.fashion_mnist.source",
        "debain",
        ["datasets.fashion_mnist.source", "'debain'", "embedded"],
    ),
    ("baseline", DELETE, ["baseline", "missing"]),
    ("variants", ["ls"], ["variants", "['ls']"]),
]


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "params.yaml").read_text())


def write(content: dict[str, Any], path: Path, key: str, value: Any) -> Path:
    content = copy.deepcopy(content)
    *parents, last = key.split(".")
    place = content
    for parent in parents:
        place = place.setdefault(parent, {})
    if value is DELETE:
        del place[last]
    else:
        place[last] = value
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value", "said"), WRONG, ids=[f"{i}-{key}" for i, (key, _, _) in enumerate(WRONG)]
)
def test_wrong_value_is_one_clear_line(
    content: dict[str, Any], tmp_path: Path, key: str, value: Any, said: list[str]
) -> None:
    path = write(content, tmp_path / "params.yaml", key, value)
    with pytest.raises(UserError) as error:
        check_layers(load(path, papers=PAPERS), 12)
    lines = str(error.value).splitlines()
    assert len(lines) == 1 or key in (
        "baseline.exits",
        "models.vit_micro.inversion.families.vit_micro",
    ), lines  # wrong elsewhere too
    assert all(line.startswith("params.yaml: ") for line in lines)
    assert [line for line in lines if all(part in line for part in said)], lines


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1", "not valid YAML"),
        ("[1]", "found list"),
        ("", "found NoneType"),
        ("a: 1\nb: {c: 1, c: 2}", "key 'c' stands twice .* line 2"),
        ("seeds: [0]\nseeds: [1]", "key 'seeds' stands twice"),
    ],
)
def test_broken_file(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(UserError, match=said) as error:
        load(tmp_path / "params.yaml", papers=PAPERS)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["1e-4", "1.0e-4", "0.0001", "'0.0001'", "1e-04"])
def test_numbers_written_in_any_way(content: dict[str, Any], tmp_path: Path, text: str) -> None:
    """PyYAML reads 1e-4 as text, DVC as a number, and DVC rewrites 0.00001 as 1e-05."""
    path = write(content, tmp_path / "params.yaml", "finetune.lr", "HERE")
    path.write_text(path.read_text().replace("HERE", text))
    assert load(path, papers=PAPERS).finetune.lr == 1e-4


def test_drop_written_as_text(content: dict[str, Any], tmp_path: Path) -> None:
    params = load(
        write(content, tmp_path / "params.yaml", "variants.layerdrop.route", {"drop": "1e-1"}),
        papers=PAPERS,
    )
    assert params.variants["layerdrop"].route == {"drop": 0.1}


def test_stage_ends_with_one_line_and_exit_code_2(content: dict[str, Any], tmp_path: Path) -> None:
    write(content, tmp_path / "params.yaml", "finetune.epoch", 3)
    done = subprocess.run(
        [sys.executable, "-m", "stages.check_params"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "did you mean 'epochs'?" in done.stderr
    assert not list(tmp_path.glob("outs"))


FAMILIES = "scales.minutes.inversion.families"
MODELS: list[
    tuple[str, Any, list[str]]
] = [  # of stage inversion, that are wrong, which params.yaml alone does not tell
    (
        f"{FAMILIES}.vit.timm",
        "vit_tiny_patch16_225",
        ["timm", "'vit_tiny_patch16_225'", "vit_tiny_patch16_224"],
    ),
    (f"{FAMILIES}.mixer.kwargs.depth", 6, ["mixer_custom", "'depth'"]),
    (
        f"{FAMILIES}.vit.kwargs.pos_embed",
        "none",
        ["transplants", "'pos_embed'", "it has none of that name"],
    ),
    (
        f"{FAMILIES}.mixer",
        {"timm": "gmlp_s16_224", "kwargs": {"img_size": 224}},
        ["ablations", "SpatialGatingBlock", "ResMLP"],
    ),
    (
        "inversion.depths",
        [1, 7],
        ["inversion.depths", "7", "at most 6"],
    ),  # as many layers as its families; the chosen model has 12
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value", "said"), MODELS, ids=[key.removeprefix(f"{FAMILIES}.") for key, *_ in MODELS]
)
def test_models_of_inversion_are_tried_before_any_compute(
    content: dict[str, Any], tmp_path: Path, key: str, value: Any, said: list[str]
) -> None:
    params = load(write(content, tmp_path / "params.yaml", key, value), papers=PAPERS)
    with pytest.raises(UserError) as error:
        build(params)
    message = str(error.value)
    assert "\n" not in message
    for part in said:
        assert part in message


@pytest.mark.slow
@pytest.mark.parametrize("model", ["vit_micro", "vit_pico"])
def test_models_of_inversion_that_can_be_made(
    content: dict[str, Any], tmp_path: Path, model: str
) -> None:
    """Those of the presets, with a depth that all of them have."""
    depth = {"vit_micro": 6, "vit_pico": 2}[model]
    params = load(
        write(content | {"model": model}, tmp_path / "params.yaml", "inversion.depths", [depth]),
        papers=PAPERS,
    )
    build(params)
    with (
        pytest.raises(
            UserError, match=f"inversion.depths: found {depth}, accepted: at most {depth - 1} "
        ),
        torch.device("meta"),
    ):
        # The chosen model counts, too.
        raise_all(checks.build(params, SimpleNamespace(blocks=[None] * (depth - 1))))


@pytest.mark.slow
def test_stage_refuses_models_of_inversion(
    content: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """In one line, without leaving anything that would pass for a check."""
    write(content, tmp_path / "params.yaml", "inversion.depths", [1, 7])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(
        "error: params.yaml: inversion.depths: found 7, accepted: at most 6"
    )
    assert not list(tmp_path.glob("outs"))


def test_families_of_inversion_have_the_chosen_models_sizes(
    content: dict[str, Any], tmp_path: Path
) -> None:
    """Of images, where they have none of their own; without keys they are the chosen model."""
    own: dict[str, Any] = {
        "timm": "mixer_custom",
        "kwargs": {"img_size": 14, "patch_size": 7, "embed_dim": 8},
    }
    families: dict[str, Any] = {
        "own": own,
        "mixer": own | {"kwargs": {"patch_size": 7}},
        "chosen": {},
    }
    changed = copy.deepcopy(content)
    changed["scales"]["minutes"]["inversion"] |= {
        "ablations": {},
        "transplants": {},
        "families": families,
    }
    changed["inversion"] |= {"families": {"chosen": {}}, "ablations": {}, "transplants": {}}
    changed["models"]["vit_micro"]["kwargs"] |= {"in_chans": 3}
    params = load(write(changed, tmp_path / "params.yaml", "device", "auto"), papers=PAPERS)
    assert family_preset(params, "own").kwargs == own["kwargs"] | {"in_chans": 3}
    assert family_preset(params, "mixer").kwargs == {"img_size": 28, "in_chans": 3, "patch_size": 7}
    assert family_preset(params, "chosen") == params.model_preset


@pytest.mark.slow
def test_resolution_order(content: dict[str, Any], tmp_path: Path) -> None:
    """Section < model preset < data-set preset < variant; where scales come in: test_scales.py."""
    path = tmp_path / "params.yaml"

    def lr(**changes: Any) -> tuple[float, str]:
        changed = copy.deepcopy(content) | {"model": "vit_b16", "dataset": "fashion_mnist"}
        for key, value in changes.items():
            write(changed, path, key.replace("__", "."), value)
            changed = yaml.safe_load(path.read_text())
        write(changed, path, "device", "auto")
        params = load(path, papers=PAPERS)
        value = params.values(Finetune, "ls")["lr"]
        assert params.resolve(Finetune, "ls").lr == value.value
        return value

    section = {"finetune__lr": 0.1}
    model = section | {"models__vit_b16__finetune__lr": 0.2}
    dataset = model | {"datasets__fashion_mnist__finetune": {"lr": 0.3}}
    variant = dataset | {"variants__ls__finetune": {"lr": 0.4}}
    assert lr(**section) == (0.1, "finetune")
    assert lr(**model) == (0.2, "models.vit_b16.finetune")
    assert lr(**dataset) == (0.3, "datasets.fashion_mnist.finetune")
    assert lr(**variant) == (0.4, "variants.ls.finetune")


def test_baseline_epochs(content: dict[str, Any], tmp_path: Path) -> None:
    params = load(
        write(content, tmp_path / "params.yaml", "finetune.baseline_epochs", 1), papers=PAPERS
    )
    assert params.resolve(Finetune, "baseline").epochs == 1
    assert params.resolve(Finetune, "ls").epochs != 1


def test_paper_values_are_the_sections_values(content: dict[str, Any], tmp_path: Path) -> None:
    """Without a micro preset's overrides, refinement is the paper's (section 4)."""
    params = load(write(content, tmp_path / "params.yaml", "model", "vit_b16"), papers=PAPERS)
    options = params.resolve(Finetune, "ls_pred")
    assert (options.optimizer, options.betas, options.eps, options.lr) == (
        "adam",
        (0.9, 0.999),
        1e-6,
        1e-4,
    )
    assert (options.schedule, options.position_weight, options.epochs) == ("constant", 1.0, 20)


@pytest.mark.slow
def test_every_preset_resolves(content: dict[str, Any], tmp_path: Path) -> None:
    sections: list[type[Section]] = [
        Pretrain,
        Finetune,
        *(section for paper in PAPERS for section in paper.sections),
    ]
    for model in content["models"]:
        for dataset in content["datasets"]:
            changed = copy.deepcopy(content) | {"model": model}
            if content["datasets"][dataset]["source"] in COLOURED:
                changed["models"][model].setdefault("kwargs", {})["in_chans"] = 3
            params = load(
                write(changed, tmp_path / "params.yaml", "dataset", dataset), papers=PAPERS
            )
            assert all(params.resolve(section) for section in sections)


def test_protocol_heldout_needs_held_out_images(content: dict[str, Any], tmp_path: Path) -> None:
    changed = content | {"protocol": "heldout"}
    changed["datasets"] = changed["datasets"] | {"fashion_mnist_10k": {"source": "embedded"}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(changed))
    with pytest.raises(
        UserError,
        match=r"protocol: found 'heldout', accepted: paper .*datasets\.fashion_mnist_10k\.heldout",
    ):
        load(tmp_path / "params.yaml", papers=PAPERS)


def test_held_out_images_leave_some_to_train_on(content: dict[str, Any], tmp_path: Path) -> None:
    changed = content | {"dataset": "fashion_mnist_tiny"}
    tiny = changed["datasets"]["fashion_mnist_tiny"]
    changed["datasets"] = changed["datasets"] | {"fashion_mnist_tiny": tiny | {"heldout": 512}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(changed))
    with pytest.raises(
        UserError, match=r"datasets\.fashion_mnist_tiny\.heldout: found 512, accepted: at most 511"
    ):
        load(tmp_path / "params.yaml", papers=PAPERS)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"finetune": {"lr": 0.0031}},
            [
                "finetune.lr: 0.0031 has no effect with this scale, model and data set: models.vit_micro.finetune says lr"
            ],
        ),
        ({"finetune": {"precision": "fp32"}}, []),
        ({"models": {"vit_micro": {"finetune": {"lr": 0.0031}}}}, []),
        (
            {"scales": {"minutes": {"finetune": {"lr": 0.0031}}}},
            ["scales.minutes.finetune.lr: 0.0031 has no effect"],
        ),
        (
            {"model": "vit_pico", "scale": "smoke", "exits": {"epochs": 77}},
            ["exits.epochs: 77 has no effect"],
        ),
    ],
)
def test_changes_without_effect_are_said(
    content: dict[str, Any], tmp_path: Path, changes: dict[str, Any], said: list[str]
) -> None:
    def merged(into: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        return into | {
            k: merged(into.get(k, {}), v) if isinstance(v, dict) else v for k, v in given.items()
        }

    (tmp_path / "params.yaml").write_text(yaml.safe_dump(merged(content, changes)))
    found = describe_overruled(
        parse(tmp_path / "params.yaml", papers=PAPERS), load(ROOT / "params.yaml", papers=PAPERS)
    )
    assert len(found) == len(said)
    assert all(line.startswith(start) for line, start in zip(found, said, strict=True))


def test_what_nobody_set_is_lowered_to_the_images(content: dict[str, Any], tmp_path: Path) -> None:
    """60 images to train on, 40 to validate on: values of sections and scales fit, and say so; what a preset or variant says is refused."""
    own = {"fashion_mnist_tiny": {"source": "embedded", "train": 60, "validation": 40}}
    changed = content | {"dataset": "fashion_mnist_tiny", "datasets": content["datasets"] | own}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(changed))
    params = load(tmp_path / "params.yaml", papers=PAPERS)
    assert (
        params.resolve(Finetune, "ls").batch_size
        == params.resolve(Pretrain).batch_size
        == params.resolve(Exits).batch_size
        == 60
    )
    assert params.resolve(Analysis).images == 40
    assert params.scratch_training(Smoothing).batch_size == 32
    said = describe_lowered(params)
    assert (
        "finetune.batch_size: 120 (from scales.minutes.finetune) lowered to 60, the images there are"
        in said
    )
    assert {line.split(":")[0] for line in said} == {
        "finetune.batch_size",
        "pretrain.batch_size",
        "exits.batch_size",
        "analysis.images",
    }
    assert describe_lowered(load(ROOT / "params.yaml", papers=PAPERS)) == []
    own["fashion_mnist_tiny"] |= {"finetune": {"batch_size": 61}, "analysis": {"images": 41}}
    changed |= {
        "variants": changed["variants"]
        | {"ls": {"route": "arbitrary", "finetune": {"batch_size": 62}}}
    }
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(changed))
    with pytest.raises(UserError) as error:
        load(tmp_path / "params.yaml", papers=PAPERS)
    preset, variant, analysis = str(error.value).splitlines()  # all at once
    assert (
        "datasets.fashion_mnist_tiny.finetune.batch_size: found 61, accepted: at most 60" in preset
    )
    assert "variants.ls.finetune.batch_size: found 62, accepted: at most 60" in variant
    assert "analysis.images: found 41, accepted: at most 40" in analysis


def test_fifteen_validation_images_are_enough(content: dict[str, Any], tmp_path: Path) -> None:
    """The neighbours follow the images that are there, where nobody set them; beside a number of images that was set they are refused."""
    own = {"source": "embedded", "train": 30, "validation": 15}
    for options, said in (
        ({}, ""),
        ({"neighbors": 15}, "found 15, accepted: at most 14"),
        ({"images": 14}, "found 15, accepted: at most 13"),
    ):
        tiny = {"fashion_mnist_tiny": own | {"analysis": options}}
        (tmp_path / "params.yaml").write_text(
            yaml.safe_dump(
                content | {"dataset": "fashion_mnist_tiny", "datasets": content["datasets"] | tiny}
            )
        )
        if said:
            with pytest.raises(UserError, match=f"analysis.neighbors: {said} [^\n]*$"):
                load(tmp_path / "params.yaml", papers=PAPERS)
        else:
            params = load(tmp_path / "params.yaml", papers=PAPERS)
            assert (
                "analysis.neighbors: 15 (from analysis) lowered to 14, the images there are"
                in describe_lowered(params)
            )
            assert (params.resolve(Analysis).images, params.resolve(Analysis).neighbors) == (15, 14)


def test_mistakes_of_several_sections_are_said_at_once(
    content: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """Those of the papers' checks, of variants, of protocol and folder, of the machine: by the stage, in one run."""
    scale = content["scales"]["minutes"]
    changed = content | {
        "dataset": "image_folder",
        "protocol": "heldout",
        "device": "cuda",
        "analysis": content["analysis"] | {"neighbors": 1000, "images": 500},
        "scales": content["scales"]
        | {"minutes": scale | {"smoothing": scale["smoothing"] | {"talking_heads": [7]}}},
        "variants": content["variants"]
        | {"ls": {"route": "arbitrary", "finetune": {"per": "sample"}}},
    }
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(changed))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    for words in (
        "protocol: found 'heldout'",
        "analysis.neighbors: found 1000",
        "smoothing.talking_heads: found 7",
        "ls: finetune.per belongs to",
        "models.vit_micro.kwargs.in_chans: found 1",
        "datasets.image_folder.folder: found 'images', which is no folder",
        "device: found 'cuda'",
    ):
        assert [line for line in lines if f"error: params.yaml: {words}" in line], words
    assert not list(tmp_path.glob("outs"))


def test_each_mistake_is_named_where_it_stands(content: dict[str, Any], tmp_path: Path) -> None:
    changed = content | {
        "models": content["models"]
        | {"vit_micro": content["models"]["vit_micro"] | {"finetune": {"lr": -1, "images": "many"}}}
    }
    changed["scales"] = changed["scales"] | {
        "minutes": changed["scales"]["minutes"]
        | {"models": {"vit_micro": {"finetune": {"epochs": 0}}}}
    }
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(changed))
    with pytest.raises(UserError) as error:
        load(tmp_path / "params.yaml", papers=PAPERS)
    keys = {line.split(": ")[1] for line in str(error.value).splitlines()}
    assert keys == {
        "models.vit_micro.finetune.lr",
        "models.vit_micro.finetune.images",
        "scales.minutes.models.vit_micro.finetune.epochs",
    }


def test_all_mistakes_are_said_at_once(content: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(
        yaml.safe_dump(content | {"devise": "cpu", "seeds": [], "protocol": "papre"})
    )
    with pytest.raises(UserError) as error:
        load(tmp_path / "params.yaml", papers=PAPERS)
    lines = str(error.value).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["seeds", "protocol", "devise"]
    assert all(line.startswith("params.yaml: ") for line in lines)


def test_presets_change_single_keys_of_the_trainings_of_smoothing(
    content: dict[str, Any], tmp_path: Path
) -> None:
    params = load(ROOT / "params.yaml", papers=PAPERS)
    values = params.scratch_values(Smoothing)
    assert values["lr"] == (0.003, "scales.minutes.smoothing.training")
    assert values["validation_orders"] == ("trained", "smoothing.training")
    assert values["eps"] == (params.pretrain.eps, "pretrain")
    published = content | {"scale": "published"}  # that of minutes has another recipe
    changed = write(
        published, tmp_path / "params.yaml", "models.vit_micro.smoothing.recipe", {"mixup": 0.5}
    )
    assert load(changed, papers=PAPERS).resolve(
        Smoothing
    ).recipe == params.smoothing.recipe.model_copy(update={"mixup": 0.5})


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [["finetune.batch_size=64"], ["scales.minutes.smoothing.training.epochs=6"]]
)
def test_dvc_rewrites_the_file_without_changing_more(tmp_path: Path, overrides: list[str]) -> None:
    """`dvc exp run -S` writes the whole file anew; its writer garbles some YAML, such as a comment behind the key of a list."""
    from dvc.utils.hydra import apply_overrides

    file = tmp_path / "params.yaml"
    shutil.copy(ROOT / "params.yaml", file)
    apply_overrides(file, overrides)
    changed, original = (
        load(file, papers=PAPERS).model_dump(),
        load(ROOT / "params.yaml", papers=PAPERS).model_dump(),
    )
    *parents, last = overrides[0].split("=")[0].split(".")
    place, before = changed, original
    for parent in parents:
        place, before = place[parent], before[parent]
    assert place.pop(last) != before.pop(last)
    assert changed == original


def test_a_preset_written_down_has_no_empty_sections() -> None:
    """Else a new section would change the identity of every job, and train everything anew."""
    params = load(ROOT / "params.yaml", papers=PAPERS)
    config = run_config(params, "ls", params.variants["ls"], "data", None)
    assert config["model"].model_dump().keys() == ModelPreset.model_fields.keys()
    assert ModelPreset.model_fields.keys() & whole(PAPERS).model_fields.keys() == {
        "scale"
    }  # which is no section
    preset = params.models[params.model]
    assert preset.model_dump()["exits"] == preset.exits != {}
