"""What makes work the same work: which edits run which jobs again, and which run none."""

import re
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml

from papers import PAPERS
from pipeline.config.load import load
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.types import Added
from pipeline.jobs import identity
from pipeline.jobs.configs import RunConfig
from pipeline.jobs.files import DATA, starting_weights
from pipeline.jobs.identity import code_digest
from pipeline.jobs.job import TRAIN, Job
from tests.conftest import ROOT, cases_of, change_json, run_fields, shared
from tests.pipeline.jobs.listing import Listed, leave, listed

CASES = cases_of(__file__)
SEEDS = [0, 1]
NEW = "renamed"  # a variant with the weights of ls
Keys = dict[str, dict[str, str]]  # kind -> title -> key
Values = dict[str, Any]  # params.yaml
KeysWith = Callable[[Values], Keys]


def kinds_of(names: list[str]) -> set[str]:
    """The kinds that are named, each by itself or within a group."""
    groups = CASES["groups"]
    kinds = set()
    for name in names:
        kinds |= kinds_of(groups[name]) if name in groups else {name}
    return kinds


KINDS = kinds_of(["all"])


@pytest.fixture(scope="module")
def values() -> Values:
    """The repository's params.yaml with two seeds, and a variant with a paper's loss."""
    found: Values = yaml.safe_load((ROOT / "params.yaml").read_text())
    found["variants"]["ls_contrastive"] = {"route": "arbitrary", "losses": {"contrastive": 1.0}}
    found["smoothing"]["variants"].append("ls_contrastive")
    return found | {"seeds": SEEDS}


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory, values: Values) -> Path:
    """A folder with what the stages before left: prepared data, and weights as small files."""
    folder = tmp_path_factory.mktemp("stages")
    file = folder / "params.yaml"
    file.write_text(yaml.safe_dump(values | {"seeds": [*SEEDS, 2]}))
    leave(load(file, papers=PAPERS), folder, NEW)
    outs = folder / "outs" / "finetune"
    shutil.copytree(outs / "ls", outs / NEW, dirs_exist_ok=True)
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    return folder


@pytest.fixture(autouse=True)
def here(stages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs belong to the folder of the stages."""
    monkeypatch.chdir(stages)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))


@pytest.fixture(scope="module")
def jobs(stages: Path) -> Listed:
    """The jobs as params.yaml stands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(stages)
        return listed(load(papers=PAPERS))


def keys_of(jobs: Listed) -> Keys:
    """The keys, taken anew."""
    return {
        kind: {title: replace(job).key for title, job in of_kind.items()}
        for kind, of_kind in jobs.items()
    }


@pytest.fixture(scope="module")
def keys(jobs: Listed) -> Keys:
    """Their keys."""
    return keys_of(jobs)


def again(before: Keys, after: Keys) -> dict[str, set[str]]:
    """What would run, by kind: titles with a key that no job had before."""
    fresh = {
        kind: {title for title, key in found.items() if key not in before[kind].values()}
        for kind, found in after.items()
    }
    return {kind: titles for kind, titles in fresh.items() if titles}


@pytest.mark.slow
def test_every_plan_is_listed(jobs: Listed, keys: Keys) -> None:
    """None of the lists is empty, and jobs of two kinds are never the same."""
    assert jobs.keys() == KINDS
    assert all(jobs.values())
    distinct = [set(found.values()) for found in keys.values()]
    assert len(set.union(*distinct)) == sum(map(len, distinct))


# ---- edits of params.yaml -------------------------------------------------------------------


@pytest.fixture
def keys_with(tmp_path: Path) -> KeysWith:
    """Takes the keys with other values in params.yaml."""

    def take(values: Values) -> Keys:
        file = tmp_path / "params.yaml"
        file.write_text(yaml.safe_dump(values, sort_keys=False))
        return keys_of(listed(load(file, papers=PAPERS)))

    return take


def put(values: Values, key: str, value: Any) -> Values:
    """A copy of the values with another one at a place, "finetune.lr"."""
    found = deepcopy(values)
    *path, last = key.split(".")
    place = found
    for part in path:
        place = place.setdefault(part, {})
    assert place.get(last) != value
    place[last] = value
    return found


def rename(values: Any, old: str, new: str) -> Any:
    """The values with another name wherever one stands, as a key or alone."""
    if isinstance(values, dict):
        return {rename(key, old, new): rename(value, old, new) for key, value in values.items()}
    if isinstance(values, list):
        return [rename(value, old, new) for value in values]
    return new if values == old else values


@pytest.mark.parametrize(
    ("old", "new"), [("ls", NEW), ("vit_micro", "mine"), ("fashion_mnist_10k", "grey")]
)
def test_another_name_runs_nothing(
    values: Values, keys: Keys, keys_with: KeysWith, old: str, new: str
) -> None:
    """Of a variant, which keeps its keys under the new title, a model, a data set."""
    renamed = {}
    for kind, titles in keys.items():
        renamed[kind] = {re.sub(rf"\b{old}\b", new, title): key for title, key in titles.items()}
    assert keys_with(rename(values, old, new)) == renamed != keys


def test_a_new_variant_runs_itself_alone(values: Values, keys: Keys, keys_with: KeysWith) -> None:
    """Placed before all others."""
    more = {NEW: {"route": {"drop": 0.3}}} | values["variants"]
    fresh = again(keys, keys_with(values | {"variants": more}))
    assert fresh.keys() == {"finetune", "evaluation"}
    assert all(NEW in title for titles in fresh.values() for title in titles)


def test_a_new_seed_runs_itself_alone(values: Values, keys: Keys, keys_with: KeysWith) -> None:
    """Placed before all others. Class images are shown to the next seed's model: one is another.
    Merges take layers from all.
    """
    fresh = again(keys, keys_with(values | {"seeds": [2, *SEEDS]}))
    assert fresh.keys() == kinds_of(["trainings", "refined"])
    fresh.pop("merges")
    assert all("seed 2" in title or "seed 1" in title for title in fresh.pop("class images"))
    assert all("seed 2" in title for titles in fresh.values() for title in titles)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES["values"])
