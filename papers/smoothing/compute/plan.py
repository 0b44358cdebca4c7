"""The jobs of stage `smoothing`, trainings from scratch and profiles. No torch here."""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from lsvit.routes import ORDERS, Order
from papers.smoothing.compute.presets import preset
from papers.smoothing.section import (
    SCRATCH,
    WHOLE,
    Losses,
    ProfileConfig,
    Smoothing,
    SmoothingProfiles,
    name_drop_path,
)
from pipeline.config.paper import Work
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import UNTRAINED
from pipeline.files import read_json
from pipeline.jobs.files import HISTORY, RESULTS, weights_file
from pipeline.jobs.job import Job
from pipeline.jobs.plan import Plan as BasePlan
from pipeline.jobs.rows import read_rows, seed_means
from pipeline.training.judging import kept_epoch


class Model(NamedTuple):
    """One model whose profile is taken."""

    training: str  # "scratch", "untrained", or a variant of params.yaml
    variant: Any  # of the class with the papers' keys
    preset: ModelPreset
    seed: int
    changed: str = WHOLE  # of the recipe: "without_mixup", "drop_path_0.5"
    job: Job | None = None  # its training, if this stage trains it

    @property
    def title(self) -> str:
        """Its name among the runs and in outs/, of a variant its own.

        Example: "scratch_12_cosine_mixing_without_mixup".
        """
        if self.training not in (SCRATCH, UNTRAINED):
            return self.training
        losses = str(self.variant.losses).replace("+", "_")
        title = f"{self.training}_{self.preset.kwargs['depth']}_{losses}"
        if self.changed != WHOLE:
            title += f"_{self.changed}"
        return f"{title}_talking_heads" if self.variant.talking_heads else title


class Profiled(NamedTuple):
    """A profile of a model in one order, and the model's accuracy in it."""

    model: Model
    order: Order
    job: Job
    accuracy: float | None


class Plan(BasePlan):
    """Makes the jobs from params.yaml: first the trainings, then the profiles of what they left."""

    def __init__(self, params: Params) -> None:
        super().__init__(params, Smoothing)
        self.evaluated = RESULTS / "prune_eval.csv"

    def models(self) -> list[Model]:
        """The models to train from scratch, each once, longest first.

        Table 1 at every depth comes first, then what Tables 5, 4 and 3 add.
        """
        options = self.options
        whole, best = options.recipe, options.best
        depths = sorted(options.depths, reverse=True)
        rows = product(depths, options.losses)
        chosen = [(depth, losses, whole, WHOLE, False) for depth, losses in rows]
        for depth, rate in product(depths[:1], options.drop_paths):
            recipe = whole.model_copy(update={"drop_path": rate})
            changed = name_drop_path(rate, whole.drop_path)
            for losses in (best.model_copy(update={"contrastive": None}), best):
                chosen.append((depth, losses, recipe, changed, True))
        if options.removed:
            recipes = {WHOLE: whole}
            recipes |= {f"without_{part}": whole.without(part) for part in options.removed}
            for depth, changed, losses in product(depths[-1:], recipes, (Losses(), best)):
                chosen.append((depth, losses, recipes[changed], changed, False))
        chosen += [(depth, best, whole, WHOLE, True) for depth in options.talking_heads]
        models = []
        for depth, losses, recipe, changed, talking_heads in dict.fromkeys(chosen):
            variant = self.params.make_variant(
                route="sequential", losses=losses, recipe=recipe, talking_heads=talking_heads
            )
            smaller = preset(self.params, depth)
            models += [Model(SCRATCH, variant, smaller, seed, changed) for seed in self.seeds]
        return models

    def trained(self, model: Model) -> Model:
        """A model to train from scratch with its job."""
        options = self.params.scratch_training(Smoothing)
        return model._replace(
            job=self.training(model.title, model.variant, options, model.seed, preset=model.preset)
        )

    def references(self) -> list[Model]:
        """Random initialisations, one a depth and seed."""
        plain = self.params.make_variant(route="sequential")
        return [
            Model(UNTRAINED, plain, preset(self.params, depth), seed)
            for depth in sorted(set(self.options.depths), reverse=True)
            for seed in self.seeds
        ]

    def refined(self) -> list[Model]:
        """The variants of params.yaml whose weights are profiled, one a seed."""
        models = []
        for name in self.options.variants:
            variant = self.params.all_variants[name]
            models += [Model(name, variant, self.params.model_preset, seed) for seed in self.seeds]
        return models

    def profiles(self, models: Sequence[Model]) -> list[Profiled]:
        """The profiles of models whose trainings have ended, of variants in both orders."""
        options = self.options.narrow(SmoothingProfiles)
        profiles = []
        for model in models:
            weights, accuracies = self._result(model)
            fields = self.fields(model.title, model.variant, weights, model.preset)
            fields |= {"options": options, "precision": self.precision(), "seed": model.seed}
            is_variant = model.training not in (SCRATCH, UNTRAINED)
            for order in ORDERS if is_variant else ORDERS[:1]:
                job = Job(
                    f"profile of {model.title} seed {model.seed}, {order}",
                    "papers.smoothing.compute.measures:measure",
                    ProfileConfig(**fields, order=order),
                    {"data": self.data, "weights": weights},
                )
                profiles.append(Profiled(model, order, job, accuracies.get(order)))
        return profiles

    def _result(self, model: Model) -> tuple[Path | None, dict[str, float]]:
        """A model's weights, and its accuracy on the validation images by order."""
        if model.training == UNTRAINED:
            return None, {}
        if model.job:
            history = read_json(model.job.folder / HISTORY, list)
            kept = kept_epoch(history, model.variant.route, self.judge)
            weights = model.job.folder / weights_file(self.judge)
            return weights, {"sequential": kept["validation/sequential/accuracy"]}
        means = seed_means(read_rows(self.evaluated)).loc[(model.training, model.seed)]
        return self.weights_of(model.training, model.seed), means.to_dict()


def list_work(params: Params, num_layers: int) -> list[Work]:
    """List what stage smoothing does, for `lsvit cost`: trainings and a profile of each."""
    plan = Plan(params)
    depths = Counter(model.preset.kwargs["depth"] for model in plan.models())
    return [
        Work(
            "smoothing",
            f"{depth} layers",
            models,
            preset(params, depth),
            training=params.scratch_training(Smoothing),
            passes=[depth],
            images=plan.options.images,
        )
        for depth, models in depths.items()
    ]
