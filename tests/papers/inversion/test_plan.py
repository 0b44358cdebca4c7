"""What stage inversion trains, inverts and shows, and the rows, arrays and numbers that come of it."""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from papers import PAPERS
from papers.inversion.compute.plan import Plan, Subject, Task
from papers.inversion.compute.presets import family_preset
from papers.inversion.compute.rows import (
    CLASS_COLUMNS,
    COLUMNS,
    about,
    class_rows,
    gather_arrays,
    inversion_rows,
)
from papers.inversion.gallery import Gallery
from papers.inversion.section import (
    ClassImages,
    ClassImagesConfig,
    Descent,
    Inversion,
    InversionConfig,
)
from pipeline.config.params import Params, whole
from pipeline.config.sections import Pretrain
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import ARRAYS, ROWS, sha256, weights_file
from pipeline.jobs.identity import code_digest, imported_modules
from tests.conftest import shared
from tests.test_stages import path_of

SEEDS = (0, 1, 2)
DIGEST = cache(code_digest)
SIZES: dict[str, Any] = {"img_size": 28, "in_chans": 1}  # of the chosen model
VIT: dict[str, Any] = {
    "timm": "vit_tiny_patch16_224",
    "kwargs": {"embed_dim": 16},
    "init_std": 0.14,
}
MIXER: dict[str, Any] = {"timm": "mixer_custom", "kwargs": {"embed_dim": 8}}
DESCENT = {"method": "adam", "lrs": [0.1], "steps": 7}
VALUES: dict[str, Any] = {
    "seeds": 3,
    "families": {"vit": VIT, "own": {}, "mixer": MIXER},
    "training": {"lr": 0.25, "epochs": 2, "images": 60},
    "optimisers": {"adam": DESCENT, "gd": {"method": "gd", "lrs": [0.1, 0.3], "steps": 9}},
    "images": 2,
    "depths": [1, 2],
    "ablations": {"vit": [["attention"], ["residuals", "mlp"]], "own": [["norms"]]},
    "transplants": {"vit": [["patch_embed"], ["patch_embed", "norm1"]]},
    "variants": ["ls"],
    "class_images": {"steps": 5},
    "seed": 11,
}


def changed(params: Params, inversion: dict[str, Any], **others: Any) -> Params:
    """params.yaml with other values of VALUES, and of what the chosen model's preset or the top level have."""
    values = params.model_dump() | {
        key: value for key, value in others.items() if not isinstance(value, dict)
    }
    preset = values["models"][values["model"]]
    preset |= {"inversion": VALUES | inversion, "pretrain": {"seeds": 1}}
    for name, section in others.items():
        if isinstance(section, dict):
            preset[name] = preset.get(name, {}) | section
    return whole(PAPERS).model_validate(values)


Make = Callable[..., Plan]