def test_a_value_runs_what_it_can_change(
    values: Values, keys: Keys, keys_with: KeysWith, case: str
) -> None:
    key, value, kinds = CASES["values"][case]
    after = keys_with(put(values, key, value))
    for kind in keys.keys() | after.keys():
        assert after[kind].keys() == keys[kind].keys()
    assert again(keys, after).keys() == kinds_of(kinds)
    if not kinds:
        assert after == keys


@pytest.mark.slow
def test_what_a_scale_says_counts_and_not_where(
    values: Values, keys: Keys, keys_with: KeysWith
) -> None:
    """A scale's name, the values of others, and the place of a value run nothing."""
    assert keys_with(rename(values, "minutes", "quick")) == keys
    assert keys_with(put(values, "scales.hours", {"pretrain": {"lr": 0.25}})) == keys
    painters = values["scales"]["minutes"]["painters"]
    moved = put(put(values, "models.vit_micro.painters", painters), "scales.minutes.painters", {})
    assert keys_with(moved) == keys


@pytest.fixture
def copied(stages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of what the stages before left, which a test may change."""
    shutil.copytree(stages, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")


@pytest.mark.usefixtures("copied")
def test_other_data_run_everything(keys: Keys) -> None:
    change_json(DATA / "meta.json", {"sha256": "6" * 64})
    assert again(keys, keys_of(listed(load(papers=PAPERS)))).keys() == KINDS


@pytest.mark.usefixtures("copied")
def test_other_weights_run_what_reads_them(jobs: Listed, keys: Keys) -> None:
    """Every seed has starting weights of its own, and is averaged with the others all the same."""
    starting_weights(0).write_text("others")
    anew = listed(load(papers=PAPERS))
    expected = {"analysis": {"pretrained seed 0"}}
    for kind in ("finetune", "exits", "head"):
        expected[kind] = {title for title in keys[kind] if "seed 0" in title}
    assert again(keys, keys_of(anew)) == expected
    records = []
    for found in (jobs, anew):
        first, second = (shared(found["finetune"][f"ls seed {seed}"]) for seed in SEEDS)
        assert first == second
        records.append(first)
    assert records[0] != records[1]


@pytest.mark.parametrize(("starts", "taken"), [(None, [4, 7, 5]), (2, [4, 7, 4]), (1, [4, 4, 4])])
def test_starting_weights_are_taken_in_turn(
    params: Params, starts: int | None, taken: list[int]
) -> None:
    """Where there are fewer sets than seeds. Published weights are one set."""
    pretrain = params.pretrain.model_copy(update={"seeds": starts})
    params = params.model_copy(update={"seeds": [4, 7, 5], "pretrain": pretrain})
    assert [params.start_of(seed) for seed in params.seeds] == taken
    assert params.starts == list(dict.fromkeys(taken))
    published = params.model_copy(update={"model": "vit_b16"})
    assert [published.start_of(seed) for seed in params.seeds] == [4, 4, 4]


# ---- edits of the code ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the packages that tests edit."""
    folder = tmp_path_factory.mktemp("edited")
    for name in identity.PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "ROOT", folder)
        yield folder
    code_digest.cache_clear()


