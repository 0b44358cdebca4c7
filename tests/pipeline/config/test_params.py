"""params.yaml: wrong values end in one line before any compute; values resolve and are lowered."""

import itertools
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from papers import PAPERS
from papers.exits.section import Exits
from papers.inversion.compute.presets import family_preset
from papers.layershuffle.section import Analysis
from papers.smoothing.section import Smoothing
from pipeline.config.checks import check_layers
from pipeline.config.load import load, parse
from pipeline.config.params import Params
from pipeline.config.remarks import describe_lowered, describe_overruled
from pipeline.config.sections import Finetune, Pretrain
from pipeline.errors import UserError
from stages.check_params import build, main
from tests.conftest import ALL_SECTIONS, ROOT, cases_of, refused
from tests.pipeline.config.conftest import DELETE, Load

CASES = cases_of(__file__)

Write = Callable[[dict[str, Any]], Path]
WRONG = yaml.safe_load(Path(__file__).with_name("wrong.yaml").read_text())
SEVERAL = ("baseline.exits", "models.vit_micro.inversion.families.vit_micro", "scales")


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG, ids=lambda case: case["key"])
def test_a_wrong_value_is_one_clear_line(case: dict[str, Any], changed: Load) -> None:
    values = case.get("with", {}) | {case["key"]: case.get("value", DELETE)}
    check = build if case.get("build") else partial(check_layers, num_layers=12)
    with pytest.raises(UserError) as error:
        check(changed(values))
    lines = str(error.value).splitlines()
    assert len(lines) == 1 or case["key"] in SEVERAL, lines
    assert all(line.startswith("params.yaml: ") for line in lines) or case.get("build")
    assert [line for line in lines if all(words in line for words in case["says"])], lines


@pytest.mark.parametrize(("text", "message"), CASES["broken"])
def test_broken_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with refused(message):
        load(tmp_path / "params.yaml", papers=PAPERS)


@pytest.mark.parametrize("text", ["1e-4", "1.0e-4", "0.0001", "'0.0001'", "1e-04"])
def test_numbers_written_in_any_way(write: Write, text: str) -> None:
    """PyYAML reads 1e-4 as text, DVC as a number, and DVC rewrites 0.00001 as 1e-05."""
    path = write({"finetune.lr": "HERE"})
    path.write_text(path.read_text().replace("HERE", text))
    assert load(path, papers=PAPERS).finetune.lr == 1e-4


def test_families_of_inversion_have_the_chosen_models_sizes(changed: Load) -> None:
    """Of images, where they have none of their own; without keys they are the chosen model."""
    own = {"img_size": 14, "patch_size": 7, "embed_dim": 8}
    families = {
        "own": {"timm": "mixer_custom", "kwargs": own},
        "mixer": {"timm": "mixer_custom", "kwargs": {"patch_size": 7}},
        "chosen": {},
    }
    empty: dict[str, Any] = {"families": {"chosen": {}}, "ablations": {}, "transplants": {}}
    params = changed(
        {f"inversion.{key}": value for key, value in empty.items()}
        | {"scales.minutes.inversion": empty | {"families": families}}
        | {"models.vit_micro.kwargs.in_chans": 3}
    )
    assert family_preset(params, "own").kwargs == own | {"in_chans": 3}
    assert family_preset(params, "mixer").kwargs == {"img_size": 28, "in_chans": 3, "patch_size": 7}
    assert family_preset(params, "chosen") == params.model_preset


def test_paper_values_are_the_sections_values(changed: Load) -> None:
    """Without a micro preset's overrides, refinement is the paper's (section 4)."""
    options = changed({"model": "vit_b16"}).resolve(Finetune, "ls_pred")
    assert (options.optimizer, options.betas, options.eps) == ("adam", (0.9, 0.999), 1e-6)
    assert (options.lr, options.schedule, options.epochs) == (1e-4, "constant", 20)
    assert options.position_weight == 1.0


def test_baseline_epochs(changed: Load) -> None:
    params = changed({"finetune.baseline_epochs": 1})
    assert params.resolve(Finetune, "baseline").epochs == 1
    assert params.resolve(Finetune, "ls").epochs != 1


