"""What stage inversion trains, inverts and shows, and the rows and arrays that come of it."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from papers import PAPERS
from papers.inversion.compute.plan import Plan, Subject
from papers.inversion.compute.rows import gather_arrays, gather_class_images, keep
from papers.inversion.gallery import Gallery
from papers.inversion.section import KEYS, Inversion
from pipeline.config.params import Params, whole
from pipeline.jobs.files import ARRAYS, HISTORY, RESULTS, ROWS, sha256, weights_file
from pipeline.jobs.identity import code_digest
from pipeline.jobs.job import Job
from pipeline.jobs.rows import read_rows
from tests.conftest import cases_of

CASES = cases_of(__file__)
SECTION = CASES["section"]
DIGEST = cache(code_digest)
Make = Callable[..., Plan]


def trainings_of(plan: Plan) -> dict[tuple[str, int], Job]:
    """The trainings from scratch, by family and seed."""
    jobs = {}
    for family, seeds in plan.trainings().items():
        for seed, job in seeds.items():
            jobs[family, seed] = job
    return jobs


@pytest.fixture
def make(params: Params, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A factory of plans: keys of SECTION, and of the chosen model's preset or the top level.

    All weights are there.
    """
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setattr("pipeline.jobs.job.code_digest", DIGEST)

    def leave_weights(folder: Path, text: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for judge in ("validation", "heldout"):
            (folder / weights_file(judge)).write_text(f"{text} {judge}")

    for name in ("pretrain", "finetune/ls", "baseline"):
        for seed in range(5):
            leave_weights(tmp_path / name / f"seed_{seed}", f"{name} {seed}")

    def made(inversion: dict[str, Any] | None = None, **others: Any) -> Plan:
        values = params.model_dump()
        preset = values["models"][values["model"]]
        preset |= {"inversion": SECTION | (inversion or {}), "pretrain": {"seeds": 1}}
        for name, value in others.items():
            if isinstance(value, dict):
                preset[name] = preset.get(name, {}) | value
            else:
                values[name] = value
        changed = whole(PAPERS).model_validate(values)
        plan = Plan(changed, prepared, tmp_path / "finetune", tmp_path / "pretrain")
        for job in trainings_of(plan).values():
            leave_weights(job.folder, job.key)
        return plan

    return made


def test_a_training_a_family_and_seed(make: Make) -> None:
    """None of the chosen model; options are those of `pretrain` with `training` above them."""
    plan = make()
    jobs = trainings_of(plan)
    assert list(jobs) == [(family, seed) for family in ("vit", "mixer") for seed in (0, 1)]
    assert len({job.key for job in jobs.values()}) == 4
    for (family, seed), job in jobs.items():
        config: Any = job.config
        assert config.options == plan.params.scratch_training(Inversion)
        assert (config.options.lr, config.options.epochs) == (0.25, 2)
        own = SECTION["families"][family]
        sizes = {"img_size": 28, "in_chans": 1}  # of the chosen model
        expected = {"weights": "scratch"} | own | {"kwargs": sizes | own["kwargs"]}
        assert expected.items() <= config.model.model_dump().items()
        assert (config.seed, config.variant.route) == (seed, "sequential")
        assert job.inputs["weights"] is None


def test_seeds(make: Make) -> None:
    """The chosen model is there once a set of starting weights, all others for the first seeds."""
    plan = make({"seeds": 3}, pretrain={"seeds": 2})
    seeds: dict[str, list[int]] = {}
    for model in [*plan.subjects(), *plan.refined()]:
        seeds.setdefault(f"{model.family} {model.weights}", []).append(model.seed)
    assert seeds.pop("own trained") == seeds.pop("own untrained") == [0, 1]
    assert list(seeds.values()) == [[0, 1, 2]] * 6


@pytest.mark.parametrize(("protocol", "judge"), [("paper", "validation"), ("heldout", "heldout")])
def test_models_and_their_weights(make: Make, tmp_path: Path, protocol: str, judge: str) -> None:
    plan = make({"variants": ["baseline", "ls"]}, protocol=protocol)
    trainings = trainings_of(plan)
    name = weights_file(judge)
    files: dict[tuple[str, str], Path] = {
        ("own", "trained"): tmp_path / "pretrain" / "seed_0" / "weights_heldout.safetensors",
    }
    for seed in (0, 1):
        for family in ("vit", "mixer"):
            files[family, f"trained {seed}"] = trainings[family, seed].folder / name
        files["vit_micro", f"baseline {seed}"] = tmp_path / f"baseline/seed_{seed}" / name
        files["vit_micro", f"ls {seed}"] = tmp_path / f"finetune/ls/seed_{seed}" / name
    subjects = plan.subjects()
    for model in [*subjects, *plan.refined()]:
        weights = model.weights if model.family == "own" else f"{model.weights} {model.seed}"
        assert plan.file_of(model) == files.get((model.family, weights))
    for (_, weights, *_), job in plan.inversions(subjects).items():
        assert job.config.variant.route == ("arbitrary" if weights == "ls" else "sequential")
    assert make({"variants": []}).refined() == []


def test_what_is_inverted(make: Make) -> None:
    """Every job says its own title; parts come from the same seed's trained model."""
    plan = make()
    own = plan.subjects()
    jobs = plan.inversions(own)
    assert [job.title for job in jobs.values()] == CASES["inversions"]
    trained = {model.seed: plan.file_of(model) for model in own[:4] if model.weights == "trained"}
    assert list(jobs) == plan.inverted(own)
    for subject, job in jobs.items():
        config: Any = job.config
        assert job.title.startswith(f"{subject}, {subject.optimiser}")
        options = config.options
        assert (options.images, options.depths, options.seed) == (2, [1, 2], 11)
        assert config.descent == plan.options.optimisers[subject.optimiser]
        assert (config.seed, config.order) == (subject.seed, subject.order)
        assert (
            subject.edit
            == {
                (): "none",
                ("residuals", "mlp"): "without residuals+mlp",
                ("norms",): "without norms",
                ("patch_embed", "norm1"): "with patch_embed+norm1",
            }[(*config.ablation, *config.transplant)]
        )
        assert not (config.ablation and config.transplant)
        assert config.alone == (subject.edit == "none" and subject.order == "sequential")
        file = plan.file_of(subject)
        donor = trained[subject.seed] if config.transplant else None
        assert config.weights_sha256 == (sha256(file) if file else None)
        assert config.donor_sha256 == (sha256(donor) if donor else None)
        inputs = {"data": plan.data, "weights": file, "donor": donor}
        assert dict(job.inputs) == inputs


def test_the_chosen_model_as_a_family_is_inverted_once(make: Make, params: Params) -> None:
    """Its untrained model is the one beside the variants."""
    plan = make({"families": {params.model: {}}, "ablations": {}, "transplants": {}})
    jobs = plan.inversions(plan.subjects())
    titles = {job.title for job in jobs.values()}
    assert len(titles) == len({job.key for job in jobs.values()}) == len(jobs)
    adam = [subject for subject in jobs if subject.optimiser == "adam"]
    assert len(adam) == 1 + 2 * 2 + 2 * 2  # trained; untrained and ls in both orders


def keys(plan: Plan) -> dict[str, dict[str, str]]:
    """Keys of the jobs by kind and title."""
    own = plan.subjects()
    jobs: dict[str, dict[Any, Any]] = {
        "trainings": trainings_of(plan),
        "inversions": plan.inversions(own),
        "class images": plan.class_images(own),
    }
    return {kind: {job.title: job.key for job in jobs[kind].values()} for kind in jobs}


@pytest.mark.parametrize(("inversion", "others", "different"), CASES["changes"])
def test_what_changes_the_keys(
    make: Make,
    inversion: dict[str, Any],
    others: dict[str, Any],
    different: dict[str, list[str]],
) -> None:
    """A job is the same whatever else is done."""
    first, again = keys(make()), keys(make(inversion, **others))
    for kind in first:
        titles = set(first[kind]) & set(again[kind])
        assert len(titles) > 1
        for title in titles:
            is_other = title.startswith(tuple(different.get(kind, ())))
            assert (first[kind][title] != again[kind][title]) == is_other


@pytest.mark.parametrize("seeds", [1, 3])
def test_judges_of_class_images(make: Make, seeds: int) -> None:
    """The next seed's training judges, for the last the first; nobody judges a single one."""
    plan = make({"seeds": seeds})
    own = plan.subjects()
    files = {(*m[:2], m.seed): plan.file_of(m) for m in (*own, *plan.refined())}
    expected = [key for key in files if key[1] != "untrained"]
    jobs = plan.class_images(own)
    assert [(*key[:2], key[-1]) for key in jobs] == expected
    for key, job in zip(expected, jobs.values(), strict=True):
        config: Any = job.config
        judge = files[(*key[:2], (key[2] + 1) % seeds)] if seeds > 1 and key[0] != "own" else None
        inputs = {"data": plan.data, "weights": files[key], "judge": judge}
        assert dict(job.inputs) == inputs
        assert config.judge_sha256 == (sha256(judge) if judge else None)
        assert config.weights_sha256 == sha256(files[key])  # type: ignore[arg-type]
        assert (config.options, config.seed) == (plan.options.class_images, key[2])


@pytest.mark.parametrize(("head", "shown"), [("fresh", False), ("loaded", True), (None, True)])
def test_models_whose_head_knows_no_classes_are_not_shown(
    make: Make, tmp_path: Path, head: str | None, shown: bool
) -> None:
    """Starting weights tell that their head is random; what was trained on them knows classes."""
    if head:
        origin = tmp_path / "pretrain" / "seed_0" / "weights.json"
        origin.write_text(json.dumps({"timm": "vit", "head": head}))
    (tmp_path / "finetune/ls/seed_0/weights.json").write_text('{"head": "fresh"}')
    plan = make()
    families = [family for family, *_ in plan.class_images(plan.subjects())]
    assert ("own" in families) == shown
    assert len(families) == 6 + shown


class Finished(NamedTuple):
    """A plan whose jobs have ended."""

    plan: Plan
    trainings: dict[str, dict[int, Job]]
    inversions: dict[Subject, Job]
    class_images: dict[Subject, Job]


@pytest.fixture
def finished(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Finished:
    """Numbers in the files of every job say whose they are. Results go to a folder of their own."""
    plan = make()
    trainings = plan.trainings()
    own = plan.subjects()
    inversions, class_images = plan.inversions(own), plan.class_images(own)
    for number, job in enumerate([*inversions.values(), *class_images.values()]):
        folder = job.folder
        folder.mkdir(parents=True, exist_ok=True)
        if number < len(inversions):
            rows: dict[str, Any] = {"point": ["patch_embed", "first 1"]}
            rows |= {"lr": [number, number + 0.5], "verdict": ["non-unique"] * 2}
        else:
            rows = {"class": ["nan", "NA"], "probability": [number] * 2}
            rows |= {"judge_probability": [0.1, np.nan], "judge_sees": ["NA", "None"]}
        pd.DataFrame(rows).to_csv(folder / ROWS, index=False)
        np.savez(folder / ARRAYS, found=np.full(3, number))
    for number, job in enumerate(trainings_of(plan).values()):
        epochs = [(0.9, 2.0), (number / 8, 1.0), (0.8, 3.0)]  # the second has the lowest loss
        history = []
        for epoch, (accuracy, loss) in enumerate(epochs, 1):
            row = {"epoch": epoch, "validation/sequential/accuracy": accuracy}
            history.append(row | {"validation/sequential/loss": loss})
        (job.folder / HISTORY).write_text(json.dumps(history))
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    return Finished(plan, trainings, inversions, class_images)


def places_of(jobs: list[Job]) -> list[int]:
    """The numbers in each job's folder: two that are the same job have the last one's."""
    last = {job.key: place for place, job in enumerate(jobs)}
    return [last[job.key] for job in jobs]


def test_rows(finished: Finished) -> None:
    """They have the keys of their models; a training's accuracy is that of the kept epoch."""
    keep(*finished)
    rows = read_rows(RESULTS / "inversion.csv")
    names = ["dataset", "model", *KEYS, "point", "lr", "verdict"]
    assert list(rows.columns) == names
    assert rows["lr"].tolist()[::2] == places_of(list(finished.inversions.values()))
    assert rows["point"].tolist() == ["patch_embed", "first 1"] * len(finished.inversions)
    for key, row in zip(finished.inversions, rows.iloc[1::2].to_dict("records"), strict=True):
        where = {"dataset": "fashion_mnist_10k", "model": "vit_micro"}
        assert (where | dict(zip(KEYS, key, strict=True))).items() <= row.items()
    rows = read_rows(RESULTS / "class_images.csv")
    assert rows["family"].tolist()[::2] == [key[0] for key in finished.class_images]
    names = rows[["class", "judge_sees"]].iloc[:2].values.tolist()
    assert names == [["nan", "NA"], ["NA", "None"]]  # no missing values
    assert rows["judge_probability"].isna().tolist()[:2] == [False, True]
    none = gather_class_images(finished.plan, {})
    assert list(none.columns) == list(rows.columns)
    rows = read_rows(RESULTS / "inversion_trainings.csv")
    assert list(zip(rows["family"], rows["seed"], strict=True)) == list(trainings_of(finished.plan))
    assert rows["accuracy"].tolist() == [0, 1 / 8, 2 / 8, 3 / 8]


def test_arrays_are_found_again(finished: Finished) -> None:
    inversions, class_images = finished.inversions, finished.class_images
    gather_arrays(inversions, class_images, Path("arrays"))
    gallery = Gallery(Path("arrays"))
    places = iter(places_of([*inversions.values(), *class_images.values()]))
    for kind, jobs in (("inversion", inversions), ("class_images", class_images)):
        for key in jobs:
            where = {"dataset": "fashion_mnist_10k", "model": "vit_micro"}
            (entry,) = gallery.find(kind, **where, **dict(zip(KEYS, key, strict=True)))
            assert entry.arrays["found"].tolist() == [next(places)] * 3
    assert len(gallery.find()) == sum(key[-1] == 0 for key in inversions)
