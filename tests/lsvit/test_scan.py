"""How much order matters: each change of it, the similarity of layers, the figure, the command."""

import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import lsvit
from lsvit import cli
from lsvit.evaluation import run_orders
from lsvit.scanning import find_targets, reusing_prefixes, similarity
from tests.conftest import Printed, cases_of, change_json, refused
from tests.lsvit.test_evaluate import BATCHES, IMAGES, TARGETS, Counted
from tests.models import images, of_transformers, save_vit, small

CASES = cases_of(__file__)


def answers(route: lsvit.Route) -> Tensor:
    with torch.no_grad():
        return lsvit.RoutedModel(small())(IMAGES, route).argmax(-1)


def test_every_change_is_what_its_order_gives(printed: Printed) -> None:
    result = lsvit.scan(small(), BATCHES, orders=2, seed=5)
    plain = answers((0, 1, 2, 3))
    routes: dict[str, list[list[lsvit.Route]]] = {
        "first i in place": [],
        "original": [[(0, 1, 2, 3)]],
    }
    for layer in range(3):
        draws = [lsvit.generator("scan", 5, layer, number) for number in range(2)]
        routes["first i in place"].append([lsvit.fix_first(layer)(rng, 4) for rng in draws])
    for change, by_layer in CASES["changed"].items():
        routes[change] = [[tuple(route)] for route in by_layer]
    assert result.accuracy is not None
    assert result.accuracy.keys() == routes.keys() == {*result.agreement, "original"}
    for found, right in ((result.accuracy, TARGETS), (result.agreement, plain)):
        for change, shares in found.items():
            for share, orders in zip(shares, routes[change], strict=True):
                hits = torch.stack([answers(route) == right for route in orders])
                assert share == pytest.approx(float(hits.float().mean())), change
    title, head, *rows = printed().splitlines()
    assert title.startswith("accuracy, %")
    assert len(rows) == 4
    assert head.split()[0] == "i"
    without_targets = lsvit.scan(small(), IMAGES.split(7), orders=2, seed=5)
    assert without_targets.accuracy is None
    assert without_targets.agreement == result.agreement


def test_first_blocks_run_once_for_a_batch_and_answers_stay() -> None:
    """In models whose blocks give tuples, write into their input, have parts, are shuffled."""
    in_place = small()
    for block in in_place.blocks:
        block.register_forward_pre_hook(lambda block, args: (args[0].mul_(1.5),))
    parts = lsvit.RoutedModel(small(), lsvit.Position(encode=lsvit.Encode()))
    shuffled = lsvit.RoutedModel(small())
    lsvit.shuffle(shuffled)
    kinds = [(of_transformers("Beit"), "beit.layers"), (in_place, "blocks")]
    kinds += [(parts, "backbone.blocks"), (shuffled, "backbone.blocks")]
    orders = [(0, 1, 2, 3), (0, 1, 3, 2), (0, 2, 3), (3, 1, 2, 0), (0, 1, 2, 3)]
    runs: list[nn.Module] = []
    for model, path in kinds:
        memory = torch.empty(4, 3, 16, 16 if path == "beit.layers" else 24)
        batches = torch.randn(2, *memory.shape)
        expected, _ = run_orders(model, batches, orders, path)
        runs.clear()
        for block in model.get_submodule(path):
            block.register_forward_hook(lambda block, *_: runs.append(block))
        in_one_memory = (memory.copy_(batch) for batch in batches)
        with reusing_prefixes(model, path) as prefix:
            answers, _ = run_orders(model, prefix.follow(in_one_memory), orders, path)
        assert torch.equal(answers, expected)
        assert len(runs) == 2 * (4 + 2 + 2 + 4 + 0)


def test_an_interrupted_scan_leaves_a_shuffled_model_as_it_was() -> None:
    model = small()
    lsvit.shuffle(model)
    names = list(model.state_dict())
    runs: list[nn.Module] = []

    def interrupt(block: nn.Module, *_: object) -> None:
        runs.append(block)
        if len(runs) == 20:
            raise KeyboardInterrupt

    model.blocks[3].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        lsvit.scan(model, BATCHES)
    assert list(model.state_dict()) == names
    lsvit.unshuffle(model)
    assert [type(block) for block in model.blocks] == [type(model.blocks[0])] * 4


def test_position_parts_run_no_layer_twice() -> None:
    model = lsvit.RoutedModel(small(), lsvit.Position(encode=lsvit.Encode()))
    assert "i twice" not in lsvit.scan(model, BATCHES, orders=1).agreement


@torch.no_grad()
def test_similarity_is_the_unbiased_cka() -> None:
    """Nguyen et al., 2021, equation 3, in plain sums over one batch."""
    model = small()
    n = 10
    states = lsvit.RoutedModel(model).states(images(n))
    _, *features = [state.flatten(1).double() for _, state in states]

    def hsic(a: Tensor, b: Tensor) -> float:
        k, m = a @ a.T, b @ b.T
        k.fill_diagonal_(0)
        m.fill_diagonal_(0)
        total = torch.trace(k @ m) + k.sum() * m.sum() / ((n - 1) * (n - 2))
        return float(total - 2 / (n - 2) * (k @ m).sum()) / (n * (n - 3))

    measured = similarity(model, [images(n), images(3)], "blocks")  # three are too few
    for i, a in enumerate(features):
        for j, b in enumerate(features):
            expected = hsic(a, b) / (hsic(a, a) * hsic(b, b)) ** 0.5
            assert float(measured[i, j]) == pytest.approx(expected, rel=1e-4), (i, j)
    assert not any(block._forward_hooks for block in model.blocks)


