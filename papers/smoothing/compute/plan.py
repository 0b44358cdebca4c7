"""The jobs of stage `smoothing`, trainings from scratch and profiles. No torch here."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lsvit.routes import ORDERS, Order
from papers.smoothing.compute.presets import preset
from papers.smoothing.section import SCRATCH, WHOLE, ProfileConfig, Smoothing, SmoothingProfiles
from pipeline.config.paper import Work
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import PLAIN, UNTRAINED, Losses, Recipe, Variant
from pipeline.jobs.files import DATA, FINETUNED, HISTORY, RESULTS, weights_file
from pipeline.jobs.job import Job
from pipeline.jobs.plan import Plan as BasePlan
from pipeline.jobs.rows import read_rows, seed_means
from pipeline.training.judging import kept_epoch


class Model(NamedTuple):
    """One model whose profile is taken."""

    training: str  # "scratch", "untrained", or a variant of params.yaml
    variant: Variant
    preset: ModelPreset
    seed: int
    removed: str = WHOLE
    job: Job | None = None  # its training, if this stage trains it

    @property
    def title(self) -> str:
        """Its name among the runs and in outs/: "scratch_12_cosine_mixing_without_mixup"; of a variant its own."""
        if self.training not in (SCRATCH, UNTRAINED):
            return self.training
        parts = [
            self.training,
            str(self.preset.kwargs["depth"]),
            *str(self.variant.losses).split("+"),
        ]
        parts += ["without", self.removed] if self.removed != WHOLE else []
        return "_".join([*parts, *(["talking_heads"] if self.variant.talking_heads else [])])


class Profiled(NamedTuple):
    """A profile of a model in one order, and the model's accuracy in it."""

    model: Model
    order: Order
    job: Job
    accuracy: float | None


class Plan(BasePlan):
    """Makes the jobs from params.yaml: first the trainings, then the profiles of what they left."""

    def __init__(
        self,
        params: Params,
        data: Path = DATA,
        folder: Path = FINETUNED,
        evaluated: Path = RESULTS / "prune_eval.csv",
    ) -> None:
        super().__init__(params, Smoothing, data, folder)
        self.evaluated = evaluated

    def models(self) -> list[Model]:
        """The models to train from scratch, each once, longest first: Table 1 at every depth, then what Tables 3 and 4 add."""
        options = self.options
        chosen: list[tuple[int, Losses, str, bool]] = []
        for depth in sorted(set(options.depths), reverse=True):
            chosen += [(depth, losses, WHOLE, False) for losses in options.losses]
        for depth in sorted(options.depths)[:1] if options.removed else ():
            chosen += [(depth, losses, WHOLE, False) for losses in (Losses(), options.best)]
            chosen += [
                (depth, losses, part, False)
                for part in options.removed
                for losses in (Losses(), options.best)
            ]
        chosen += [(depth, options.best, WHOLE, True) for depth in options.talking_heads]
        return [self._model(*each, seed) for each in dict.fromkeys(chosen) for seed in self.seeds]

    def _model(
        self, depth: int, losses: Losses, removed: str, talking_heads: bool, seed: int
    ) -> Model:
        recipe: Recipe = (
            self.options.recipe if removed == WHOLE else self.options.recipe.without(removed)
        )
        variant = Variant(
            route="sequential", losses=losses, recipe=recipe, talking_heads=talking_heads
        )
        return Model(SCRATCH, variant, preset(self.params, depth), seed, removed)

    def trained(self, model: Model) -> Model:
        """A model to train from scratch with its job."""
        options = self.params.scratch_training(Smoothing)
        return model._replace(
            job=self.training(model.title, model.variant, options, model.seed, preset=model.preset)
        )

    def references(self) -> list[Model]:
        """Random initialisations, one a depth and seed."""
        depths = sorted(set(self.options.depths), reverse=True)
        return [
            Model(UNTRAINED, PLAIN, preset(self.params, depth), seed)
            for depth in depths
            for seed in self.seeds
        ]

    def refined(self) -> list[Model]:
        """The variants of params.yaml whose weights are profiled, one a seed."""
        names, chosen = self.options.variants, self.params.model_preset
        return [
            Model(name, self.params.all_variants[name], chosen, seed)
            for name in names
            for seed in self.seeds
        ]

    def profiles(self, models: Sequence[Model]) -> list[Profiled]:
        """The profiles of models whose trainings have ended: in sequential order, of variants also in arbitrary order."""
        found = []
        for model in models:
            weights, accuracies = self._result(model)
            for order in ORDERS if model.training not in (SCRATCH, UNTRAINED) else ORDERS[:1]:
                profiles = SmoothingProfiles.model_validate(
                    self.options.model_dump(include=set(SmoothingProfiles.model_fields))
                )
                fields = self.fields(model.title, model.variant, weights, model.preset)
                config = ProfileConfig(
                    **fields,
                    options=profiles,
                    precision=self.precision(),
                    order=order,
                    seed=model.seed,
                )
                inputs = {"data": self.data, "weights": weights}
                job = Job(
                    f"profile of {model.title} seed {model.seed}, {order}",
                    "papers.smoothing.compute.measures:measure",
                    config,
                    inputs,
                )
                found.append(Profiled(model, order, job, accuracies.get(order)))
        return found

    def _result(self, model: Model) -> tuple[Path | None, dict[str, float]]:
        """A model's weights, and its accuracy on the validation images by order; of variants that of stage prune-eval."""
        if model.job:
            history = json.loads((model.job.folder / HISTORY).read_text())
            kept = kept_epoch(history, model.variant, self.judge)
            return model.job.folder / weights_file(self.judge), {
                ORDERS[0]: kept["validation/sequential/accuracy"]
            }
        if model.training == UNTRAINED:
            return None, {}
        return self.weights_of(model.training, model.seed), seed_means(
            read_rows(self.evaluated)
        ).loc[(model.training, model.seed)].to_dict()


def list_work(params: Params, num_layers: int) -> list[Work]:
    """List what stage smoothing does, for `lsvit cost`: trainings and a profile of each."""
    plan = Plan(params)
    depths = Counter(model.preset.kwargs["depth"] for model in plan.models())
    training = params.scratch_training(Smoothing)
    return [
        Work(
            "smoothing",
            f"{depth} layers",
            models,
            preset(params, depth),
            training=training,
            passes=[depth],
            images=plan.options.images,
        )
        for depth, models in depths.items()
    ]
