"""The jobs of stage `inversion`: trainings from scratch, inversions and class images, and the rows that come of them. No torch here."""

import json
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from lsvit.data import read_meta
from lsvit.inversion_sections import NO_EDIT, Inversion, InversionMeasure, Part, Transplant
from lsvit.inversion_tables import EMBEDDING, INPUT, PIXELS, with_ratios
from lsvit.jobs import (
    INVERSION_ARRAYS,
    INVERSION_ROWS,
    JUDGES,
    ClassImagesConfig,
    InversionConfig,
    TrainConfig,
    run_config,
    starting_weights,
    weights_file,
)
from lsvit.launch import Job
from lsvit.params import TRAINED, UNTRAINED, Params
from lsvit.presets import ModelPreset
from lsvit.routes import ORDERS, Order
from lsvit.sections import Variant
from lsvit.shards import sha256

KEYS = ["dataset", "model", "family", "weights", "edit", "order", "optimiser", "seed"]
COLUMNS = [*KEYS, "point", "depth", "image", "lr", "embedding_distance", "yardstick", "input_distance", "input_yardstick",
           "token_distance", "token_yardstick", "pixel_correlation", "num_layers", "overcomplete", "verdict"]  # fmt: skip
CLASS_KEYS = ["dataset", "model", "family", "weights", "seed"]
CLASS_COLUMNS = [*CLASS_KEYS, "class", "probability", "judge_probability", "judge_sees"]
ORIGIN = "weights.json"  # as in lsvit.weights, which imports torch
PLAIN = Variant(route="sequential")


class Subject(NamedTuple):
    """One model that is looked into: its weights, and what was taken out of its blocks or put in."""

    family: str
    weights: str  # "trained", "untrained", or a variant of params.yaml
    preset: ModelPreset
    seed: int
    variant: Variant = PLAIN
    file: Path | None = None  # of the weights
    ablation: tuple[Part, ...] = ()
    transplant: tuple[Transplant, ...] = ()
    donor: Path | None = None  # weights of the model that parts come from

    @property
    def edit(self) -> str:
        """ "none", "without residuals+mlp", "with patch_embed"."""
        if self.ablation:
            return f"without {'+'.join(self.ablation)}"
        return f"with {'+'.join(self.transplant)}" if self.transplant else NO_EDIT

    def alone(self, order: Order) -> bool:
        """Whether its layers are inverted alone, too."""
        return order == "sequential" and self.edit == NO_EDIT

    def __str__(self) -> str:
        edit = "" if self.edit == NO_EDIT else f" {self.edit}"
        return f"{self.family} {self.weights}{edit} seed {self.seed}"


class Task(NamedTuple):
    """What is done with a subject."""

    subject: Subject
    order: Order
    optimiser: str  # of an inversion
    job: Job

    @property
    def keys(self) -> list[Any]:
        """Values of :data:`KEYS`."""
        config, subject = self.job.config, self.subject
        return [config.dataset, config.model_name, subject.family, subject.weights, subject.edit, self.order, self.optimiser, subject.seed]


