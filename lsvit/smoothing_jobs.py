"""The jobs of stage `smoothing`, trainings from scratch and profiles, and the rows that come of them. No torch here."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from lsvit.data import read_meta
from lsvit.jobs import HISTORY, JUDGES, PROFILE, ProfileConfig, TrainConfig, kept_epoch, run_config, weights_file
from lsvit.launch import Job
from lsvit.params import SCRATCH, UNTRAINED, Params
from lsvit.presets import ModelPreset
from lsvit.routes import ORDERS, Order
from lsvit.sections import Finetune, Losses, Recipe, Smoothing, SmoothingProfiles, Variant
from lsvit.shards import sha256
from lsvit.tables import seed_means

WHOLE = "none"  # of the recipe was removed
COLUMNS = ["dataset", "model", "training", "losses", "removed", "talking_heads", "num_layers", "order", "seed", "layer", "patch_cosine",
           "attention_std", "accuracy"]  # fmt: skip


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
        parts = [self.training, str(self.preset.kwargs["depth"]), *str(self.variant.losses).split("+")]
        parts += ["without", self.removed] if self.removed != WHOLE else []
        return "_".join([*parts, *(["talking_heads"] if self.variant.talking_heads else [])])


class Profiled(NamedTuple):
    """A profile of a model in one order, and the model's accuracy in it."""

    model: Model
    order: Order
    job: Job
    accuracy: float | None


class Plan:
    """Makes the jobs from params.yaml: first the trainings, then the profiles of what they left."""

    def __init__(self, params: Params, data: Path = Path(), finetuned: Path = Path(), evaluated: Path = Path()) -> None:
        self.params, self.options, self.data, self.finetuned, self.evaluated = params, params.resolve(Smoothing), data, finetuned, evaluated
        self.judge = JUDGES[params.protocol]
        self.digest = cache(sha256)

    def models(self) -> list[Model]:
        """The models to train from scratch, each once, longest first: Table 1 at every depth, then what Tables 3 and 4 add."""
        options = self.options
        chosen: list[tuple[int, Losses, str, bool]] = []
        for depth in sorted(set(options.depths), reverse=True):
            chosen += [(depth, losses, WHOLE, False) for losses in options.losses]
        for depth in sorted(options.depths)[:1] if options.removed else ():
            chosen += [(depth, losses, WHOLE, False) for losses in (Losses(), options.best)]
            chosen += [(depth, losses, part, False) for part in options.removed for losses in (Losses(), options.best)]
        chosen += [(depth, options.best, WHOLE, True) for depth in options.talking_heads]
        return [self._model(*each, seed) for each in dict.fromkeys(chosen) for seed in self.params.seeds[: options.seeds]]

    def _model(self, depth: int, losses: Losses, removed: str, talking_heads: bool, seed: int) -> Model:
        recipe: Recipe = self.options.recipe if removed == WHOLE else self.options.recipe.without(removed)
        variant = Variant(route="sequential", losses=losses, recipe=recipe, talking_heads=talking_heads)
        return Model(SCRATCH, variant, self.params.smoothing_preset(depth), seed, removed)

    def trained(self, model: Model) -> Model:
        """A model to train from scratch with its job."""
        options = self.params.scratch_training(Smoothing)
        identity = self.params.distributed.identity
        config = TrainConfig(**self._run(model, None), options=options, seed=model.seed, **identity)
        job = Job(f"{model.title} seed {model.seed}", "lsvit.training:train", config, {"data": self.data, "weights": None}, options.epochs)
        return model._replace(job=job)

    def _run(self, model: Model, weights: Path | None) -> dict[str, Any]:
        digest = read_meta(self.data)["sha256"]
        return run_config(self.params, model.title, model.variant, digest, self.digest(weights) if weights else None, model.preset)

    def references(self) -> list[Model]:
        """Random initialisations, one a depth and seed."""
        plain, seeds = Variant(route="sequential"), self.params.seeds[: self.options.seeds]
        depths = sorted(set(self.options.depths), reverse=True)
        return [Model(UNTRAINED, plain, self.params.smoothing_preset(depth), seed) for depth in depths for seed in seeds]

    def refined(self) -> list[Model]:
        """The variants of params.yaml whose weights are profiled, one a seed."""
        names, preset = self.options.variants, self.params.model_preset
        return [Model(name, self.params.all_variants[name], preset, seed) for name in names for seed in self.params.seeds]

    def profiles(self, models: Sequence[Model]) -> list[Profiled]:
        """The profiles of models whose trainings have ended: in sequential order, of variants also in arbitrary order."""
        found = []
        for model in models:
            weights, accuracies = self._result(model)
            for order in ORDERS if model.training not in (SCRATCH, UNTRAINED) else ORDERS[:1]:
                profiles = SmoothingProfiles.model_validate(self.options.model_dump(include=set(SmoothingProfiles.model_fields)))
                precision = self.params.resolve(Finetune).precision
                run = self._run(model, weights)
                config = ProfileConfig(**run, options=profiles, precision=precision, order=order, seed=model.seed)
                inputs = {"data": self.data, "weights": weights}
                job = Job(f"profile of {model.title} seed {model.seed}, {order}", "lsvit.smoothing:measure", config, inputs)
                found.append(Profiled(model, order, job, accuracies.get(order)))
        return found

    def _result(self, model: Model) -> tuple[Path | None, dict[str, float]]:
        """A model's weights, and its accuracy on the validation images by order; of variants that of stage prune-eval."""
        if model.job:
            history = json.loads((model.job.folder / HISTORY).read_text())
            kept = kept_epoch(history, model.variant, self.judge)
            return model.job.folder / weights_file(self.judge), {ORDERS[0]: kept["validation/sequential/accuracy"]}
        if model.training == UNTRAINED:
            return None, {}
        weights = self.finetuned / model.training / f"seed_{model.seed}" / weights_file(self.judge)
        return weights, seed_means(pd.read_csv(self.evaluated)).loc[(model.training, model.seed)].to_dict()


