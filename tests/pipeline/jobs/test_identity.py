"""What makes work the same work: which edits of the code and of params.yaml run which jobs again, and which run none."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from papers import PAPERS
from papers.smoothing.section import Losses
from pipeline.config.load import load
from pipeline.config.presets import ModelPreset
from pipeline.config.types import Section
from pipeline.config.variant import PLAIN
from pipeline.jobs import identity
from pipeline.jobs.configs import RunConfig
from pipeline.jobs.files import CONFIG, DATA, starting_weights
from pipeline.jobs.job import TRAIN, Job
from tests.conftest import ROOT, shared
from tests.pipeline.jobs.listing import Listed, finish, listed

TRAININGS = {
    "pretrain",
    "finetune",
    "exits",
    "head",
    "smoothing",
    "inversion trainings",
}  # all that run pipeline.training.loop
# What reads the weights of variants
REFINED = {
    "evaluation",
    "analysis",
    "branches",
    "profiles",
    "inversion",
    "painters",
    "nodes",
    "class images",
}
KINDS = TRAININGS | REFINED | {"costs"}
SEEDS = [0, 1]
Keys = dict[str, dict[str, str]]  # kind -> title -> key
Found = dict[str, dict[str, tuple[str, str, bool]]]  # kind -> title -> key, folder, done
Values = dict[str, Any]  # params.yaml


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the package."""
    folder = tmp_path_factory.mktemp("package")
    for name in identity.PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    identity.code_digest.cache_clear()
    yield folder
    identity.code_digest.cache_clear()


