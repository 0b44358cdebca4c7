"""How much order matters: each change of it, the similarity of layers, the figure, the command."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from torch import Tensor

import lsvit
from lsvit import cli
from lsvit.scanning import find_targets, similarity
from tests.models import images, small

TARGETS = torch.arange(10) % 7


def batches() -> list[tuple[Tensor, Tensor]]:
    return [(images(10)[:5], TARGETS[:5]), (images(10)[5:], TARGETS[5:])]


def answers(route: lsvit.Route) -> Tensor:
    with torch.no_grad():
        return lsvit.RoutedModel(small())(images(10), route).argmax(-1)


CHANGED: dict[str, list[lsvit.Route]] = {
    "without i": [(1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2)],
    "i twice": [(0, 0, 1, 2, 3), (0, 1, 1, 2, 3), (0, 1, 2, 2, 3), (0, 1, 2, 3, 3)],
    "i after i+1": [(1, 0, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2)],
}


def test_every_change_is_what_its_order_gives(capsys: pytest.CaptureFixture[str]) -> None:
    result = lsvit.scan(small(), batches(), orders=2, seed=5)
    plain = answers((0, 1, 2, 3))
    assert result.accuracy is not None
    assert result.accuracy["original"] == [pytest.approx(float((plain == TARGETS).float().mean()))]
    for change, routes in CHANGED.items():
        for layer, route in enumerate(routes):
            changed = answers(route)
            agreement = float((changed == plain).float().mean())
            accuracy = float((changed == TARGETS).float().mean())
            assert result.agreement[change][layer] == pytest.approx(agreement), (change, layer)
            assert result.accuracy[change][layer] == pytest.approx(accuracy), (change, layer)
    placed = result.agreement["first i in place"]
    assert len(placed) == 3
    for layer, share in enumerate(placed):
        shares = []
        for number in range(2):
            rng = lsvit.generator("scan", 5, layer, number)
            route = lsvit.fix_first(layer)(rng, 4)
            shares.append(float((answers(route) == plain).float().mean()))
        assert share == pytest.approx(sum(shares) / 2)
    title, head, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith("accuracy, %")
    assert len(rows) == 4
    assert head.split()[0] == "i"


def test_without_targets_there_is_the_agreement_alone(capsys: pytest.CaptureFixture[str]) -> None:
    result = lsvit.scan(small(), images(10).split(5), orders=2, seed=5)
    assert result.accuracy is None
    assert result.agreement == lsvit.scan(small(), batches(), orders=2, seed=5).agreement
    assert capsys.readouterr().out.startswith("images with the same answer")


def test_position_parts_run_no_layer_twice() -> None:
    model = lsvit.RoutedModel(small(), lsvit.Position(encode=lsvit.Encode()))
    assert "i twice" not in lsvit.scan(model, batches(), orders=1).agreement


def test_similarity_is_the_unbiased_cka() -> None:
    """Nguyen et al., 2021, equation 3, in plain sums over one batch."""
    model = small()
    n = 10
    states = []
    for depth in range(1, 5):
        with torch.no_grad():
            states.append(lsvit.RoutedModel(model).tokens(images(n), tuple(range(depth))))
    features = [state.flatten(1).double() for state in states]

    def hsic(a: Tensor, b: Tensor) -> float:
        k, m = a @ a.T, b @ b.T
        k.fill_diagonal_(0)
        m.fill_diagonal_(0)
        ones = torch.ones(n, dtype=torch.float64)
        total = torch.trace(k @ m) + (ones @ k @ ones) * (ones @ m @ ones) / ((n - 1) * (n - 2))
        return float(total - 2 / (n - 2) * (ones @ k @ m @ ones)) / (n * (n - 3))

    measured = similarity(model, [images(n), images(3)], "blocks")  # three are too few
    for i, a in enumerate(features):
        for j, b in enumerate(features):
            expected = hsic(a, b) / (hsic(a, a) * hsic(b, b)) ** 0.5
            assert float(measured[i, j]) == pytest.approx(expected, rel=1e-4), (i, j)
    assert not any(block._forward_hooks for block in model.blocks)
    with pytest.raises(ValueError, match="found no batch of 4 images"):
        similarity(model, [images(3)], "blocks")


def test_a_classifier_with_a_key_value_cache_runs_layers_twice() -> None:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    config: Any = GPT2Config(vocab_size=30, n_positions=20, n_embd=16, n_layer=3, n_head=2)
    config.pad_token_id = 1
    model = GPT2ForSequenceClassification(config)
    assert model.config.use_cache
    result = lsvit.scan(model, [torch.arange(2, 26).view(4, 6)], orders=1)
    assert len(result.agreement["i twice"]) == 3
    assert model.config.use_cache


def test_what_cannot_be_scanned_is_refused_before_it_runs() -> None:
    with pytest.raises(ValueError, match="orders: found 0, accepted: at least 1"):
        lsvit.scan(small(), batches(), orders=0)
    once = iter(batches())
    with pytest.raises(ValueError, match="found list_iterator, accepted: what can be read twice"):
        lsvit.scan(small(), once)
    assert len(list(once)) == 2


# ---- targets of a folder -----------------------------------------------------------------------

CLOTHES = [Path("x/Shirt/1.png"), Path("x/Bag/deep/2.png"), Path("x/T-shirt_top/3.png")]


def test_folders_are_classes_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    model = small(num_classes=4)
    targets = find_targets(model, ["T-shirt/top", "Coat", "Shirt", "Bag"], Path("x"), CLOTHES)
    assert targets is not None
    assert targets.tolist() == [2, 3, 0]
    imagenet = [Path("n01484850/1.png"), Path("n01440764/2.png")]
    targets = find_targets(small(num_classes=1000), [], Path(), imagenet)
    assert targets is not None
    assert targets.tolist() == [2, 0]
    accents = [Path("e\u0301/1.png"), Path("\xe9t\xe9/2.png")]  # as macOS writes them, and Linux
    targets = find_targets(model, ["e\u0301t\xe9", "\xe9", "x", "y"], Path(), accents)
    assert targets is not None
    assert targets.tolist() == [1, 0]
    assert capsys.readouterr().out == ""


def test_folders_of_a_model_without_names_are_classes_by_the_alphabet() -> None:
    targets = find_targets(small(num_classes=3), [], Path("x"), CLOTHES)
    assert targets is not None
    assert targets.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("num_classes", "classes", "files", "message"),
    [
        (3, ["Bag", "Coat", "Shirt"], CLOTHES, "x/T-shirt_top, accepted: Bag, Coat, Shirt"),
        (4, [], CLOTHES, "x/Bag, accepted: 4 folders, one a class"),
        (3, [], [*CLOTHES[:2], Path("x/loose.png")], "found images in x, accepted: 3 folders"),
        (1000, ["crane"] * 2, [Path("x/crane/1.png")], "x/crane, accepted: n01440764"),
    ],
)
def test_folders_that_are_no_classes_give_no_accuracy(
    num_classes: int,
    classes: list[str],
    files: list[Path],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert find_targets(small(num_classes=num_classes), classes, Path("x"), files) is None
    printed = capsys.readouterr().out
    assert message in printed
    assert printed.count("\n") == 1


# ---- the command -------------------------------------------------------------------------------


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    kwargs: dict[str, Any] = {"img_size": 28, "patch_size": 14, "embed_dim": 16, "depth": 3}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=2, num_heads=2, **kwargs)
    kwargs["num_heads"] = 2
    folder = tmp_path / "vit"
    timm.models.save_for_hf(model, str(folder), model_args=kwargs, safe_serialization=True)
    for number in range(12):
        file = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (30, 40), (20 * number, 90, 9)).save(file)
    return tmp_path


def test_the_command_prints_a_table_and_writes_a_figure(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = exported / "scan.png"
    words = ["scan", str(exported / "vit"), "--data", str(exported / "photos"), "--orders", "1"]
    cli.run([*words, "--figure", str(figure), "--images", "6"])
    printed, said = capsys.readouterr()
    assert "its outputs are the folders: a, b" in said  # two folders, two classes
    assert printed.startswith("accuracy, %")
    assert f"{figure}: written" in printed
    with Image.open(figure) as image:
        assert image.size[0] > 500
    words[3] = str(exported / "photos" / "a")
    cli.run([*words, "--figure", str(figure)])
    reason, title = capsys.readouterr().out.splitlines()[:2]
    assert reason.startswith("no accuracy")
    assert title.startswith("images with the same answer")


def test_hidden_and_broken_files_are_named_and_left_out(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = exported / "photos"
    words = ["scan", str(exported / "vit"), "--data", str(photos), "--orders", "1"]
    words += ["--figure", str(exported / "scan.png")]
    cli.run(words)
    expected = capsys.readouterr().out
    for name in ("._1.png", ".thumbs/2.png", "b/broken.png"):
        (photos / name).parent.mkdir(exist_ok=True)
        (photos / name).write_bytes(b"no")
    cli.run(words)
    hidden, broken, rest = capsys.readouterr().out.split("\n", 2)
    assert hidden.endswith("photos: left out: 2 hidden (._1.png)")
    assert broken.startswith(f"left out: {photos / 'b' / 'broken.png'}: not an image")
    assert rest == expected


def test_the_models_order_of_classes_is_that_of_the_accuracy(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The classes are not in alphabetical order, so each target is the other one."""
    words = ["scan", str(exported / "vit"), "--data", str(exported / "photos"), "--orders", "1"]
    words += ["--figure", str(exported / "scan.png"), "--blocks", "backbone.blocks"]
    (exported / "photos" / "b" / "1.png").unlink()  # else one answer for all is half right
    cli.run(words)
    by_alphabet = capsys.readouterr().out.splitlines()[0]
    config = exported / "vit" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"label_names": ["b", "a"]}))
    cli.run(words)
    by_name = capsys.readouterr().out.splitlines()[0]
    shares = [float(title.split()[-1]) for title in (by_alphabet, by_name)]
    assert sum(shares) == pytest.approx(100, abs=0.1)
    assert shares[0] != shares[1]


