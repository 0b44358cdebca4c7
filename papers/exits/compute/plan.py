"""The jobs of stage `exits`: backbones frozen or trained with their exits. No torch here."""

import math
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from papers.exits.section import (
    COUNTING,
    LATER_LAYERS,
    BranchName,
    BranchSizes,
    BranchTraining,
    ExitConfig,
    ExitHeads,
    Exits,
)
from pipeline.config.paper import Work
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Finetune, Optimisation
from pipeline.config.variant import Variant
from pipeline.files import read_json
from pipeline.jobs.files import HELDOUT, HISTORY, WEIGHTS, Row, read_meta, weights_file
from pipeline.jobs.job import Job
from pipeline.jobs.plan import Plan as BasePlan
from pipeline.training.judging import judged_loss, kept_epoch

# Seeds of one model may keep different learning rates, and start a step from their own weights.
APART = ("seed", "weights_sha256", "options.lr")


class Trained(NamedTuple):
    """A model trained with exits after the depths of `placement`, a job a learning rate."""

    plan: "Plan"  # of its task
    strategy: str  # layer-wise, after the first step: with what its later layers began
    branch: BranchName | None
    placement: tuple[int, ...]
    seed: int
    variant: Any  # of the class with the papers' keys
    jobs: list[Job]

    @property
    def title(self) -> str:
        """Its name among the runs and in outs/: "end_to_end_vit_3_6_9"."""
        parts = [self.strategy, self.branch or "none", *map(str, self.placement)]
        if self.plan.task == COUNTING:
            parts.insert(0, COUNTING)
        return "_".join(parts)

    def best(self) -> tuple[Job, Row]:
        """The job whose best epoch has the lowest loss on the judging images, and that epoch."""
        route, judge = self.variant.route, self.plan.exit_judge
        kept = []
        for job in self.jobs:
            kept.append((job, kept_epoch(read_json(job.folder / HISTORY, list), route, judge)))
        return min(kept, key=lambda best: judged_loss(best[1], route, judge))

    def weights(self) -> Path:
        """The weights of that epoch."""
        return self.best()[0].folder / weights_file(self.plan.exit_judge)

    # ---- the layer-wise strategy ---------------------------------------------------------------

    @property
    def is_last(self) -> bool:
        """True for the last step."""
        return self.variant.exits.step == len(self.placement)

    def twin(self) -> "Trained":
        """The same exits, trained end-to-end."""
        return self.plan.trained("end_to_end", self.branch, self.placement, self.seed)

    def join(self, later: str) -> Job:
        """Puts the layers behind a finished first step's exit: new, original or end-to-end ones."""
        weights = {
            "none": None,
            "original": self.plan.start(self.seed),
            "end_to_end": self.twin().weights(),
        }[later]
        job = self.plan.preparing(self.title, self.variant, self.seed, self.weights())
        digests = f"{job.config.weights_sha256}{self.plan.digest_of(weights) or ''}"
        return replace(
            job,
            title=f"{self.title} seed {self.seed}, later layers: {later}",
            function="papers.exits.compute.steps:join",
            config=job.config.model_copy(update={"weights_sha256": digests}),
            inputs={**job.inputs, "later": weights},
        )

    def next_step(self, strategy: str = "", start: Path | None = None) -> "Trained":
        """The step after this one, which has finished, by default from its weights."""
        return self.plan.trained(
            strategy or self.strategy,
            self.branch,
            self.placement,
            self.seed,
            start or self.weights(),
            self.variant.exits.step + 1,
        )


class Backbone(NamedTuple):
    """A frozen model that gets branches."""

    dataset: str
    variant: str
    seed: int