@pytest.fixture(scope="module")
def values() -> Values:
    """The repository's params.yaml with two seeds, and variants that leave a default to the code or have a value of their own."""
    found = yaml.safe_load((ROOT / "params.yaml").read_text())
    found["seeds"] = SEEDS
    found["variants"]["plain_encode"] = {"route": "arbitrary", "position": {"encode": {}}}
    found["variants"]["narrow_encode"] = {
        "route": "arbitrary",
        "position": {"encode": {"dim": 8, "dropout": 0.5}},
    }
    return found


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory, values: Values) -> Path:
    """A folder with what the stages before left: prepared data, and weights as small files."""
    folder = tmp_path_factory.mktemp("stages")
    data = folder / "outs" / "prepare_data"
    data.mkdir(parents=True)
    counts = {"train": 9000, "validation": 2000, "heldout": 1000}
    (data / "meta.json").write_text(
        json.dumps({"sha256": "5" * 64, "counts": counts, "classes": [str(i) for i in range(10)]})
    )
    rows = ["dataset,model,variant,seed,order,keep,routes,accuracy"]
    for seed in (*SEEDS, 2):
        write_weights(folder / "outs" / "pretrain" / f"seed_{seed}", "pretrain")
    for name in ("baseline", *declared(values), NEW):
        place = folder / "outs" / ("baseline" if name == "baseline" else f"finetune/{name}")
        for seed in (*SEEDS, 2):
            write_weights(place / f"seed_{seed}", "ls" if name == NEW else name)
            rows += [f"d,m,{name},{seed},{order},12,1,0.5" for order in ("sequential", "arbitrary")]
    (folder / "results").mkdir()
    (folder / "results" / "prune_eval.csv").write_text("\n".join(rows) + "\n")
    (folder / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    return folder


NEW = "renamed"  # a variant with the weights of ls


def declared(values: Values) -> list[str]:
    """The names of the variants, those of the scale too."""
    found = values["variants"] | values["scales"]["minutes"].get("variants", {})
    return [name for name, variant in found.items() if variant]


def write_weights(folder: Path, name: str) -> None:
    """Small files in the place of weights, of either protocol."""
    folder.mkdir(parents=True)
    for file in ("weights.safetensors", "weights_heldout.safetensors"):
        (folder / file).write_text(f"{name} {folder.name} {file}")


@pytest.fixture(autouse=True)
def here(stages: Path, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs belong to the folder of the stages, and the code that they run to a copy of the package."""
    monkeypatch.chdir(stages)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setattr(identity, "ROOT", package)


@pytest.fixture(scope="module")
def jobs(stages: Path, package: Path) -> Listed:
    """The jobs as params.yaml stands, with the keys that they have then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(stages)
        patch.setattr(identity, "ROOT", package)
        return listed(load(papers=PAPERS))


@pytest.fixture(scope="module")
def keys(jobs: Listed) -> Keys:
    """Their keys."""
    return {kind: {title: job.key for title, job in found.items()} for kind, found in jobs.items()}


def keys_of(jobs: Listed) -> Keys:
    """The keys, taken anew."""
    return {
        kind: {title: replace(job).key for title, job in found.items()}
        for kind, found in jobs.items()
    }


def again(before: Keys, after: Keys) -> dict[str, set[str]]:
    """What would run, by kind: titles with a key that no job had before."""
    fresh = {
        kind: {title for title, key in found.items() if key not in before[kind].values()}
        for kind, found in after.items()
    }
    return {kind: titles for kind, titles in fresh.items() if titles}


@pytest.mark.slow
def test_every_plan_is_listed(jobs: Listed, keys: Keys, values: Values) -> None:
    """None of the lists is empty, jobs of two kinds are never the same, and a default that is written out is the same as none."""
    assert jobs.keys() == KINDS
    assert all(jobs.values())
    distinct = [set(found.values()) for found in keys.values()]
    assert len(set.union(*distinct)) == sum(map(len, distinct))
    assert len(keys["finetune"]) == len(SEEDS) * (1 + len(declared(values)))
    assert [keys["finetune"][f"ls_pos seed {s}"] for s in SEEDS] == [
        keys["finetune"][f"plain_encode seed {s}"] for s in SEEDS
    ]
    assert len(set(keys["finetune"].values())) == len(keys["finetune"]) - len(SEEDS)


# ---- edits of params.yaml ---------------------------------------------------------------------------------------------


def keys_with(values: Values, file: Path) -> Keys:
    """The keys with other values in params.yaml."""
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    return keys_of(listed(load(file, papers=PAPERS)))


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
    values: Values, keys: Keys, tmp_path: Path, old: str, new: str
) -> None:
    """Of a variant, which keeps its keys under the new title, a model, a data set."""
    after = keys_with(rename(values, old, new), tmp_path / "params.yaml")
    assert after == {
        kind: {re.sub(rf"\b{old}\b", new, title): key for title, key in found.items()}
        for kind, found in keys.items()
    }
    assert after != keys


def test_a_new_variant_runs_itself_alone(values: Values, keys: Keys, tmp_path: Path) -> None:
    """Placed before all others; and where every paper looks at it, too."""
    new = {NEW: {"route": {"drop": 0.3}}}
    more = values | {"variants": new | values["variants"]}
    titles = {f"{NEW} seed {seed}" for seed in SEEDS}
    trained = {"finetune": titles, "evaluation": titles | {f"{title} again" for title in titles}}
    after = keys_with(more, tmp_path / "params.yaml")
    assert {
        kind: {title: key for title, key in found.items() if NEW not in title}
        for kind, found in after.items()
    } == keys
    assert again(keys, after) == trained
    for section in ("analysis", "smoothing", "inversion", "painters"):
        more = put(more, f"{section}.variants", [NEW, *more[section]["variants"]])
    more = put(more, "nodes.variants", {NEW: ["any"], **more["nodes"]["variants"]})
    fresh = again(
        keys,
        keys_with(
            put(more, "models.vit_micro.exits.variants", {NEW: None, "ls": ["mlp"]}),
            tmp_path / "params.yaml",
        ),
    )
    assert {
        kind: {title for title in fresh[kind] if NEW not in title}
        for kind in fresh
        if kind != "branches"
    } == {kind: set() for kind in REFINED | {"finetune"} if kind != "branches"}
    assert fresh["branches"] == {
        f"exits of {name} seed {seed}" for name in (NEW, "ls") for seed in SEEDS
    }  # of ls others were asked for


def test_a_new_seed_runs_itself_alone(values: Values, keys: Keys, tmp_path: Path) -> None:
    """Placed before all others. Class images are shown to the next seed's model: one of each kind has another one now."""
    fresh = again(keys, keys_with(values | {"seeds": [2, *SEEDS]}, tmp_path / "params.yaml"))
    assert fresh.keys() == KINDS - {"costs"}
    assert all(
        "seed 2" in title for kind in fresh.keys() - {"class images"} for title in fresh[kind]
    )
    assert all("seed 2" in title or "seed 1" in title for title in fresh["class images"])


VALUES: dict[str, tuple[str, Any, set[str]]] = {
    "images at once, in profiles": ("smoothing.batch_size", 50, set()),
    "inputs at once": ("inversion.batch_size", 20, set()),
    "classes at once": ("inversion.class_images.batch_size", 10, set()),
    "activations computed again": ("finetune.checkpointing", True, set()),
    "size of figures": ("paper_figures.dpi", 100, set()),
    "another model's value": ("models.vit_pico.finetune.lr", 0.5, set()),
    "a value where it stands anyway": (
        "datasets.fashion_mnist_10k.finetune",
        {"schedule": "one_cycle"},
        set(),
    ),
    "a default written out": ("variants.layerdrop.per", "batch", set()),
    "what the section says, written out": ("variants.ls.per", "latin", set()),
    "what orders are drawn for": (
        "scales.minutes.finetune.per",
        "sample",
        {"finetune"},
    ),  # backbones with exits are trained in sequence
    "the learning rate": ("models.vit_micro.finetune.lr", 0.25, {"finetune"}),
    "one variant's": ("variants.ls_pred.finetune", {"lr": 0.25}, {"finetune"}),
    "of trainings from scratch": (
        "pretrain.eps",
        0.25,
        {"pretrain", "smoothing", "inversion trainings"},
    ),
    "a loss's weight": ("exits.weight", 0.25, {"exits"}),
    "images at once, in the paper on painters": ("painters.batch_size", 7, set()),
    "a kind of execution": ("painters.loops", 7, {"painters"}),
    "images of profiles": ("models.vit_micro.smoothing.images", 900, {"profiles"}),
    "a layer": ("analysis.layer", 4, {"analysis"}),
    "points of a curve": ("models.vit_micro.inversion.records", 5, {"inversion"}),
    "a draw of faults": ("nodes.seed", 7, {"nodes"}),
    "who chooses the epoch": (
        "protocol",
        "heldout",
        REFINED - {"evaluation"},
    ),  # both are evaluated
    "deterministic kernels": ("deterministic", True, KINDS),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", VALUES)
def test_a_value_runs_what_it_can_change(
    values: Values, keys: Keys, tmp_path: Path, case: str
) -> None:
    key, value, expected = VALUES[case]
    after = keys_with(put(values, key, value), tmp_path / "params.yaml")
    assert {kind: found.keys() for kind, found in after.items()} == {
        kind: found.keys() for kind, found in keys.items()
    }
    assert again(keys, after).keys() == expected
    if not expected:
        assert after == keys


@pytest.mark.parametrize(
    ("key", "value", "kinds"), [("per", "sample", set()), ("losses", {"cosine": 1.0}, REFINED)]
)
def test_a_variants_option_runs_that_variant_alone(
    values: Values, keys: Keys, tmp_path: Path, key: str, value: Any, kinds: set[str]
) -> None:
    """What its routes are drawn for is a matter of the training: what reads equal weights is not run again."""
    fresh = again(
        keys, keys_with(put(values, f"variants.ls.{key}", value), tmp_path / "params.yaml")
    )
    assert fresh.keys() == kinds | {"finetune"}
    assert all(re.search(r"\bls\b", title) for titles in fresh.values() for title in titles)


@pytest.mark.parametrize(
    ("per", "counts"), [("batch", True), ("latin", True), ("sample", False), ("pass", False)]
)
def test_a_batch_with_routes_of_its_own_counts(
    values: Values, tmp_path: Path, per: str, counts: bool
) -> None:
    """Under `per: batch` and `per: latin` the batch size of evaluations decides which images share a route."""
    values = put(values, "scales.minutes.prune_eval", {"per": per})
    before, after = (
        keys_with(put(values, "prune_eval.batch_size", size), tmp_path / "params.yaml")
        for size in (100, 200)
    )
    assert again(before, after) == ({"evaluation": set(before["evaluation"])} if counts else {})


SCALES: dict[str, Callable[[Values], Values]] = {
    "another name": lambda values: rename(values, "minutes", "quick"),
    "chosen, not the model's own": lambda values: put(
        put(values, "models.vit_micro.scale", "published"), "scale", "minutes"
    ),
    "another one": lambda values: put(
        values,
        "scales.brand_new",
        {"finetune": {"epochs": 99}, "variants": {NEW: {"route": "reversed"}}},
    ),
    "another's values": lambda values: put(
        values,
        "scales.hours",
        {"pretrain": {"lr": 0.25}, "models": {"vit_micro": {"init_std": 0.5}}},
    ),
    "another model's": lambda values: put(
        values, "scales.minutes.models", {"vit_pico": {"init_std": 0.5}}
    ),
    "values moved to the preset": lambda values: moved(
        values, "scales.minutes.painters", "models.vit_micro.painters"
    ),
    "values moved from the section": lambda values: moved(
        values, "analysis.neighbors", "scales.minutes.analysis.neighbors", leave=3
    ),
}


def moved(values: Values, old: str, new: str, leave: Any = None) -> Values:
    """The values with those at one place at another; at the old one there is something else."""
    found: Any = values
    for part in old.split("."):
        found = found[part]
    return put(put(values, new, found), old, leave or {})


@pytest.mark.slow
@pytest.mark.parametrize("case", SCALES)
def test_what_a_scale_says_counts_and_not_where(
    values: Values, keys: Keys, tmp_path: Path, case: str
) -> None:
    """A scale's name, a scale that is not chosen, and which of the places a value is said at run nothing."""
    assert keys_with(SCALES[case](values), tmp_path / "params.yaml") == keys


def test_a_scales_variant_is_the_same_as_one_of_all_scales(
    values: Values, keys: Keys, tmp_path: Path
) -> None:
    """Declared at a scale it runs itself alone; then declared for all, nothing."""
    new = {"route": {"drop": 0.3}}
    places = (f"scales.minutes.variants.{NEW}", f"variants.{NEW}")
    own, everywhere = (
        keys_with(put(values, place, new), tmp_path / "params.yaml") for place in places
    )
    assert again(keys, own).keys() == {"finetune", "evaluation"}
    assert all(NEW in title for titles in again(keys, own).values() for title in titles)
    assert own == everywhere


@pytest.fixture
def other(stages: Path) -> Iterator[Callable[[Path, str], None]]:
    """Writes another content into a file of the stages before, until the test ends."""
    before: dict[Path, str] = {}

    def write(file: Path, content: str) -> None:
        before[file] = file.read_text()
        file.write_text(content)

    yield write
    for file, content in before.items():
        (stages / file).write_text(content)


def test_other_data_run_everything(
    values: Values, keys: Keys, tmp_path: Path, other: Callable[[Path, str], None]
) -> None:
    other(DATA / "meta.json", (DATA / "meta.json").read_text().replace("5555", "6666"))
    assert again(keys, keys_with(values, tmp_path / "params.yaml")).keys() == KINDS


def test_other_weights_run_what_reads_them(
    values: Values, keys: Keys, tmp_path: Path, other: Callable[[Path, str], None]
) -> None:
    """Every seed has starting weights of its own."""
    other(starting_weights(0), "others")
    fresh = again(keys, keys_with(values, tmp_path / "params.yaml"))
    first = {
        kind: {title for title in keys[kind] if "seed 0" in title}
        for kind in ("finetune", "exits", "head")
    }
    assert fresh == first | {"analysis": {"pretrained seed 0"}}


def test_seeds_are_averaged_though_each_starts_from_its_own_weights(
    values: Values, jobs: Listed, other: Callable[[Path, str], None]
) -> None:
    """Each from weights of its own; not with those of another pre-training."""

    def known(found: Listed) -> list[dict[str, Any]]:
        return [shared(found["finetune"][f"ls seed {seed}"]) for seed in SEEDS]

    first, second = known(jobs)
    assert first == second
    assert len(
        {jobs["finetune"][f"ls seed {seed}"].config.weights_sha256 for seed in SEEDS}
    ) == len(SEEDS)
    other(starting_weights(0), "others")
    anew = known(listed(load(papers=PAPERS)))
    assert anew[0] == anew[1] != first


@pytest.mark.parametrize(
    ("starts", "taken"), [(None, [4, 7, 5]), (3, [4, 7, 5]), (2, [4, 7, 4]), (1, [4, 4, 4])]
)
def test_starting_weights_are_taken_in_turn(
    values: Values, tmp_path: Path, starts: int | None, taken: list[int]
) -> None:
    """Where there are fewer sets than seeds."""
    file = tmp_path / "params.yaml"
    file.write_text(
        yaml.safe_dump(
            values | {"seeds": [4, 7, 5], "pretrain": values["pretrain"] | {"seeds": starts}}
        )
    )
    params = load(file, papers=PAPERS)
    assert [params.start_of(seed) for seed in params.seeds] == taken
    assert params.starts == list(dict.fromkeys(taken))


def test_published_weights_are_one_set(values: Values, tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump(values | {"model": "vit_b16", "dataset": "imagenet"}))
    assert [load(file, papers=PAPERS).start_of(seed) for seed in SEEDS] == [SEEDS[0]] * len(SEEDS)


# ---- edits of the code ------------------------------------------------------------------------------------------------


@pytest.fixture
def source(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the package that a test edits."""
    folder = tmp_path / "edited"
    shutil.copytree(package, folder)
    monkeypatch.setattr(identity, "ROOT", folder)
    identity.code_digest.cache_clear()
    yield folder
    identity.code_digest.cache_clear()


def edit(file: Path, old: str, new: str) -> None:
    """Replace a text that stands in the file."""
    text = file.read_text()
    assert old in text, f"{file} has no {old!r} any more: give the test another place to edit"
    file.write_text(text.replace(old, new, 1))
    identity.code_digest.cache_clear()


def edit_all(source: Path, change: Callable[[str], str]) -> int:
    """Change the text of every module; how many were changed."""
    count = 0
    for file in source.rglob("*.py"):
        text = file.read_text()
        new = change(text)
        ast.parse(new)
        count += new != text
        file.write_text(new)
    identity.code_digest.cache_clear()
    return count


def commented(text: str) -> str:
    """With a comment before every top-level statement, and one at the end."""
    lines = text.splitlines()
    for node in reversed(ast.parse(text).body):
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        lines.insert(first - 1, "# said otherwise")
    return "\n".join([*lines, "# the end", ""])


def documented(text: str) -> str:
    """With another docstring in every module, class and function; some had none."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:]
            node.body.insert(0, ast.Expr(ast.Constant("Said otherwise.")))
    return ast.unparse(ast.fix_missing_locations(tree))


def imports_reversed(text: str) -> str:
    """With the imports at the top in another order."""
    tree = ast.parse(text)
    places = [
        i for i, node in enumerate(tree.body) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    for i, node in zip(places, [tree.body[i] for i in reversed(places)], strict=True):
        tree.body[i] = node
    return ast.unparse(tree)


def names_reversed(text: str) -> str:
    """With the names of every import at the top in another order."""
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names.reverse()
    return ast.unparse(tree)


CHANGES: dict[str, Callable[[str], str]] = {
    "comments and formatting": lambda text: commented(
        ast.unparse(ast.parse(text))
    ),  # which also takes out those that were there
    "a docstring": documented,
    "the order of imports": lambda text: imports_reversed(names_reversed(text)),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_executed_runs_nothing(
    source: Path, jobs: Listed, keys: Keys, change: str
) -> None:
    """In every module of the package at once."""
    assert edit_all(source, CHANGES[change]) > 50
    assert keys_of(jobs) == keys


@pytest.mark.slow
def test_readers_run_nothing(source: Path, jobs: Listed, keys: Keys) -> None:
    """A figure, a table, a claim, an estimate, a message, the tracker, the command, and how plans and pools are made."""
    rooms = [
        "papers/*/figures.py",
        "papers/*/tables.py",
        "papers/*/measures.py",
        "papers/*/checks.py",
        "papers/*/cost.py",
        "pipeline/report/*.py",
        "pipeline/errors.py",
        "pipeline/tracking/*.py",
        "pipeline/deploy/*.py",
        "pipeline/smoke.py",
        "pipeline/jobs/pool.py",
        "pipeline/jobs/spread.py",
        "pipeline/jobs/display.py",
        "pipeline/jobs/plan.py",
        "papers/*/compute/plan.py",
        "papers/*/compute/rows.py",
        "pipeline/config/params.py",
    ]
    for room in rooms:
        files = list(source.glob(room))
        assert files, room
        for file in files:
            file.write_text(
                file.read_text() + "\n\ndef another() -> str:\n    return 'of another kind'\n"
            )
    edit(source / "pipeline" / "errors.py", "error: {each}", "wrong: {each}")
    assert keys_of(jobs) == keys


EDITS = {
    "the rule that chooses the epoch": (
        "pipeline/training/judging.py",
        "'objective'",
        "'another'",
        TRAININGS,
    ),
    "a training's loop": (
        "pipeline/training/loop.py",
        "optimizer.zero_grad()",
        "optimizer.zero_grad(set_to_none=False)",
        TRAININGS,
    ),
    "a formula of a profile": (
        "papers/smoothing/compute/measures.py",
        "correction=0",
        "correction=1",
        {"profiles"},
    ),
    "where exits are": (
        "papers/exits/section.py",
        "if depth < num_layers]",
        "if depth <= num_layers]",
        {"branches", "costs"},
    ),
    "a sampler": (
        "lsvit/routes.py",
        "tuple(rng.permutation(num_layers).tolist())",
        "tuple(rng.permutation(num_layers)[::-1].tolist())",
        KINDS,
    ),
    "a scheduler": ("papers/nodes/compute/scheduler.py", "MEMORY = 0.5", "MEMORY = 0.6", {"nodes"}),
    "a way to execute layers": (
        "papers/painters/compute/strategies.py",
        "first = (num_layers",
        "first = 1 + (num_layers",
        {"painters"},
    ),
    "how many FLOPs count": (
        "pipeline/flops.py",
        "counter.get_total_flops()",
        "2 * counter.get_total_flops()",
        {"costs"},
    ),
    "an inversion's step": (
        "papers/inversion/compute/descent.py",
        "torch.set_num_threads(1)",
        "torch.set_num_threads(2)",
        {"inversion", "class images"},
    ),
    "a random stream": (
        "papers/layershuffle/compute/analysis.py",
        'generator("analysis"',
        'generator("another"',
        {"analysis"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", EDITS)
def test_a_change_of_the_code_runs_what_it_can_change(
    source: Path, jobs: Listed, keys: Keys, case: str
) -> None:
    file, old, new, expected = EDITS[case]
    edit(source / file, old, new)
    assert again(keys, keys_of(jobs)) == {kind: set(keys[kind]) for kind in expected}


# ---- edits of a section's keys ----------------------------------------------------------------------------------------


def elsewhere(source: Path, *arguments: str | Path) -> list[Found]:
    """The jobs as the edited package lists them in a process of its own, for each parameter file."""
    env = os.environ | {"PYTHONPATH": str(source)}
    command = [sys.executable, ROOT / "tests" / "pipeline" / "jobs" / "listing.py", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def keys_in(found: Found) -> Keys:
    """The keys alone."""
    return {kind: {title: key for title, (key, *_) in jobs.items()} for kind, jobs in found.items()}


def every_section(kind: type[Section] = Section) -> set[type[Section]]:
    """The typed sections of the package."""
    found = {found for each in kind.__subclasses__() for found in {each, *every_section(each)}}
    return {each for each in found if each.__module__.split(".")[0] in identity.PACKAGES}


def add_key(source: Path, section: type[Section], line: str) -> bool:
    """Give a section another key, after its docstring; whether it is declared in the package (and not made by it)."""
    file = (source / section.__module__.replace(".", "/")).with_suffix(".py")
    lines = file.read_text().splitlines()
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.ClassDef) and node.name == section.__name__:
            lines.insert(node.body[0].end_lineno or 0, f"    {line}")
            file.write_text("\n".join(lines) + "\n")
            return True
    return False


@pytest.mark.slow
def test_a_new_key_with_a_default_runs_nothing(
    source: Path, values: Values, keys: Keys, tmp_path: Path
) -> None:
    """In every section of the package at once; where it has another value, it runs the jobs that have it."""
    sections = every_section() - {Losses}  # its keys are losses, which have names in titles
    added = {
        section.__name__ for section in sections if add_key(source, section, "brand_new: int = 3")
    }
    assert {
        "Optimisation",
        "Variant",
        "ModelPreset",
        "TrainConfig",
        "PruneEval",
        "SmoothingProfiles",
        "Descent",
        "BranchTraining",
    } <= added
    files = []
    for i, place in enumerate(("variants.ls", "finetune", "smoothing", "inversion.optimisers.gd")):
        files.append(tmp_path / f"{i}.yaml")
        files[-1].write_text(yaml.safe_dump(put(values, f"{place}.brand_new", 4), sort_keys=False))
    same, *others = map(keys_in, elsewhere(source, "params.yaml", *files))
    assert same == keys
    variant, finetune, smoothing, inversion = (again(keys, other) for other in others)
    assert variant.keys() == REFINED | {"finetune"}
    assert all(re.search(r"\bls\b", title) for titles in variant.values() for title in titles)
    finetune.pop("costs", None)
    assert finetune == {
        kind: set(keys[kind]) for kind in ("finetune", "exits", "branches", "head")
    }  # exits take them over
    assert smoothing == {"profiles": set(keys["profiles"])}
    assert inversion == {}  # none of the models that can be listed is inverted by that


@pytest.mark.slow
def test_a_changed_default_is_not_answered_by_old_work(
    source: Path, jobs: Listed, keys: Keys, tmp_path: Path
) -> None:
    """A variant leaves a value to the code, and the code changes its mind, twice; what does not use it is not run again."""
    finish(jobs)
    assert all(job.done for found in jobs.values() for job in found.values())
    edit(
        source / "pipeline" / "config" / "variant.py",
        "dropout: Fraction = 0.0",
        "dropout: Fraction = 0.25",
    )
    found, twice = elsewhere(source, "--finish", "params.yaml")
    fresh = {title for kind in found.values() for title, (*_, done) in kind.items() if not done}
    own = {
        title for title in fresh if not title.startswith("ls_pos")
    }  # it writes the old default out, which is a key of its own now
    assert own == {f"plain_encode seed {seed}{more}" for seed in SEEDS for more in ("", " again")}
    title = "plain_encode seed 0"
    key, folder, _ = found["finetune"][title]
    assert key == keys["finetune"][title] != folder
    assert all(done for kind in twice.values() for *_, done in kind.values())
    assert twice["finetune"][title][:2] == [key, folder]
    for found_again in jobs.values():  # the old default is back
        assert all((job.folder.name, job.done) == (job.key, True) for job in found_again.values())
    noted = [
        json.loads((tmp_path / ".lsvit/jobs/train" / name / CONFIG).read_text())
        for name in (key, folder)
    ]
    assert [each["variant"]["position"]["encode"]["dropout"] for each in noted] == [0.0, 0.25]


class Before(RunConfig):
    size: int = 32


class Other(RunConfig):
    """The default has changed."""

    size: int = 16


class Later(Other):
    """And then another key was added."""

    more: int = 3


def test_work_under_a_changed_default_outlives_a_new_key(pico: ModelPreset) -> None:
    """Each of the two is found again, whatever was done with the other, also when its options have a key more."""
    fields: Values = {
        "dataset": "d",
        "model_name": "m",
        "model": pico,
        "device": "cpu",
        "data_sha256": "",
        "weights_sha256": None,
    }
    before, other, later = (
        Job("t", TRAIN, kind(**fields, variant=PLAIN)) for kind in (Before, Other, Later)
    )
    assert before.key == other.key == later.key
    finish({"": {"t": before}})
    folders = [before.folder, other.folder]
    assert [before.done, other.done] == [True, False]
    finish({"": {"t": other}})
    assert [before.folder, other.folder] == folders
    assert [before.done, other.done] == [True, True]
    assert later.done
    assert later.folder == other.folder