def test_without_matplotlib_a_line_says_so(
    exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    cli.run(["scan", str(exported / "vit"), "--data", str(exported / "photos"), "--orders", "1"])
    assert "no figure: matplotlib is not installed" in capsys.readouterr().out


def test_a_clone_has_the_same_command(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from stages.commands import app

    monkeypatch.chdir(exported)
    words = ["scan", "vit", "--data", "photos", "--orders", "1", "--images", "8"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "scan.png: written" in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no_such_model", "--data", "photos"], "error: no_such_model: not an exported folder"),
        (["vit", "--data", "vit"], "error: vit: found no image"),
        (["vit", "--data", "broken"], "error: broken: found no image that can be read"),
        (["no_such_model", "--data", "vit"], "error: vit: found no image"),  # before it is opened
        (["vit", "--data", "photos", "--images", "0"], "--images: found 0, accepted: at least 1"),
        (["vit", "--data", "photos", "--figure", "no/scan.png"], "no/scan.png: found no folder no"),
        (["vit", "--data", "photos", "--blocks", "blocks"], "blocks: found 'blocks'"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    message: str,
    exported: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(exported)
    Path("broken").mkdir()
    Path("broken/a.png").write_bytes(b"no")
    with pytest.raises(SystemExit) as ended:
        cli.run(["scan", *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