def profile_rows(profiles: Sequence[Profiled]) -> pd.DataFrame:
    """A row a model, order and number of layers executed, from none (the embedding) to all; columns as :data:`COLUMNS`."""
    rows = []
    for model, order, job, accuracy in profiles:
        profile = json.loads((job.folder / PROFILE).read_text())
        config, losses = job.config, str(model.variant.losses)
        cosine, attention = profile["patch_cosine"], [None, *profile["attention_std"]]
        head = (config.dataset, config.model_name, model.training, losses, model.removed, model.variant.talking_heads, len(cosine) - 1)
        rows += [
            (*head, order, model.seed, layer, similarity, deviation, accuracy)
            for layer, (similarity, deviation) in enumerate(zip(cosine, attention, strict=True))
        ]
    return pd.DataFrame(rows, columns=COLUMNS).round({"patch_cosine": 6, "attention_std": 6, "accuracy": 6})


def about(params: Params) -> dict[str, Any]:
    """What smoothing.csv does not say of the models trained from scratch and of the profiles, for captions."""
    options, training = params.resolve(Smoothing), params.scratch_training(Smoothing)
    return {"images": options.images, "epochs": training.epochs, "training_images": training.images, "kwargs": options.kwargs,
            "recipe": options.recipe.model_dump()}  # fmt: skip


def smoothing_metrics(rows: pd.DataFrame) -> dict[str, Any]:
    """For `dvc metrics`: means over the seeds after the last layer, of models trained from scratch by depth and losses, of variants
    by order."""
    last = rows[rows["layer"] == rows["num_layers"]]
    scratch = last[(last["training"] == SCRATCH) & (last["removed"] == WHOLE) & ~last["talking_heads"].astype(bool)]
    variants = last[~last["training"].isin([SCRATCH, UNTRAINED])]
    found: dict[str, Any] = {}
    for own, keys in ((scratch, ["num_layers", "losses"]), (variants, ["training", "order"])):
        for (first, second), group in own.groupby(keys, sort=False):
            means = group[["accuracy", "patch_cosine", "attention_std"]].mean().dropna().round(6)
            name = str(second).replace("+", " and ")  # MLflow takes no plus
            found.setdefault(f"{first} layers" if own is scratch else str(first), {})[name] = means.to_dict()
    return found