class Plan(BasePlan):
    """Makes the jobs of one task from params.yaml; those from others' results when these ended.

    Attributes:
        task: the data set, whose classes are asked for, or "counting" on canvases.
        heads: the jobs that give starting weights a head for the task, by seed.
    """

    def __init__(self, params: Params, *folders: Path) -> None:
        super().__init__(params, Exits, *folders)
        self.plain = params.make_variant(route="sequential")
        self.task = params.dataset
        self.preset = params.model_preset
        self.heads: dict[int, Job] = {}

    def counting(self, data: Path) -> "Plan":
        """The plan of counting on canvases: one output, whatever the preset gives its classes."""
        plan = copy(self)
        plan.task, plan.data = COUNTING, data
        plan.preset = self.preset.model_copy(update={"num_classes": None})
        plan.heads = {seed: plan.head_for(seed) for seed in plan.seeds}
        return plan

    @property
    def exit_judge(self) -> str:
        """The split that chooses epochs and learning rates: held-out images if there are some."""
        return HELDOUT if HELDOUT in read_meta(self.data)["counts"] else "validation"

    def fields(
        self, title: str, variant: Variant, weights: Path | None, preset: ModelPreset | None = None
    ) -> dict[str, Any]:
        """The fields of a RunConfig, as every plan makes them, for the task."""
        return super().fields(title, variant, weights, self.preset) | {"dataset": self.task}

    def start(self, seed: int) -> Path:
        """The starting weights of a seed, with a head for the task."""
        head = self.heads.get(seed)
        return head.folder / WEIGHTS if head else super().start(seed)

    def tuning(self, epochs: int, lr: float) -> Optimisation:
        """Adam as published (section IV): reduce-on-plateau, early stopping.

        What the paper leaves open is as torch and `finetune` have it.
        """
        keys = {"plateau_factor", "plateau_patience", "stop_patience", "batch_size", "images"}
        published = {
            "optimizer": "adam",
            "betas": (0.9, 0.999),
            "eps": 1e-8,
            "weight_decay": 0.0,
            "schedule": "plateau",
            "validation_orders": "trained",
            "epochs": epochs,
            "lr": lr,
        }
        own = self.params.resolve(Finetune).narrow(Optimisation)
        return own.model_copy(update=published | self.options.model_dump(include=keys))

    def trained(
        self,
        strategy: str,
        branch: BranchName | None,
        placement: Sequence[int],
        seed: int,
        start: Path | None = None,
        step: int | None = None,
    ) -> Trained:
        """One model trained with exits or without (the control), or a layer-wise step."""
        options = self.options
        heads = None
        if branch:
            heads = ExitHeads(
                branch=branch,
                depths=list(placement),
                step=step,
                weight=options.weight,
                final_weight=options.final_weight,
                **options.narrow(BranchSizes).model_dump(),
            )
        variant = self.params.make_variant(route="sequential", exits=heads)
        model = Trained(self, strategy, branch, tuple(placement), seed, variant, [])
        start = start or self.start(seed)
        first = self.digest(self.start(self.seeds[0]))
        epochs, lrs = options.backbone_epochs, options.backbone_lrs
        if self.task == COUNTING:
            epochs, lrs = options.counting.epochs, options.counting.lrs or lrs
        for lr in lrs:
            title = model.title
            job = self.training(title, variant, self.tuning(epochs, lr), seed, start)
            if step is not None:
                title += f" step {step + 1}"
            title += f" seed {seed}"
            if len(lrs) > 1:
                title += f" lr {lr:g}"
            model.jobs.append(replace(job, title=title, apart=APART, first=first))
        return model

    def control(self) -> list[Trained]:
        """The model without exits, trained as those with exits."""
        return [self.trained("end_to_end", None, (), seed) for seed in self.seeds]

    def at_placements(self, strategy: str, branches: list[BranchName]) -> list[Trained]:
        """Every architecture at every placement; of the layer-wise strategy the first step."""
        step = 0 if strategy == "layer_wise" else None
        models = []
        for placement, branch, seed in product(self.options.placements, branches, self.seeds):
            models.append(self.trained(strategy, branch, placement, seed, step=step))
        return models

    def frozen(self) -> dict[Backbone, Job]:
        """Branches at every depth of each frozen backbone: a variant's, or the control's."""
        depths = self.options.depths or range(1, self.preset.kwargs.get("depth", 12))
        variants = self.options.variants
        weights: dict[int, Path] = {}
        if self.task == COUNTING:
            variants = {COUNTING: None}
            weights = {model.seed: model.weights() for model in self.control()}
        jobs = {}
        for (name, branches), seed in product(variants.items(), self.seeds):
            job = self.evaluation(
                "papers.exits.compute.frozen:train_branches",
                ExitConfig,
                name,
                seed,
                weights=weights.get(seed),
                title=f"exits of {name}",
                total=len(depths),
                seed=seed,
                **self._branch_fields(branches or self.options.branches),
            )
            memory = self._memory(job.inputs["weights"])
            jobs[Backbone(self.task, name, seed)] = replace(job, memory=memory)
        return jobs

    def _branch_fields(self, branches: list[BranchName]) -> dict[str, Any]:
        """The fields of an ExitConfig that say what is trained."""
        options = self.options
        return {
            "options": options.narrow(BranchTraining).model_copy(update={"branches": branches}),
            "tuning": self.tuning(options.epochs, options.lrs[0]),
            "precision": self.precision(),
        }

    def _memory(self, weights: Any) -> int:
        """Bytes of the tokens of all images after one depth; 0 of models without a pos_embed."""
        counts = read_meta(self.data)["counts"]
        recorded = self.options.recorded(
            counts["train"], counts[self.exit_judge], counts["validation"]
        )
        # A damaged file is for the job to tell of.
        with suppress(OSError, SafetensorError), safe_open(weights, "np") as file:
            for name in file.keys():  # noqa: SIM118 (no dictionary)
                if name.endswith("pos_embed"):  # (1, N, D)
                    return 4 * recorded * math.prod(file.get_slice(name).get_shape())
        return 0

    def preparing(self, title: str, variant: Variant, seed: int, weights: Path) -> Job:
        """Gives the weights of a file the parts of a variant, and a head for the task."""
        job = self.training(title, variant, self.tuning(1, self.options.lrs[0]), seed, weights)
        return replace(job, function="pipeline.training.loop:fetch")

    def head_for(self, seed: int) -> Job:
        """Gives the starting weights of a seed a head for the task."""
        job = self.preparing(self.task, self.plain, seed, self.start(seed))
        return replace(job, title=f"{self.task}: starting weights seed {seed}")

    def costs(self) -> Job:
        """FLOPs up to every exit of a model without a variant's parts."""
        fields = self.fields("plain", self.plain, None)
        fields |= self._branch_fields(self.options.every_branch)
        config = ExitConfig(**fields, seed=0)
        title = f"{self.task}: FLOPs of the exits"
        function = "papers.exits.compute.flops:write_flops"
        return Job(title, function, config, {"data": self.data})