def codes_of(jobs: Listed) -> Keys:
    """The digests of the jobs' code, taken anew: the rest of their keys stays."""
    code_digest.cache_clear()
    return {kind: {title: job.code for title, job in found.items()} for kind, found in jobs.items()}


def kinds_after(before: Keys, after: Keys) -> set[str]:
    """The kinds of jobs that would run now, "some <kind>" where others of the kind would not."""
    fresh = again(before, after)
    return {kind if fresh[kind] == after[kind].keys() else f"some {kind}" for kind in fresh}


def test_a_change_of_the_code_runs_what_it_can_change(source: Path, jobs: Listed) -> None:
    before = codes_of(jobs)
    found = {}
    for case, (file, old, new, _) in CASES["edits"].items():
        text = (source / file).read_text()
        assert old in text, f"{file} has no {old!r} any more: give the test another place to edit"
        (source / file).write_text(text.replace(old, new, 1))
        found[case] = kinds_after(before, codes_of(jobs))
        (source / file).write_text(text)
    assert found == {case: kinds_of(kinds) for case, (*_, kinds) in CASES["edits"].items()}


def test_what_no_job_runs_runs_nothing(source: Path, jobs: Listed) -> None:
    """Readers, plans, configuration, the tracker, a new file, new fields and sections."""
    before = codes_of(jobs)
    for pattern in CASES["not_run"]:
        files = list(source.glob(pattern))
        assert files, pattern
        for file in files:
            file.write_text(file.read_text() + "\n\ndef another() -> int:\n    return 0\n")
    (source / "lsvit" / "another.py").write_text("import torch\n")
    sections = [*source.glob("papers/*/section.py"), source / "pipeline" / "jobs" / "configs.py"]
    for file in sections:
        text = file.read_text() + "\n\nclass Another(Section):\n    brand_new: int = 3\n"
        file.write_text(re.sub(r"^(    \w+: \w+)$", r"    another: int = 3\n\1", text, flags=re.M))
    assert codes_of(jobs) == before


def test_another_version_runs_what_imports_it(
    jobs: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = codes_of(jobs)
    for library, kinds in CASES["libraries"].items():
        others = {library: "another"}
        monkeypatch.setattr(identity, "version", lambda name, o=others: o.get(name, version(name)))
        assert kinds_after(before, codes_of(jobs)) == kinds_of(kinds), library
    code_digest.cache_clear()


# ---- the processor --------------------------------------------------------------------------


@pytest.fixture
def job(pico: ModelPreset, prepared: Path) -> Callable[..., Job]:
    """A factory of jobs, on a model of this width."""

    def make(kind: type[RunConfig] = Measured, width: int = 32, **values: Any) -> Job:
        model = pico.model_copy(update={"kwargs": pico.kwargs | {"embed_dim": width}})
        return Job("t", TRAIN, kind(**run_fields(prepared, model, device="auto", **values)))

    return make


class Measured(RunConfig):
    precision: str = "auto"
    size: int = 32


class OtherDefault(Measured):
    size: int = 16


class MoreKeys(Measured):
    more: Annotated[int, Added(3)] = 3


class Hooked(Measured):
    def modules(self) -> tuple[str, ...]:
        return ("papers.exits.compute.dynamic",)


def test_auto_is_another_job_on_another_processor(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """bf16 counts where `precision: auto` would take it: for wide models."""

    def key(device: str, has_bf16: bool, **values: Any) -> str:
        monkeypatch.setattr("pipeline.jobs.job.processor", lambda *_: (device, has_bf16))
        return job(**values).key

    assert key("cpu", False) == key("cpu", True) != key("cuda", False) == key("cuda", True)
    assert key("cpu", False, width=768) != key("cpu", True, width=768)
    wide = {"width": 768, "precision": "fp32"}
    assert key("cpu", False, **wide) == key("cpu", True, **wide)
    assert key("cpu", True) == key("cpu", True, engine="ray")


# ---- keys that the code gives or takes ------------------------------------------------------


def test_a_new_key_runs_nothing_and_another_default_does(job: Callable[..., Job]) -> None:
    assert job(MoreKeys).key == job(Measured).key
    others = [job(Measured), job(OtherDefault), job(MoreKeys, more=4)]
    assert len({each.key for each in others}) == 3
    assert job(OtherDefault, size=32).key == job(Measured).key


def test_a_job_names_modules_that_act_on_its_model(job: Callable[..., Job]) -> None:
    assert job(Hooked).key != job().key
    assert job(Hooked).code == code_digest("pipeline.training.loop", "papers.exits.compute.dynamic")
