"""The jobs of stage `inversion`: trainings, inversions and class images. No torch here."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lsvit.routes import ORDERS, Order
from papers.inversion.compute.presets import family_preset
from papers.inversion.section import (
    NO_EDIT,
    TRAINED,
    ClassImagesConfig,
    Inversion,
    InversionConfig,
    InversionMeasure,
    Part,
    Transplant,
)
from pipeline.config.paper import Work
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import PLAIN, UNTRAINED, Variant
from pipeline.jobs.files import DATA, FINETUNED, ORIGIN, PRETRAINED, weights_file
from pipeline.jobs.job import Job
from pipeline.jobs.plan import Plan as BasePlan


class Subject(NamedTuple):
    """One model that is looked into: its weights, what was taken out and what was put in."""

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
        if self.transplant:
            return f"with {'+'.join(self.transplant)}"
        return NO_EDIT

    def __str__(self) -> str:
        edit = "" if self.edit == NO_EDIT else f" {self.edit}"
        return f"{self.family} {self.weights}{edit} seed {self.seed}"


class Task(NamedTuple):
    """What is done with a subject."""

    subject: Subject
    order: Order
    optimiser: str  # "" for class images
    job: Job

    @property
    def keys(self) -> dict[str, Any]:
        """The columns that tell it apart in results/."""
        return {
            "dataset": self.job.config.dataset,
            "model": self.job.config.model_name,
            "family": self.subject.family,
            "weights": self.subject.weights,
            "edit": self.subject.edit,
            "order": self.order,
            "optimiser": self.optimiser,
            "seed": self.subject.seed,
        }


class Plan(BasePlan):
    """Makes the jobs from params.yaml: first the trainings, then what is done with the models."""

    def __init__(
        self,
        params: Params,
        data: Path = DATA,
        folder: Path = FINETUNED,
        pretrained: Path = PRETRAINED,
    ) -> None:
        super().__init__(params, Inversion, data, folder, pretrained)

    def is_own(self, family: str) -> bool:
        """True if a family is the chosen model with its starting weights."""
        return self.options.families[family].timm is None

    def trainings(self) -> dict[tuple[str, int], Job]:
        """The trainings from scratch, by family and seed."""
        options = self.params.scratch_training(Inversion)
        jobs = {}
        for family in self.options.families:
            if self.is_own(family):
                continue
            preset = family_preset(self.params, family)
            for seed in self.seeds:
                title = f"inversion_{family}"
                jobs[family, seed] = self.training(title, PLAIN, options, seed, preset=preset)
        return jobs

    def subjects(self) -> list[Subject]:
        """Every family trained and untrained, without files.

        The chosen model is there once a set of starting weights, others once a seed.
        """
        subjects = []
        for family in self.options.families:
            preset = family_preset(self.params, family)
            seeds = self.seeds
            if self.is_own(family):
                seeds = [seed for seed in seeds if seed in self.params.starts]
            for seed in seeds:
                for weights in (TRAINED, UNTRAINED):
                    subjects.append(Subject(family, weights, preset, seed))
        return subjects

    def models(self, trainings: dict[tuple[str, int], Job]) -> list[Subject]:
        """The subjects with the files of their weights."""
        models = []
        for subject in self.subjects():
            file = None
            if subject.weights == TRAINED and self.is_own(subject.family):
                file = self.start(subject.seed)
            elif subject.weights == TRAINED:
                job = trainings[subject.family, subject.seed]
                file = job.folder / weights_file(self.judge)
            models.append(subject._replace(file=file))
        return models

    def refined(self) -> list[Subject]:
        """The variants that are looked into, and the untrained chosen model, once a seed."""
        family = self.params.model
        preset = self.params.model_preset
        subjects = []
        if self.options.variants:
            subjects += [Subject(family, UNTRAINED, preset, seed) for seed in self.seeds]
        for name in self.options.variants:
            variant = self.params.all_variants[name]
            for seed in self.seeds:
                file = self.weights_of(name, seed)
                subjects.append(Subject(family, name, preset, seed, variant, file))
        return subjects

    def edited(self, models: Sequence[Subject]) -> list[Subject]:
        """Models with parts taken out, and untrained ones with parts of the trained ones."""
        edited = []
        for model in models:
            for parts in self.options.ablations.get(model.family, ()):
                edited.append(model._replace(ablation=tuple(parts)))
        donors = {}
        for model in models:
            if model.weights == TRAINED:
                donors[model.family, model.seed] = model.file
        for model in models:
            if model.weights == UNTRAINED:
                donor = donors[model.family, model.seed]
                for parts in self.options.transplants.get(model.family, ()):
                    edited.append(model._replace(transplant=tuple(parts), donor=donor))
        return edited

    def inverted(self, models: Sequence[Subject]) -> list[tuple[Subject, str, Order]]:
        """What is inverted, under which optimiser, along routes in which order.

        These are the models as they are, variants in both orders, and edited models. The first
        family is also inverted under the other optimisers, which come first: they take longest.
        """
        main, *others = self.options.optimisers
        first_family = next(iter(self.options.families))
        chosen: list[tuple[Subject, str, Order]] = []
        for optimiser in others:
            for model in models:
                if model.family == first_family:
                    chosen.append((model, optimiser, "sequential"))
        chosen += [(model, main, "sequential") for model in models]
        chosen += [(model, main, order) for model in self.refined() for order in ORDERS]
        chosen += [(model, main, "sequential") for model in self.edited(models)]
        # The chosen model may be a family too: its untrained model is then listed twice.
        once = {(str(model), optimiser, order): model for model, optimiser, order in chosen}
        return [(model, optimiser, order) for (_, optimiser, order), model in once.items()]

    def inversions(self, models: Sequence[Subject]) -> list[Task]:
        """The jobs of what is inverted."""
        return [self._inversion(*chosen) for chosen in self.inverted(models)]

    def _inversion(self, subject: Subject, optimiser: str, order: Order) -> Task:
        config = InversionConfig(
            **self._fields_of(subject),
            options=self.options.narrow(InversionMeasure),
            descent=self.options.optimisers[optimiser],
            alone=order == "sequential" and subject.edit == NO_EDIT,
            order=order,
            ablation=list(subject.ablation),
            transplant=list(subject.transplant),
            donor_sha256=self.digest_of(subject.donor),
            seed=subject.seed,
        )
        inputs = {"data": self.data, "weights": subject.file, "donor": subject.donor}
        title = f"{subject}, {optimiser}"
        if order != "sequential":
            title += f", {order}"
        job = Job(title, "papers.inversion.compute.descent:measure", config, inputs)
        return Task(subject, order, optimiser, job)

    def _fields_of(self, subject: Subject) -> dict[str, Any]:
        title = f"{subject.family}_{subject.weights}"
        return self.fields(title, subject.variant, subject.file, subject.preset)

    def judged(self, models: Sequence[Subject]) -> list[tuple[Subject, Subject | None]]:
        """Trained models and variants, each with the next seed's training of it if there is one."""
        seeds: dict[tuple[str, str], list[Subject]] = {}
        trained = [model for model in (*models, *self.refined()) if model.weights != UNTRAINED]
        for model in trained:
            seeds.setdefault((model.family, model.weights), []).append(model)
        pairs: list[tuple[Subject, Subject | None]] = []
        for model in trained:
            others = seeds[model.family, model.weights]
            judge = others[(others.index(model) + 1) % len(others)]
            pairs.append((model, judge if len(others) > 1 else None))
        return pairs

    def has_fresh_head(self, model: Subject) -> bool:
        """True if a model has starting weights whose head is random for these classes."""
        if model.file is None or model.weights != TRAINED:
            return False
        origin = model.file.parent / ORIGIN
        return origin.is_file() and json.loads(origin.read_text("utf-8"))["head"] == "fresh"

    def class_images(self, models: Sequence[Subject]) -> list[Task]:
        """Class-maximising inputs of the trained models whose head knows the classes."""
        tasks = []
        for model, other in self.judged(models):
            if self.has_fresh_head(model):
                continue
            judge = other.file if other else None
            config = ClassImagesConfig(
                **self._fields_of(model),
                options=self.options.class_images,
                judge_sha256=self.digest_of(judge),
                seed=model.seed,
            )
            inputs = {"data": self.data, "weights": model.file, "judge": judge}
            title = f"class images of {model}"
            job = Job(title, "papers.inversion.compute.class_images:measure", config, inputs)
            tasks.append(Task(model, "sequential", "", job))
        return tasks


