"""The jobs of stage `inversion`: trainings, inversions and class images. No torch here."""

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
)
from pipeline.config.paper import Work
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import PLAIN, UNTRAINED
from pipeline.files import read_json
from pipeline.jobs.configs import MeasureConfig
from pipeline.jobs.files import ORIGIN, weights_file
from pipeline.jobs.job import Job
from pipeline.jobs.plan import Plan as BasePlan

INVERT = "papers.inversion.compute.descent:measure"
MAXIMISE = "papers.inversion.compute.class_images:measure"


class Subject(NamedTuple):
    """One model that is looked into, and how: the KEYS of the section."""

    family: str
    weights: str  # "trained", "untrained", or a variant of params.yaml
    edit: str  # "none", "without residuals+mlp", "with patch_embed" (of the trained model)
    order: Order
    optimiser: str  # "" for class images
    seed: int

    def parts(self, word: str) -> list[Any]:
        """The parts that were taken out ("without") or put in ("with")."""
        how, _, parts = self.edit.partition(" ")
        return parts.split("+") if how == word else []

    def __str__(self) -> str:
        edit = "" if self.edit == NO_EDIT else f" {self.edit}"
        return f"{self.family} {self.weights}{edit} seed {self.seed}"


def plain(family: str, weights: str, seed: int) -> Subject:
    """A model as it is, in its original order."""
    return Subject(family, weights, NO_EDIT, "sequential", "", seed)


class Plan(BasePlan):
    """Makes the jobs from params.yaml: first the trainings, then what is done with the models."""

    def __init__(self, params: Params, *places: Path) -> None:
        super().__init__(params, Inversion, *places)

    def is_own(self, family: str) -> bool:
        """True if a family is the chosen model with its starting weights."""
        return self.options.families[family].timm is None

    def training_of(self, family: str, seed: int) -> Job:
        """The training of a family from scratch."""
        options = self.params.scratch_training(Inversion)
        preset = family_preset(self.params, family)
        return self.training(f"inversion_{family}", PLAIN, options, seed, preset=preset)

    def trainings(self) -> dict[str, dict[int, Job]]:
        """The trainings from scratch, by family and seed."""
        jobs = {}
        for family in self.options.families:
            if not self.is_own(family):
                jobs[family] = {seed: self.training_of(family, seed) for seed in self.seeds}
        return jobs

    def subjects(self) -> list[Subject]:
        """Every family trained and untrained.

        The chosen model is there once a set of starting weights, others once a seed.
        """
        subjects = []
        for family in self.options.families:
            for seed in self.seeds:
                if not self.is_own(family) or seed in self.params.starts:
                    for weights in (TRAINED, UNTRAINED):
                        subjects.append(plain(family, weights, seed))
        return subjects

    def file_of(self, subject: Subject) -> Path | None:
        """The weights of a model whose training has ended; None if it is untrained."""
        family, weights, *_, seed = subject
        if weights == UNTRAINED:
            return None
        if weights != TRAINED:
            return self.weights_of(weights, seed)
        if self.is_own(family):
            return self.start(seed)
        return self.training_of(family, seed).folder / weights_file(self.judge)

    def refined(self) -> list[Subject]:
        """The variants that are looked into, and the untrained chosen model, once a seed."""
        variants = self.options.variants
        names = [UNTRAINED, *variants] if variants else []
        return [plain(self.params.model, name, seed) for name in names for seed in self.seeds]

    def edited(self, models: Sequence[Subject]) -> list[Subject]:
        """Models with parts taken out, and untrained ones with parts of the trained ones."""
        untrained = [model for model in models if model.weights == UNTRAINED]
        edited = []
        for word, targets, parts_of in (
            ("without", models, self.options.ablations),
            ("with", untrained, self.options.transplants),
        ):
            for model in targets:
                for parts in parts_of.get(model.family, ()):
                    edited.append(model._replace(edit=f"{word} {'+'.join(parts)}"))
        return edited

    def inverted(self, models: Sequence[Subject]) -> list[Subject]:
        """What is inverted, under which optimiser, along routes in which order.

        These are the models as they are, variants in both orders, and edited models. The first
        family is also inverted under the other optimisers, which come first: they take longest.
        """
        main, *others = self.options.optimisers
        first_family = next(iter(self.options.families))
        first_models = [model for model in models if model.family == first_family]
        chosen = []
        for optimiser in others:
            chosen += [model._replace(optimiser=optimiser) for model in first_models]
        refined = [model._replace(order=order) for model in self.refined() for order in ORDERS]
        for model in (*models, *refined, *self.edited(models)):
            chosen.append(model._replace(optimiser=main))
        # The chosen model may be a family too: its untrained model is then listed twice.
        return list(dict.fromkeys(chosen))

    def inversions(self, models: Sequence[Subject]) -> dict[Subject, Job]:
        """The jobs of what is inverted."""
        jobs = {}
        for subject in self.inverted(models):
            transplant = subject.parts("with")
            donor = self.file_of(subject._replace(weights=TRAINED)) if transplant else None
            title = f"{subject}, {subject.optimiser}"
            if subject.order != "sequential":
                title += f", {subject.order}"
            jobs[subject] = self._measurement(
                subject,
                title,
                INVERT,
                InversionConfig,
                {"donor": donor},
                options=self.options.narrow(InversionMeasure),
                descent=self.options.optimisers[subject.optimiser],
                alone=subject.order == "sequential" and subject.edit == NO_EDIT,
                order=subject.order,
                ablation=subject.parts("without"),
                transplant=transplant,
                donor_sha256=self.digest_of(donor),
            )
        return jobs

    def _measurement(
        self,
        subject: Subject,
        title: str,
        function: str,
        config: type[MeasureConfig],
        others: dict[str, Path | None],
        **options: Any,
    ) -> Job:
        """A job on one model; `others` are its inputs beside the model's weights."""
        family, weights, *_, seed = subject
        file = self.file_of(subject)
        variant = self.params.all_variants.get(weights, PLAIN)
        preset = family_preset(self.params, family)
        fields = self.fields(f"{family}_{weights}", variant, file, preset) | {"seed": seed}
        inputs = {"data": self.data, "weights": file, **others}
        return Job(title, function, config(**fields, **options), inputs)

    def trained(self, models: Sequence[Subject]) -> list[Subject]:
        """Trained models and variants."""
        return [model for model in (*models, *self.refined()) if model.weights != UNTRAINED]

    def has_fresh_head(self, model: Subject) -> bool:
        """True if a model has starting weights whose head is random for these classes."""
        if model.weights != TRAINED or not self.is_own(model.family):
            return False
        origin = self.start(model.seed).with_name(ORIGIN)
        return origin.is_file() and read_json(origin)["head"] == "fresh"

    def class_images(self, models: Sequence[Subject]) -> dict[Subject, Job]:
        """Class-maximising inputs of the trained models whose head knows the classes.

        The next seed's training judges them, if there is one.
        """
        trained = self.trained(models)
        jobs = {}
        for model in trained:
            if self.has_fresh_head(model):
                continue
            seeds = [other for other in trained if other[:2] == model[:2]]
            judge = seeds[(seeds.index(model) + 1) % len(seeds)]
            file = self.file_of(judge) if judge != model else None
            jobs[model] = self._measurement(
                model,
                f"class images of {model}",
                MAXIMISE,
                ClassImagesConfig,
                {"judge": file},
                options=self.options.class_images,
                judge_sha256=self.digest_of(file),
            )
        return jobs


