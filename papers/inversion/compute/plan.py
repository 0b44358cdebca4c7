"""The jobs of stage `inversion`: trainings from scratch, inversions and class images. No torch here."""

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
        """What tells it apart in results/: data set, model, family, weights, edit, order, optimiser, seed."""
        config, subject = self.job.config, self.subject
        return [
            config.dataset,
            config.model_name,
            subject.family,
            subject.weights,
            subject.edit,
            self.order,
            self.optimiser,
            subject.seed,
        ]


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
        """Whether a family is the chosen model with its starting weights."""
        return self.options.families[family].timm is None

    def trainings(self) -> dict[tuple[str, int], Job]:
        """The trainings from scratch, by family and seed."""
        options, families = (
            self.params.scratch_training(Inversion),
            [f for f in self.options.families if not self.is_own(f)],
        )
        return {
            (family, seed): self.training(
                f"inversion_{family}",
                PLAIN,
                options,
                seed,
                preset=family_preset(self.params, family),
            )
            for family in families
            for seed in self.seeds
        }

    def subjects(self) -> list[Subject]:
        """Every family trained and untrained, once a seed; the chosen model once a set of starting weights. Without files."""
        found = []
        for family in self.options.families:
            preset = family_preset(self.params, family)
            for seed in (
                [seed for seed in self.seeds if seed in self.params.starts]
                if self.is_own(family)
                else self.seeds
            ):
                found += [
                    Subject(family, TRAINED, preset, seed),
                    Subject(family, UNTRAINED, preset, seed),
                ]
        return found

    def models(self, trainings: dict[tuple[str, int], Job]) -> list[Subject]:
        """The subjects with the files of their weights."""
        return [
            self._with_file(subject, trainings) if subject.weights == TRAINED else subject
            for subject in self.subjects()
        ]

    def _with_file(self, subject: Subject, trainings: dict[tuple[str, int], Job]) -> Subject:
        if self.is_own(subject.family):
            return subject._replace(file=self.start(subject.seed))
        return subject._replace(
            file=trainings[subject.family, subject.seed].folder / weights_file(self.judge)
        )

    def refined(self) -> list[Subject]:
        """The variants of params.yaml that are looked into, and the chosen model untrained beside them, once a seed."""
        found = [
            Subject(self.params.model, UNTRAINED, self.params.model_preset, seed)
            for seed in self.seeds
            if self.options.variants
        ]
        for name in self.options.variants:
            variant, preset = self.params.all_variants[name], self.params.model_preset
            found += [
                Subject(self.params.model, name, preset, seed, variant, self.weights_of(name, seed))
                for seed in self.seeds
            ]
        return found

    def edited(self, models: Sequence[Subject]) -> list[Subject]:
        """The models with parts taken out of every block, and the untrained ones with parts of the trained ones."""
        found = []
        for model in models:
            found += [
                model._replace(ablation=tuple(parts))
                for parts in self.options.ablations.get(model.family, ())
            ]
        donors = {
            (model.family, model.seed): model.file for model in models if model.weights == TRAINED
        }
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
        found += [
            (model, name, "sequential")
            for name in others
            for model in models
            if model.family == family
        ]
        found += [(model, main, "sequential") for model in models]
        found += [(model, main, order) for model in self.refined() for order in ORDERS]
        found += [(model, main, "sequential") for model in self.edited(models)]
        return list(
            {(str(each[0]), *each[1:]): each for each in found}.values()
        )  # the chosen model may be a family too

    def inversions(self, models: Sequence[Subject]) -> list[Task]:
        """The jobs of what is inverted."""
        return [self._inversion(*each) for each in self.inverted(models)]

    def _inversion(self, subject: Subject, optimiser: str, order: Order) -> Task:
        measure = InversionMeasure.model_validate(
            self.options.model_dump(include=set(InversionMeasure.model_fields))
        )
        config = InversionConfig(
            **self.fields(
                f"{subject.family}_{subject.weights}", subject.variant, subject.file, subject.preset
            ),
            options=measure,
            descent=self.options.optimisers[optimiser],
            alone=subject.alone(order),
            order=order,
            ablation=list(subject.ablation),
            transplant=list(subject.transplant),
            donor_sha256=self.digest_of(subject.donor),
            seed=subject.seed,
        )
        inputs = {"data": self.data, "weights": subject.file, "donor": subject.donor}
        name = f"{subject}, {optimiser}" + ("" if order == "sequential" else f", {order}")
        return Task(
            subject,
            order,
            optimiser,
            Job(name, "papers.inversion.compute.descent:measure", config, inputs),
        )

    def judged(self, models: Sequence[Subject]) -> list[tuple[Subject, Subject | None]]:
        """Trained models and variants, each with the next seed's training of the same kind, if there is one."""
        trained, found = (
            [model for model in (*models, *self.refined()) if model.weights != UNTRAINED],
            [],
        )
        for model in trained:
            kin = [
                other
                for other in trained
                if (other.family, other.weights) == (model.family, model.weights)
            ]
            found.append((model, kin[(kin.index(model) + 1) % len(kin)] if len(kin) > 1 else None))
        return found

    def has_fresh_head(self, model: Subject) -> bool:
        """Whether a model's starting weights came without a head for these classes, and what it has is a random one."""
        origin = model.file.parent / ORIGIN if model.file and model.weights == TRAINED else None
        return bool(
            origin and origin.is_file() and json.loads(origin.read_text())["head"] == "fresh"
        )

    def class_images(self, models: Sequence[Subject]) -> list[Task]:
        """Class-maximising inputs of trained models and variants whose head knows the classes, shown to their judges."""
        found = []
        for model, other in self.judged(models):
            if self.has_fresh_head(model):
                continue
            judge = other.file if other else None
            run = self.fields(
                f"{model.family}_{model.weights}", model.variant, model.file, model.preset
            )
            config = ClassImagesConfig(
                **run,
                options=self.options.class_images,
                judge_sha256=self.digest_of(judge),
                seed=model.seed,
            )
            inputs = {"data": self.data, "weights": model.file, "judge": judge}
            found.append(
                Task(
                    model,
                    "sequential",
                    "",
                    Job(
                        f"class images of {model}",
                        "papers.inversion.compute.class_images:measure",
                        config,
                        inputs,
                    ),
                )
            )
        return found


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