def list_work(params: Params, num_layers: int) -> list[Work]:
    """List what stage inversion does, for `lsvit cost`: a step of an input is 2 forward passes."""
    plan = Plan(params)
    options = plan.options
    subjects = plan.subjects()
    works = []
    for family in options.families:
        if not plan.is_own(family):
            training = params.scratch_training(Inversion)
            preset = family_preset(params, family)
            works.append(Work("inversion", "trainings", len(plan.seeds), preset, training=training))
    inverted = plan.inverted(subjects)
    presets = {subject.family: subject.preset for subject, _, _ in inverted}
    for (family, name), models in Counter((each[0].family, each[1]) for each in inverted).items():
        preset = presets[family]
        layers = _depth(preset, num_layers)
        descent = options.optimisers[name]
        points = options.depths or [1, layers // 3, 2 * layers // 3, layers]
        passes = points * (2 * descent.steps * len(descent.lrs))
        works.append(
            Work(
                "inversion",
                "inputs",
                models,
                preset,
                passes=passes,
                images=options.images,
            )
        )
    for family, models in Counter(each.family for each, _ in plan.judged(subjects)).items():
        preset = presets[family]
        passes = [_depth(preset, num_layers)] * (2 * options.class_images.steps)
        works.append(
            Work(
                "inversion",
                "class images",
                models,
                preset,
                passes=passes,
                images=params.dataset_preset.num_classes,
            )
        )
    return works


def _depth(preset: ModelPreset, default: int) -> int:
    """The number of a family's layers, which timm's mixers call blocks."""
    return preset.kwargs.get("depth") or preset.kwargs.get("num_blocks") or default