def test_a_classifier_with_a_key_value_cache_runs_layers_twice() -> None:
    model = of_transformers("GPT2", "ForSequenceClassification", num_hidden_layers=3)
    assert model.config.use_cache
    result = lsvit.scan(model, [torch.arange(2, 26).view(4, 6)], orders=1)
    assert len(result.agreement["i twice"]) == 3
    assert model.config.use_cache


def test_what_cannot_be_scanned_is_refused_before_it_runs() -> None:
    with refused("orders: found 0, accepted: at least 1", ValueError):
        lsvit.scan(small(), BATCHES, orders=0)
    with refused("seed: found -1, accepted: at least 0", ValueError):
        lsvit.scan(small(), BATCHES, seed=-1)
    once = iter(BATCHES)
    with refused("found list_iterator, accepted: what can be read again", ValueError):
        lsvit.scan(small(), once)
    assert len(list(once)) == 2


def test_blocks_that_are_not_called_have_no_outputs_to_compare() -> None:
    with refused("layers: found 0 calls of blocks", ValueError):
        similarity(Counted(inner=True), [torch.randn(5, 5)], "layers")


def test_batches_that_are_too_small_are_refused_after_one_pass() -> None:
    model = small()
    runs: list[None] = []
    model.register_forward_hook(lambda *_: runs.append(None))
    with refused("found no batch of 4 images", ValueError):
        lsvit.scan(model, IMAGES.split(3))
    assert len(runs) == 4


# ---- targets of a folder -----------------------------------------------------------------------


@pytest.mark.parametrize(("num_classes", "classes", "files", "expected", "said"), CASES["folders"])
def test_folders_are_classes(
    num_classes: int,
    classes: list[str],
    files: list[str],
    expected: list[int] | None,
    said: str,
    printed: Printed,
) -> None:
    """By name or, where a model has none, by the alphabet. A line says why there is no accuracy."""
    model = small(num_classes=num_classes)
    targets = find_targets(model, classes, Path("x"), [Path("x", file) for file in files])
    assert (targets if targets is None else targets.tolist()) == expected
    lines = printed()
    assert said in lines
    assert lines.count("\n") == bool(said)


# ---- the command -------------------------------------------------------------------------------


@pytest.fixture
def exported(here: Path) -> Path:
    """The working folder, with a model of two classes in `vit/` and images of both in `photos/`."""
    save_vit(here / "vit", 2)
    for number in range(12):
        file = here / "photos" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (30, 40), (20 * number, 90, 9)).save(file)
    return here


def scan(*words: str, data: str = "photos") -> None:
    """Run the command."""
    cli.run(["scan", "vit", "--data", data, "--orders", "1", *words])


def test_the_command_prints_a_table_and_writes_a_figure(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = str(exported / "figure.png")
    scan("--figure", figure, "--images", "6")
    printed, said = capsys.readouterr()
    assert "its outputs are the folders: a, b" in said  # two folders, two classes
    assert printed.startswith("accuracy, %")
    assert f"{figure}: written" in printed
    with Image.open(figure) as image:
        assert image.size[0] > 500
    scan(data=str(exported / "photos" / "a"))
    reason, title = capsys.readouterr().out.splitlines()[:2]
    assert reason.startswith("no accuracy")
    assert title.startswith("images with the same answer")


def test_hidden_and_broken_files_are_named_and_left_out(exported: Path, printed: Printed) -> None:
    scan()
    expected = printed()
    for name in ("._1.png", ".thumbs/2.png", "b/broken.png"):
        file = exported / "photos" / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"no")
    scan()
    hidden, broken, rest = printed().split("\n", 2)
    assert hidden.endswith("photos: left out: 2 hidden (._1.png)")
    assert broken.startswith("left out: photos/b/broken.png: not an image")
    assert rest == expected


def test_the_models_order_of_classes_is_that_of_the_accuracy(
    exported: Path, printed: Printed
) -> None:
    """The classes are not in alphabetical order, so each target is the other one."""
    (exported / "photos" / "b" / "1.png").unlink()  # else one answer for all is half right
    shares = []
    for changes in ({}, {"label_names": ["b", "a"]}):
        change_json(exported / "vit" / "config.json", changes)
        scan("--blocks", "backbone.blocks")
        title, *_ = printed().splitlines()
        shares.append(float(title.split()[-1]))
    assert sum(shares) == pytest.approx(100, abs=0.1)
    assert shares[0] != shares[1]


@pytest.mark.usefixtures("exported")
def test_without_matplotlib_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    scan()
    assert "no figure: matplotlib is not installed" in printed()


@pytest.mark.usefixtures("exported")
def test_a_clone_has_the_same_command() -> None:
    from typer.testing import CliRunner

    from stages.commands import app

    words = ["scan", "vit", "--data", "photos", "--orders", "1", "--images", "8"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "scan.png: written" in done.output


@pytest.mark.usefixtures("exported")
@pytest.mark.parametrize(("words", "message"), CASES["mistakes"])
def test_mistakes_are_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broken").mkdir()
    Path("broken/a.png").write_bytes(b"no")
    with pytest.raises(SystemExit) as ended:
        cli.run(["scan", *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