class Plan:
    """Makes the jobs from params.yaml: first the trainings, then what is done with the models."""

    def __init__(self, params: Params, data: Path = Path(), finetuned: Path = Path(), pretrained: Path = Path()) -> None:
        self.params, self.options, self.data, self.finetuned, self.pretrained = (
            params,
            params.resolve(Inversion),
            data,
            finetuned,
            pretrained,
        )
        self.judge = JUDGES[params.protocol]
        self.digest = cache(sha256)
        self.seeds = params.seeds[: self.options.seeds]

    def is_own(self, family: str) -> bool:
        """Whether a family is the chosen model with its starting weights, of which there is one set."""
        return self.options.families[family].timm is None

    def trainings(self) -> dict[tuple[str, int], Job]:
        """The trainings from scratch, by family and seed."""
        options, found = self.params.scratch_training(Inversion), {}
        for family in self.options.families:
            if self.is_own(family):
                continue
            for seed in self.seeds:
                run = self._run(f"inversion_{family}", PLAIN, None, self.params.family_preset(family))
                config = TrainConfig(**run, options=options, seed=seed, **self.params.distributed.identity)
                inputs = {"data": self.data, "weights": None}
                found[family, seed] = Job(f"{config.title} seed {seed}", "lsvit.training:train", config, inputs, options.epochs)
        return found

    def _run(self, title: str, variant: Variant, weights: Path | None, preset: ModelPreset) -> dict[str, Any]:
        return run_config(self.params, title, variant, read_meta(self.data)["sha256"], self._digest(weights), preset)

    def _digest(self, file: Path | None) -> str | None:
        return self.digest(file) if file else None

    def subjects(self) -> list[Subject]:
        """Every family trained and untrained, once a seed; one whose starting weights are given, once. Without files."""
        found = []
        for family in self.options.families:
            preset = self.params.family_preset(family)
            for seed in self.seeds[:1] if self.is_own(family) else self.seeds:
                found += [Subject(family, TRAINED, preset, seed), Subject(family, UNTRAINED, preset, seed)]
        return found

    def models(self, trainings: dict[tuple[str, int], Job]) -> list[Subject]:
        """The subjects with the files of their weights."""
        return [self._with_file(subject, trainings) if subject.weights == TRAINED else subject for subject in self.subjects()]

    def _with_file(self, subject: Subject, trainings: dict[tuple[str, int], Job]) -> Subject:
        if self.is_own(subject.family):
            return subject._replace(file=starting_weights(self.pretrained))
        return subject._replace(file=trainings[subject.family, subject.seed].folder / weights_file(self.judge))

    def refined(self) -> list[Subject]:
        """The variants of params.yaml that are looked into, and the chosen model untrained beside them, once a seed."""
        found = [Subject(self.params.model, UNTRAINED, self.params.model_preset, seed) for seed in self.seeds if self.options.variants]
        for name in self.options.variants:
            variant, preset = self.params.all_variants[name], self.params.model_preset
            folders = {seed: self.finetuned / name / f"seed_{seed}" for seed in self.seeds}
            found += [Subject(self.params.model, name, preset, s, variant, f / weights_file(self.judge)) for s, f in folders.items()]
        return found

    def edited(self, models: Sequence[Subject]) -> list[Subject]:
        """The models with parts taken out of every block, and the untrained ones with parts of the trained ones."""
        found = []
        for model in models:
            found += [model._replace(ablation=tuple(parts)) for parts in self.options.ablations.get(model.family, ())]
        donors = {(model.family, model.seed): model.file for model in models if model.weights == TRAINED}
        for model in models:
            if model.weights == UNTRAINED:
                donor = donors[model.family, model.seed]
                kinds = self.options.transplants.get(model.family, ())
                found += [model._replace(transplant=tuple(parts), donor=donor) for parts in kinds]
        return found

    def inverted(self, models: Sequence[Subject]) -> list[tuple[Subject, str, Order]]:
        """What is inverted, under which optimiser, along routes in which order: models as they are, also each layer alone; variants in
        both orders; edited models. The first family also under the other optimisers, which come first: they take longest."""
        main, *others = self.options.optimisers
        family = next(iter(self.options.families))
        found: list[tuple[Subject, str, Order]] = []
        found += [(model, name, "sequential") for name in others for model in models if model.family == family]
        found += [(model, main, "sequential") for model in models]
        found += [(model, main, order) for model in self.refined() for order in ORDERS]
        found += [(model, main, "sequential") for model in self.edited(models)]
        return list({(str(each[0]), *each[1:]): each for each in found}.values())  # the chosen model may be a family too

    def inversions(self, models: Sequence[Subject]) -> list[Task]:
        """The jobs of what is inverted."""
        return [self._inversion(*each) for each in self.inverted(models)]

    def _inversion(self, subject: Subject, optimiser: str, order: Order) -> Task:
        measure = InversionMeasure.model_validate(self.options.model_dump(include=set(InversionMeasure.model_fields)))
        config = InversionConfig(
            **self._run(f"{subject.family}_{subject.weights}", subject.variant, subject.file, subject.preset),
            options=measure, descent=self.options.optimisers[optimiser], alone=subject.alone(order),
            order=order, ablation=list(subject.ablation), transplant=list(subject.transplant),
            donor_sha256=self._digest(subject.donor), seed=subject.seed,
        )  # fmt: skip
        inputs = {"data": self.data, "weights": subject.file, "donor": subject.donor}
        name = f"{subject}, {optimiser}" + ("" if order == "sequential" else f", {order}")
        return Task(subject, order, optimiser, Job(name, "lsvit.inversion:measure", config, inputs))

    def judged(self, models: Sequence[Subject]) -> list[tuple[Subject, Subject | None]]:
        """Trained models and variants, each with the next seed's training of the same kind, if there is one."""
        trained, found = [model for model in (*models, *self.refined()) if model.weights != UNTRAINED], []
        for model in trained:
            kin = [other for other in trained if (other.family, other.weights) == (model.family, model.weights)]
            found.append((model, kin[(kin.index(model) + 1) % len(kin)] if len(kin) > 1 else None))
        return found

    def has_fresh_head(self, model: Subject) -> bool:
        """Whether a model's starting weights came without a head for these classes, and what it has is a random one."""
        origin = model.file.parent / ORIGIN if model.file and model.weights == TRAINED else None
        return bool(origin and origin.is_file() and json.loads(origin.read_text())["head"] == "fresh")

    def class_images(self, models: Sequence[Subject]) -> list[Task]:
        """Class-maximising inputs of trained models and variants whose head knows the classes, shown to their judges."""
        found = []
        for model, other in self.judged(models):
            if self.has_fresh_head(model):
                continue
            judge = other.file if other else None
            run = self._run(f"{model.family}_{model.weights}", model.variant, model.file, model.preset)
            config = ClassImagesConfig(**run, options=self.options.class_images, judge_sha256=self._digest(judge), seed=model.seed)
            inputs = {"data": self.data, "weights": model.file, "judge": judge}
            found.append(Task(model, "sequential", "", Job(f"class images of {model}", "lsvit.class_images:measure", config, inputs)))
        return found