@pytest.mark.slow
def test_every_preset_resolves(content: dict[str, Any], changed: Load) -> None:
    """Each model with each data set; the values of every one are checked when the file is read."""
    params = changed({f"models.{model}.kwargs.in_chans": 3 for model in content["models"]})
    for model, dataset in itertools.product(content["models"], content["datasets"]):
        chosen = params.model_copy(update={"model": model, "dataset": dataset})
        assert all(chosen.resolve(section) for section in ALL_SECTIONS)


@pytest.mark.parametrize(("values", "start"), CASES["overruled"])
def test_changes_that_something_nearer_overrules(
    write: Write, params: Params, values: dict[str, Any], start: str | None
) -> None:
    lines = describe_overruled(parse(write(values), papers=PAPERS), params)
    assert len(lines) == (start is not None)
    assert all(line.startswith(str(start)) for line in lines)


@pytest.mark.parametrize("scale", ["minutes", "big-one", "v1.5"])
def test_what_nobody_set_is_lowered_to_the_images(
    content: dict[str, Any], changed: Load, params: Params, scale: str
) -> None:
    """Values of sections and scales fit, and say so, whatever letters the scale's name has."""
    minutes = content["scales"]["minutes"] | {"finetune": {"batch_size": 120}}
    scales = content["scales"] | {scale: minutes}
    tiny = {"source": "embedded", "train": 60, "validation": 40}
    values = {"dataset": "tiny", "datasets.tiny": tiny, "scale": scale, "scales": scales}
    lowered = changed(values)
    assert lowered.resolve(Pretrain).batch_size == lowered.resolve(Exits).batch_size == 60
    assert lowered.resolve(Finetune, "ls").batch_size == 60
    assert lowered.resolve(Analysis).images == 40
    assert lowered.scratch_training(Smoothing).batch_size == 32
    lines = describe_lowered(lowered)
    was = f"finetune.batch_size: 120 (from scales.{scale}.finetune)"
    assert f"{was} lowered to 60, the images there are" in lines
    keys = {line.split(":")[0] for line in lines} - {"analysis.images"}
    assert keys == {f"{name}.batch_size" for name in ("finetune", "pretrain", "exits")}
    assert describe_lowered(params) == []


def test_fifteen_validation_images_are_enough(changed: Load) -> None:
    """The neighbours follow the images that are there, where nobody set either."""
    tiny = {"source": "embedded", "train": 30, "validation": 15}
    analysis = changed({"dataset": "tiny", "datasets.tiny": tiny}).resolve(Analysis)
    assert (analysis.images, analysis.neighbors) == (15, 14)


def test_mistakes_of_several_sections_are_told_at_once(
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of the papers, of variants, of protocol and folder, of the machine: in one run."""
    mistakes = CASES["at_once"]
    write({key: value for values, _ in mistakes for key, value in values.items()})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    for _, words in mistakes:
        assert [line for line in lines if f"error: params.yaml: {words}" in line], words
    assert not list(tmp_path.glob("outs"))


@pytest.mark.parametrize(("values", "starts"), CASES["named"])
def test_each_mistake_is_named_where_it_stands(
    changed: Load, values: dict[str, Any], starts: list[str]
) -> None:
    """What a preset or a variant sets is refused, not lowered."""
    with pytest.raises(UserError) as error:
        changed(values)
    for line, start in zip(sorted(str(error.value).splitlines()), sorted(starts), strict=True):
        assert line.startswith(f"params.yaml: {start}")


def test_dvc_rewrites_the_file_without_changing_more(write: Write) -> None:
    """`dvc exp run -S` writes the whole file anew; its writer garbles some YAML."""
    from dvc.utils.hydra import apply_overrides

    file = write({"scales.minutes.smoothing.training.epochs": 6})
    expected = yaml.safe_load(file.read_text())
    shutil.copy(ROOT / "params.yaml", file)
    apply_overrides(file, ["scales.minutes.smoothing.training.epochs=6"])
    assert yaml.safe_load(file.read_text()) == expected