def list_work(params: Params, num_layers: int) -> list[Work]:
    """List what stage inversion does, for `lsvit cost`: a step of an input is 2 forward passes."""
    plan = Plan(params)
    options = plan.options
    subjects = plan.subjects()
    training = params.scratch_training(Inversion)
    works = []
    for family in options.families:
        if not plan.is_own(family):
            preset = family_preset(params, family)
            works.append(Work("inversion", "trainings", len(plan.seeds), preset, training=training))
    inverted = Counter((each.family, each.optimiser) for each in plan.inverted(subjects))
    for (family, optimiser), models in inverted.items():
        preset = family_preset(params, family)
        descent = options.optimisers[optimiser]
        layers = _depth(preset, num_layers)
        depths = options.depths or [1, layers // 3, 2 * layers // 3, layers]
        passes = depths * (2 * descent.steps * len(descent.lrs))
        works.append(
            Work("inversion", "inputs", models, preset, passes=passes, images=options.images)
        )
    classes = params.dataset_preset.num_classes
    for family, models in Counter(model.family for model in plan.trained(subjects)).items():
        preset = family_preset(params, family)
        passes = [_depth(preset, num_layers)] * (2 * options.class_images.steps)
        works.append(
            Work("inversion", "class images", models, preset, passes=passes, images=classes)
        )
    return works


def _depth(preset: ModelPreset, default: int) -> int:
    """The number of a family's layers, which timm's mixers call blocks."""
    return preset.kwargs.get("depth") or preset.kwargs.get("num_blocks") or default