def inversion_rows(tasks: Sequence[Task]) -> pd.DataFrame:
    """A row a model, point and image; columns as :data:`COLUMNS`."""
    tables = []
    for task in tasks:
        rows = pd.read_csv(task.job.folder / INVERSION_ROWS)
        tables.append(rows.assign(**dict(zip(KEYS, task.keys, strict=True))))
    return pd.concat(tables)[COLUMNS]


def class_rows(tasks: Sequence[Task]) -> pd.DataFrame:
    """A row a model and class: the probability that the model, and another training of it, gives the class, and which one that sees."""
    tables = []
    for task in tasks:
        own = dict(zip(KEYS, task.keys, strict=True))
        rows = pd.read_csv(task.job.folder / INVERSION_ROWS, keep_default_na=False, na_values={"judge_probability": ""})
        tables.append(rows.assign(**{key: own[key] for key in CLASS_KEYS}))
    return pd.concat(tables)[CLASS_COLUMNS] if tables else pd.DataFrame(columns=CLASS_COLUMNS)


def gather_arrays(inversions: Sequence[Task], class_images: Sequence[Task], out: Path) -> None:
    """Copy the images and curves that figures show to `out`, and write which file is whose."""
    out.mkdir(parents=True, exist_ok=True)
    index = []
    for i, task in enumerate([*inversions, *class_images]):
        file = f"{i:03}.npz"
        shutil.copyfile(task.job.folder / INVERSION_ARRAYS, out / file)
        kind = "inversion" if i < len(inversions) else "class_images"
        index.append({"file": file, "kind": kind} | dict(zip(KEYS, task.keys, strict=True)))
    (out / "index.json").write_text(json.dumps(index, indent=1) + "\n")


def about(params: Params) -> dict[str, Any]:
    """What inversion.csv does not say, for captions."""
    options, training = params.resolve(Inversion), params.scratch_training(Inversion)
    return {
        "sigma": options.sigma, "shifts": options.shifts, "met": options.met, "epochs": training.epochs, "training_images": training.images,
        "optimisers": {name: descent.model_dump() for name, descent in options.optimisers.items()},
        "class_images": options.class_images.model_dump(),
        "families": list(options.families),
        "trained_here": [name for name, family in options.families.items() if family.timm is not None],
    }  # fmt: skip


def inversion_metrics(rows: pd.DataFrame, optimiser: str) -> dict[str, Any]:
    """For `dvc metrics`: means over seeds and images under one optimiser, by model, edit and order, and point."""
    shown = with_ratios(rows[rows["optimiser"] == optimiser])
    found: dict[str, Any] = {}
    for (family, weights, edit, order, point), group in shown.groupby(["family", "weights", "edit", "order", "point"], sort=False):
        name = f"{family} {weights}" + ("" if edit == NO_EDIT else f" {edit}") + ("" if order == "sequential" else f" {order}")
        means = group[[EMBEDDING, INPUT, PIXELS]].mean()
        found.setdefault(name.replace("+", " and "), {})[str(point)] = {key: round(float(value), 6) for key, value in means.items()}
    return found