@pytest.fixture
def make(params: Params, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A factory of plans on other data, with one set of starting weights: `inversion`, keys of VALUES, and other sections of the preset.

    All weights are there.
    """
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setattr("pipeline.jobs.job.code_digest", DIGEST)
    for number, folder in enumerate(
        [tmp_path / "pretrain", tmp_path / "finetune" / "ls", tmp_path / "baseline"]
    ):
        for seed in (*SEEDS, 3, 4):
            (folder / f"seed_{seed}").mkdir(parents=True)
            for judge in ("validation", "heldout"):
                (folder / f"seed_{seed}" / weights_file(judge)).write_text(
                    f"{number} {seed} {judge}"
                )

    def made(inversion: dict[str, Any] | None = None, **others: Any) -> Plan:
        plan = Plan(
            changed(params, inversion or {}, **others),
            prepared,
            tmp_path / "finetune",
            tmp_path / "pretrain",
        )
        for job in plan.trainings().values():
            job.folder.mkdir(parents=True, exist_ok=True)
            for judge in ("validation", "heldout"):
                (job.folder / weights_file(judge)).write_text(f"{job.key} {judge}")
        return plan

    return made


def models(plan: Plan) -> list[Subject]:
    return plan.models(plan.trainings())


def names(subjects: list[Subject]) -> list[str]:
    return [str(subject) for subject in subjects]


@pytest.mark.parametrize(
    "module",
    ["compute.plan", "compute.rows", "compute.presets", "tables", "figures", "claims", "section"],
)
def test_nothing_here_loads_torch(module: str) -> None:
    """As every stage imports these, and its own process must stay small."""
    found = imported_modules(f"papers.inversion.{module}")
    assert f"papers.inversion.{module}" in found
    for name in found:
        text = path_of(name).read_text()
        assert not re.search(r"^(import|from) (torch|timm)", text, re.MULTILINE), name


def test_a_training_a_family_and_seed(make: Make) -> None:
    """Of none whose weights are the chosen model's; on the options of `pretrain` with those of `training` above them."""
    plan = make()
    found = plan.trainings()
    assert list(found) == [(family, seed) for family in ("vit", "mixer") for seed in SEEDS]
    assert (
        len({job.key for job in found.values()}) == len({job.title for job in found.values()}) == 6
    )
    pretrain = plan.params.resolve(Pretrain)
    for (family, seed), job in found.items():
        config = job.config
        assert isinstance(config, TrainConfig)
        assert (job.title, config.title, config.seed) == (
            f"inversion_{family} seed {seed}",
            f"inversion_{family}",
            seed,
        )
        assert (job.function, job.total, dict(job.inputs)) == (
            "pipeline.training.loop:train",
            2,
            {"data": plan.data, "weights": None},
        )
        assert config.options == plan.params.scratch_training(Inversion)
        assert (config.options.lr, config.options.epochs, config.options.images) == (0.25, 2, 60)
        assert config.options.weight_decay == pretrain.weight_decay
        own = {"vit": VIT, "mixer": MIXER}[family]
        assert (config.model.timm, config.model.kwargs) == (own["timm"], SIZES | own["kwargs"])
        assert (config.model.weights, config.model.init_std) == ("scratch", own.get("init_std"))
        assert (config.variant.route, config.weights_sha256, config.world_size) == (
            "sequential",
            None,
            1,
        )
    assert all(
        (shared(job) == shared(found["vit", 0])) == (family == "vit")
        for (family, _), job in found.items()
    )


@pytest.mark.parametrize(("seeds", "expected"), [(1, [0]), (2, [0, 1]), (None, [0, 1, 2, 3, 4])])
def test_seeds_are_the_first_ones(make: Make, seeds: int | None, expected: list[int]) -> None:
    plan = make({"seeds": seeds, "families": {"vit": VIT}, "ablations": {}, "transplants": {}})
    assert [seed for _, seed in plan.trainings()] == expected
    assert [seed for _, seed in plan.trainings()] == [
        model.seed for model in models(plan) if model.weights == "trained"
    ]
    assert [model.seed for model in plan.refined() if model.weights == "ls"] == expected


@pytest.mark.parametrize(("starts", "seeds"), [(None, SEEDS), (2, SEEDS[:2]), (1, SEEDS[:1])])
def test_the_chosen_model_is_looked_into_with_all_its_starting_weights(
    make: Make, tmp_path: Path, starts: int | None, seeds: tuple[int, ...]
) -> None:
    """Once a set of them, each from its own file."""
    plan = make(
        {"families": {"own": {}}, "ablations": {}, "transplants": {}}, pretrain={"seeds": starts}
    )
    trained = [model for model in models(plan) if model.weights == "trained"]
    files = [
        tmp_path / "pretrain" / f"seed_{seed}" / "weights_heldout.safetensors" for seed in seeds
    ]
    assert [(model.seed, model.file) for model in trained] == list(zip(seeds, files, strict=True))


def test_nothing_is_trained_for_the_chosen_model(make: Make) -> None:
    plan = make({"families": {"own": {}}, "ablations": {}, "transplants": {}})
    assert plan.trainings() == {}
    assert names(models(plan)) == ["own trained seed 0", "own untrained seed 0"]


@pytest.mark.parametrize(
    ("protocol", "kept"),
    [("paper", "weights.safetensors"), ("heldout", "weights_heldout.safetensors")],
)
def test_models_and_their_weights(make: Make, tmp_path: Path, protocol: str, kept: str) -> None:
    """Trained and untrained; the chosen model once, with its starting weights, of held-out images if some are held out."""
    plan = make(protocol=protocol)
    trainings = plan.trainings()
    found = plan.models(trainings)
    expected: dict[str, Path | None] = {}
    for family, seeds in (("vit", SEEDS), ("own", (0,)), ("mixer", SEEDS)):
        for seed in seeds:
            own = family == "own"
            expected[f"{family} trained seed {seed}"] = (
                tmp_path / "pretrain" / "seed_0" / "weights_heldout.safetensors"
                if own
                else trainings[family, seed].folder / kept
            )
            expected[f"{family} untrained seed {seed}"] = None
    assert names(found) == list(expected)
    assert [model.file for model in found] == list(expected.values())
    for model in found:
        assert (model.edit, model.donor, model.variant.route, model.variant.layers) == (
            "none",
            None,
            "sequential",
            None,
        )
        assert model.preset == (
            plan.params.model_preset
            if model.family == "own"
            else family_preset(plan.params, model.family)
        )
    assert found[0].preset.kwargs == SIZES | VIT["kwargs"]
    assert [subject._replace(file=None) for subject in found] == plan.subjects()


def test_variants_have_the_untrained_model_beside_them(make: Make, tmp_path: Path) -> None:
    plan = make({"seeds": 2, "variants": ["baseline", "ls"]})
    found, chosen = plan.refined(), plan.params.model
    assert [(model.family, model.weights, model.seed) for model in found] == [
        (chosen, weights, seed) for weights in ("untrained", "baseline", "ls") for seed in (0, 1)
    ]
    assert [model.file for model in found] == [
        None,
        None,
        *(
            tmp_path / folder / f"seed_{seed}" / "weights.safetensors"
            for folder in ("baseline", "finetune/ls")
            for seed in (0, 1)
        ),
    ]
    assert [model.variant.route for model in found] == ["sequential"] * 4 + ["arbitrary"] * 2
    assert all(model.preset == plan.params.model_preset and model.edit == "none" for model in found)
    assert make({"variants": []}).refined() == []


def test_edited_models(make: Make) -> None:
    """Parts are taken out of trained and untrained models; parts of the same seed's trained model are put into untrained ones."""
    plan = make({"seeds": 2})
    own = models(plan)
    found = plan.edited(own)
    vit = [
        f"vit {weights} without {parts} seed {seed}"
        for seed in (0, 1)
        for weights in ("trained", "untrained")
        for parts in ("attention", "residuals+mlp")
    ]
    norms = [f"own {weights} without norms seed 0" for weights in ("trained", "untrained")]
    put = [
        f"vit untrained with {parts} seed {seed}"
        for seed in (0, 1)
        for parts in ("patch_embed", "patch_embed+norm1")
    ]
    assert names(found) == [*vit, *norms, *put]
    files = {str(model): model.file for model in own}
    for model in found:
        assert model.file == files[f"{model.family} {model.weights} seed {model.seed}"]
        assert model.donor == (
            files[f"vit trained seed {model.seed}"] if model.transplant else None
        )
        assert bool(model.ablation) != bool(model.transplant)
    assert found[1].ablation == ("residuals", "mlp")
    assert found[-1].transplant == ("patch_embed", "norm1")
    assert len({model.donor for model in found if model.transplant}) == 2


def first_places(tasks: list[Task]) -> list[int]:
    """For every task the place of the first whose job is the same."""
    found = [task.job.key for task in tasks]
    return [found.index(key) for key in found]


def test_what_is_inverted(make: Make) -> None:
    """By hand: the first family's models under the second optimiser, models as they are, variants in both orders, edited models."""
    plan = make(
        {
            "seeds": 2,
            "families": {"vit": VIT, "own": {}},
            "ablations": {"vit": [["mlp"]]},
            "transplants": {"vit": [["norm1"]]},
        }
    )
    tasks, chosen = plan.inversions(models(plan)), plan.params.model
    dataset = [plan.params.dataset, chosen]
    vit = [
        ["vit", weights, "none", "sequential", seed]
        for seed in (0, 1)
        for weights in ("trained", "untrained")
    ]
    own = [["own", weights, "none", "sequential", 0] for weights in ("trained", "untrained")]
    variants = [
        [chosen, weights, "none", order, seed]
        for weights in ("untrained", "ls")
        for seed in (0, 1)
        for order in ("sequential", "arbitrary")
    ]
    edited = [
        ["vit", weights, "without mlp", "sequential", seed]
        for seed in (0, 1)
        for weights in ("trained", "untrained")
    ]
    edited += [["vit", "untrained", "with norm1", "sequential", seed] for seed in (0, 1)]
    expected = [("gd", row) for row in vit] + [
        ("adam", row) for row in (*vit, *own, *variants, *edited)
    ]
    assert [task.keys for task in tasks] == [
        [*dataset, *row[:4], optimiser, row[4]] for optimiser, row in expected
    ]
    assert len(tasks) == 4 + 4 + 2 + 8 + 6
    for task in tasks:
        assert task.job.config.title == f"{task.subject.family}_{task.subject.weights}"
    titles = [task.job.title for task in tasks]
    assert len(set(titles)) == len(tasks)
    again = [titles[number] for number, place in enumerate(first_places(tasks)) if place != number]
    assert again == [
        f"{chosen} untrained seed 0, adam"
    ]  # the same work as that of the family which is the chosen model
    assert titles[0] == "vit trained seed 0, gd"
    assert f"{chosen} ls seed 1, adam, arbitrary" in titles
    assert titles[-1] == "vit untrained with norm1 seed 1, adam"


def test_layers_are_inverted_alone_in_plain_models_in_original_order(make: Make) -> None:
    plan = make()
    alone = {
        (task.subject.edit, task.order): task.job.config.model_dump()["alone"]
        for task in plan.inversions(models(plan))
    }
    assert {key for key, value in alone.items() if value} == {("none", "sequential")}
    assert set(alone) == {
        ("none", "sequential"),
        ("none", "arbitrary"),
        *(
            (edit, "sequential")
            for edit in (
                "without attention",
                "without residuals+mlp",
                "without norms",
                "with patch_embed",
                "with patch_embed+norm1",
            )
        ),
    }


def test_configurations_of_inversions(make: Make, prepared: Path) -> None:
    """What is measured is what the section says; digests are those of the files that go in."""
    plan = make()
    for task in plan.inversions(models(plan)):
        config, subject = task.job.config, task.subject
        assert isinstance(config, InversionConfig)
        options = config.options
        assert (options.images, options.depths, options.seed) == (2, [1, 2], 11)
        assert (options.sigma, options.shifts, options.records) == (
            plan.options.sigma,
            plan.options.shifts,
            plan.options.records,
        )
        assert config.descent == plan.options.optimisers[task.optimiser]
        assert (config.seed, config.order) == (subject.seed, task.order)
        assert tuple(config.ablation) == subject.ablation
        assert tuple(config.transplant) == subject.transplant
        assert config.weights_sha256 == (sha256(subject.file) if subject.file else None)
        assert config.donor_sha256 == (sha256(subject.donor) if subject.donor else None)
        assert dict(task.job.inputs) == {
            "data": prepared,
            "weights": subject.file,
            "donor": subject.donor,
        }
        assert (task.job.function, config.precision) == (
            "papers.inversion.compute.descent:measure",
            "fp32",
        )
        assert (config.weights_sha256 is None) == (subject.weights == "untrained")
        assert (config.donor_sha256 is None) == (not subject.edit.startswith("with "))
        assert config.variant.route == ("arbitrary" if subject.weights == "ls" else "sequential")


def test_the_chosen_model_as_a_family_is_inverted_once(make: Make, params: Params) -> None:
    """A family with the chosen model's own name: its untrained model is the one beside the variants."""
    chosen = params.model
    plan = make(
        {
            "families": {chosen: {}, "vit": VIT},
            "ablations": {},
            "transplants": {},
            "optimisers": {"adam": DESCENT},
        }
    )
    tasks = plan.inversions(models(plan))
    assert (
        len({task.job.title for task in tasks})
        == len({task.job.key for task in tasks})
        == len(tasks)
    )
    own = [
        (task.subject.weights, task.order, task.subject.seed)
        for task in tasks
        if task.subject.family == chosen
    ]
    assert (
        len(own) == len(set(own)) == 1 + 2 * 3 + 2 * 3
    )  # trained, untrained and ls in both orders
    assert {seed for weights, _, seed in own if weights == "trained"} == {0}


def keys(plan: Plan) -> dict[str, dict[str, str]]:
    """Keys of the jobs by kind and title."""
    trainings = plan.trainings()
    own = plan.models(trainings)
    tasks = {"inversions": plan.inversions(own), "class images": plan.class_images(own)}
    found = {
        kind: {task.job.title: task.job.key for task in group} for kind, group in tasks.items()
    }
    return {"trainings": {job.title: job.key for job in trainings.values()}} | found


OTHERS: dict[str, Any] = {
    "finetune": {"lr": 0.7},
    "smoothing": {"images": 10},
    "exits": {"hidden": 3},
    "prune_eval": {"images": 7},
    "analysis": {"images": 90},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inversion", "others", "kinds"),
    [
        ({}, {}, set()),
        ({}, OTHERS, set()),
        ({"seeds": 2, "ablations": {}, "transplants": {}}, {}, set()),
        ({"families": {"vit": VIT}, "ablations": {}, "variants": ["ls", "baseline"]}, {}, set()),
        ({"seed": 12}, {}, {"inversions"}),
        ({"depths": [1]}, {}, {"inversions"}),
        ({"depths": None}, {}, {"inversions"}),
        ({"images": 3}, {}, {"inversions"}),
        ({"sigma": 0.1}, {}, {"inversions"}),
        ({"shifts": 3}, {}, {"inversions"}),
        ({"records": 3}, {}, {"inversions"}),
        ({"met": 0.1}, {}, {"inversions"}),
        ({"batch_size": 9}, {}, set()),
        ({"class_images": {"steps": 6}}, {}, {"class images"}),
        ({"training": {**VALUES["training"], "lr": 0.5}}, {}, {"trainings"}),
        ({}, {"pretrain": {"weight_decay": 0.77}}, {"trainings"}),
        ({}, {"device": "cuda"}, {"trainings", "inversions", "class images"}),
    ],
)
def test_what_changes_the_keys(
    make: Make, inversion: dict[str, Any], others: dict[str, Any], kinds: set[str]
) -> None:
    """All keys of a kind, or none; a job is the same whatever else is done, but for the judge of the class images.

    A new training is also a new trained model.
    """
    first, again = keys(make()), keys(make(inversion, **others))
    for kind in first:
        shared = set(first[kind]) & set(again[kind])
        if "trainings" in kinds and kind != "trainings" and "device" not in others:
            shared = {
                title
                for title in shared
                if "ls seed" in title or "untrained seed" in title or "own" in title
            }
        if "seeds" in inversion and kind == "class images":
            shared = {
                title for title in shared if "seed 0" in title
            }  # who judges the last seed is another
        assert len(shared) > 1
        different = {title for title in shared if first[kind][title] != again[kind][title]}
        assert different == (shared if kind in kinds else set())


def test_a_new_training_is_a_new_model_to_look_into(make: Make) -> None:
    """Of the trained models, and of those that parts of them were put into; in class images also as the judge."""
    first, again = keys(make()), keys(make({"training": {**VALUES["training"], "lr": 0.5}}))
    different = {
        title
        for title in first["inversions"]
        if first["inversions"][title] != again["inversions"][title]
    }
    assert different == {
        title
        for title in first["inversions"]
        if title.startswith(("vit trained", "mixer trained", "vit untrained with "))
    }
    assert {
        title
        for title in first["class images"]
        if first["class images"][title] != again["class images"][title]
    } == {
        f"class images of {family} trained seed {seed}"
        for family in ("vit", "mixer")
        for seed in SEEDS
    }


def test_an_optimiser_changes_its_own_inversions(make: Make) -> None:
    first = keys(make())
    for name in ("adam", "gd"):
        other = VALUES["optimisers"] | {name: VALUES["optimisers"][name] | {"steps": 8}}
        again = keys(make({"optimisers": other}))
        different = {
            title
            for title in first["inversions"]
            if first["inversions"][title] != again["inversions"][title]
        }
        assert different == {title for title in first["inversions"] if f", {name}" in title}
        assert {kind: again[kind] for kind in ("trainings", "class images")} == {
            k: first[k] for k in ("trainings", "class images")
        }


def test_judges_of_class_images(make: Make, prepared: Path) -> None:
    """The next seed's training of the same kind, of the last the first; nobody judges a model that there is only one of."""
    plan = make()
    own = models(plan)
    tasks, chosen = plan.class_images(own), plan.params.model
    files = {str(model): model.file for model in (*own, *plan.refined())}
    trained = [
        *(f"vit trained seed {seed}" for seed in SEEDS),
        "own trained seed 0",
        *(f"mixer trained seed {seed}" for seed in SEEDS),
        *(f"{chosen} ls seed {seed}" for seed in SEEDS),
    ]
    assert [task.job.title for task in tasks] == [f"class images of {name}" for name in trained]
    for name, task in zip(trained, tasks, strict=True):
        config, seed = task.job.config, int(name[-1])
        judge = None if name.startswith("own") else files[f"{name[:-1]}{(seed + 1) % 3}"]
        assert isinstance(config, ClassImagesConfig)
        assert config.options == plan.options.class_images
        assert config.options.steps == 5
        assert config.judge_sha256 == (sha256(judge) if judge else None)
        assert config.weights_sha256 == sha256(files[name])  # type: ignore[arg-type]
        assert dict(task.job.inputs) == {"data": prepared, "weights": files[name], "judge": judge}
        assert (config.seed, task.keys[-1], task.optimiser, task.order) == (
            seed,
            seed,
            "",
            "sequential",
        )
        assert task.job.function == "papers.inversion.compute.class_images:measure"
    assert len({task.job.key for task in tasks}) == len(tasks)


@pytest.mark.parametrize(("head", "shown"), [("fresh", False), ("loaded", True), (None, True)])
def test_models_whose_head_knows_no_classes_are_not_shown(
    make: Make, tmp_path: Path, head: str | None, shown: bool
) -> None:
    """Starting weights say in weights.json that their head is as initialised; what is trained on them here knows the classes."""
    if head:
        (tmp_path / "pretrain" / "seed_0" / "weights.json").write_text(
            json.dumps({"timm": "vit", "head": head})
        )
    for seed in SEEDS:  # beside other weights it says nothing about these
        (tmp_path / "finetune" / "ls" / f"seed_{seed}" / "weights.json").write_text(
            '{"head": "fresh"}'
        )
    plan = make()
    own = models(plan)
    by_name = {str(model): model for model in (*own, *plan.refined())}
    fresh = [name for name, model in by_name.items() if plan.has_fresh_head(model)]
    assert fresh == ([] if shown else ["own trained seed 0"])
    assert not plan.has_fresh_head(
        by_name["own trained seed 0"]._replace(file=None)
    )  # counted without files
    titles = [task.job.title for task in plan.class_images(own)]
    assert ("class images of own trained seed 0" in titles) == shown
    assert len(titles) == 3 * 3 + shown
    assert [str(model) for model, _ in plan.judged(own)].count("own trained seed 0") == 1


def test_nobody_judges_a_single_seed(make: Make) -> None:
    plan = make({"seeds": 1})
    tasks = plan.class_images(models(plan))
    assert len(tasks) == 4  # vit, own, mixer, ls
    assert [task.job.inputs["judge"] for task in tasks] == [None] * 4
    assert [task.job.config.model_dump()["judge_sha256"] for task in tasks] == [None] * 4


def write_inversion(task: Task, shift: float) -> None:
    """As the job does, of two points and two images; numbers say whose they are."""
    count = 4
    values = {
        name: shift + number + np.arange(count) / 10 for number, name in enumerate(COLUMNS[11:19])
    }
    values |= {
        "num_layers": np.full(count, 4),
        "overcomplete": np.full(count, task.subject.family == "mixer"),
    }
    rows = pd.DataFrame(
        {
            "point": ["patch_embed"] * 2 + ["first 1"] * 2,
            "depth": [0, 0, 1, 1],
            "image": [0, 1, 0, 1],
            **values,
        }
    )
    task.job.folder.mkdir(parents=True)
    rows.assign(verdict="non-unique").to_csv(task.job.folder / ROWS, index=False)
    np.savez_compressed(
        task.job.folder / ARRAYS,
        found=np.full((2, 2, 1, 3, 3), shift),
        points=np.array(["patch_embed", "first 1"]),
    )


def write_class_images(task: Task, shift: float) -> None:
    judged = task.job.inputs["judge"] is not None
    rows = pd.DataFrame({"class": ["bag", "coat"], "probability": [shift, shift + 0.5]})
    rows = rows.assign(
        judge_probability=[0.1, 0.2] if judged else np.nan,
        judge_sees=["coat", "coat"] if judged else "",
    )
    task.job.folder.mkdir(parents=True)
    rows.to_csv(task.job.folder / ROWS, index=False)
    np.savez_compressed(
        task.job.folder / ARRAYS,
        images=np.full((2, 1, 3, 3), shift),
        classes=np.array(["bag", "coat"]),
    )


@pytest.fixture
def finished(make: Make) -> tuple[list[Task], list[Task]]:
    """Inversions and class images whose jobs have ended, numbered."""
    plan = make({"seeds": 2})
    own = models(plan)
    inversions, class_images = plan.inversions(own), plan.class_images(own)
    for number, place in enumerate(first_places(inversions)):
        if place == number:
            write_inversion(inversions[number], number)
    for number, task in enumerate(class_images):
        write_class_images(task, 100 + number)
    return inversions, class_images


def test_rows_of_inversions(finished: tuple[list[Task], list[Task]]) -> None:
    tasks, _ = finished
    rows = inversion_rows(tasks)
    assert list(rows.columns) == COLUMNS
    assert len(rows) == 4 * len(tasks)
    for place, (number, task) in enumerate(zip(first_places(tasks), tasks, strict=True)):
        own = rows.iloc[4 * place : 4 * place + 4]
        subject = task.subject
        expected = [
            task.job.config.dataset,
            task.job.config.model_name,
            subject.family,
            subject.weights,
            subject.edit,
            task.order,
            task.optimiser,
            subject.seed,
        ]
        assert own.iloc[3, :8].tolist() == expected
        assert own["lr"].tolist() == pytest.approx(
            [number, number + 0.1, number + 0.2, number + 0.3]
        )
        assert own["pixel_correlation"].iloc[0] == number + 7
        assert own[["point", "depth", "image", "verdict"]].iloc[2].tolist() == [
            "first 1",
            1,
            0,
            "non-unique",
        ]
        assert own[["num_layers", "overcomplete"]].iloc[1].tolist() == [
            4,
            subject.family == "mixer",
        ]
    assert COLUMNS[8:] == [
        "point",
        "depth",
        "image",
        "lr",
        "embedding_distance",
        "yardstick",
        "input_distance",
        "input_yardstick",
        "token_distance",
        "token_yardstick",
        "pixel_correlation",
        "num_layers",
        "overcomplete",
        "verdict",
    ]


def test_rows_of_class_images(finished: tuple[list[Task], list[Task]]) -> None:
    """Models with and without a judge beside each other."""
    _, tasks = finished
    rows = class_rows(tasks)
    assert list(rows.columns) == CLASS_COLUMNS
    assert CLASS_COLUMNS == [
        "dataset",
        "model",
        "family",
        "weights",
        "seed",
        "class",
        "probability",
        "judge_probability",
        "judge_sees",
    ]
    assert rows["family"].tolist()[::2] == [task.subject.family for task in tasks]
    assert rows["seed"].tolist()[1::2] == [task.subject.seed for task in tasks]
    assert rows["probability"].tolist()[:4] == [100, 100.5, 101, 101.5]
    own = rows["family"] == "own"
    assert own.sum() == 2
    assert rows.loc[own, "judge_probability"].isna().all()
    assert rows.loc[own, "judge_sees"].isna().all()
    assert rows.loc[~own, "judge_sees"].tolist() == ["coat"] * (len(rows) - 2)
    assert rows.loc[~own, "judge_probability"].tolist()[:2] == [0.1, 0.2]


def test_classes_of_any_name(make: Make) -> None:
    """Also those that pandas takes for missing values."""
    plan = make({"seeds": 2})
    task = plan.class_images(models(plan))[0]
    names = ["nan", "None", "NA", "null"]
    rows = pd.DataFrame(
        {
            "class": names,
            "probability": 0.5,
            "judge_probability": [0.1, 0.2, 0.3, np.nan],
            "judge_sees": names[::-1],
        }
    )
    task.job.folder.mkdir(parents=True)
    rows.to_csv(task.job.folder / ROWS, index=False)
    found = class_rows([task])
    assert found["class"].tolist() == names
    assert found["judge_sees"].tolist() == names[::-1]
    assert found["judge_probability"].tolist()[:3] == [0.1, 0.2, 0.3]
    assert found["judge_probability"].isna().tolist() == [False, False, False, True]


def test_arrays_are_found_again(finished: tuple[list[Task], list[Task]], tmp_path: Path) -> None:
    """Every task's own, by its keys, of the first seed there is."""
    inversions, class_images = finished
    gather_arrays(inversions, class_images, tmp_path / "out" / "arrays")
    gallery = Gallery(tmp_path / "out" / "arrays")
    assert (
        len(list(gallery.folder.glob("*.npz")))
        == len(inversions) + len(class_images)
        == len(gallery.index)
    )
    assert gallery.families == ["vit", "own", "mixer", inversions[0].keys[1]]
    for number, task in zip(first_places(inversions), inversions, strict=True):
        subject = task.subject
        keys, arrays = next(
            iter(
                gallery.find(
                    family=subject.family,
                    weights=subject.weights,
                    edit=subject.edit,
                    order=task.order,
                    optimiser=task.optimiser,
                    seed=subject.seed,
                )
            )
        )
        assert arrays["found"].tolist() == np.full((2, 2, 1, 3, 3), number).tolist()
        assert arrays["points"].tolist() == ["patch_embed", "first 1"]
        assert [keys[name] for name in ("dataset", "model", "family", "seed", "kind")] == [
            *task.keys[:3],
            subject.seed,
            "inversion",
        ]
    vit = gallery.find(family="vit", edit="none", optimiser="adam")
    assert [(keys["weights"], keys["seed"]) for keys, _ in vit] == [
        ("trained", 0),
        ("untrained", 0),
    ]
    assert [
        (keys["weights"], keys["seed"])
        for keys, _ in gallery.find(family="vit", edit="none", optimiser="adam", seed=1)
    ] == [("trained", 1), ("untrained", 1)]
    assert len(gallery.find()) == sum(task.subject.seed == 0 for task in inversions)
    shown = gallery.find("class_images")
    assert [keys["family"] for keys, _ in shown] == [
        task.subject.family for task in class_images if task.subject.seed == 0
    ]
    assert shown[1][1]["images"].tolist() == np.full((2, 1, 3, 3), 102).tolist()
    assert (
        gallery.find(family="other")
        == gallery.find("class_images", family="own", weights="untrained")
        == []
    )


def test_about(make: Make) -> None:
    """What captions name, as a file can hold it."""
    plan = make()
    found = about(plan.params)
    assert json.loads(json.dumps(found)) == found
    assert (found["sigma"], found["shifts"], found["met"]) == (
        plan.options.sigma,
        plan.options.shifts,
        plan.options.met,
    )
    assert (found["epochs"], found["training_images"]) == (2, 60)
    assert (found["families"], found["trained_here"]) == (["vit", "own", "mixer"], ["vit", "mixer"])
    assert list(found["optimisers"]) == ["adam", "gd"]
    assert Descent(**found["optimisers"]["gd"]) == plan.options.optimisers["gd"]
    assert found["optimisers"]["adam"]["steps"] == 7
    assert ClassImages(**found["class_images"]) == plan.options.class_images
    assert about(make({"training": {"images": None}}).params)["training_images"] is None