def list_work(params: Params, num_layers: int) -> list[Work]:
    """List what stage exits does, for `lsvit cost`: no branches, no early stopping."""
    plan = Plan(params)
    options, preset, seeds = plan.options, plan.preset, len(plan.seeds)
    placements = len(options.placements)
    later_steps = len(LATER_LAYERS) * sum(map(len, options.placements))
    trainings = {
        "end_to_end": 1 + placements * len(options.branches),
        "layer_wise": (placements + later_steps) * len(options.layer_wise_branches),
    }
    works = []
    if params.sizes and "classifier_wise" in options.strategies:
        train, validation, heldout = params.sizes
        sizes = (train, options.recorded(train, heldout, validation), heldout)
        models = seeds * len(options.variants)
        works.append(Work("exits", "features", models, preset, passes=[num_layers], sizes=sizes))
    tuning = plan.tuning(options.backbone_epochs, options.backbone_lrs[0])
    for strategy, models in trainings.items():
        if strategy in options.strategies:
            models *= seeds * len(options.backbone_lrs)
            works.append(Work("exits", strategy, models, preset, training=tuning))
    if options.counting_strategies:
        task = options.counting
        models = max(trainings.get(strategy, 1) for strategy in options.counting_strategies)
        models *= seeds * len(task.lrs or options.backbone_lrs)
        tuning = plan.tuning(task.epochs, options.lrs[0])
        counter = preset.model_copy(update={"num_classes": None})
        sizes = (task.train, task.validation, task.heldout)
        works.append(Work("exits", COUNTING, models, counter, training=tuning, sizes=sizes))
    return works
