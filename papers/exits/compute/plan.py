"""The jobs of stage `exits`: backbones frozen or trained with their exits. No torch here."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from papers.exits.section import (
    COUNTING,
    LATER_LAYERS,
    BranchName,
    BranchSizes,
    ExitConfig,
    ExitHeads,
    Exits,
    LaterLayers,
)
from pipeline.config.paper import Work
from pipeline.config.params import Params
from pipeline.config.sections import Finetune, Optimisation
from pipeline.config.variant import Variant
from pipeline.files import read_json
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import (
    HELDOUT,
    HISTORY,
    Row,
    read_meta,
    weights_file,
)
from pipeline.jobs.job import TRAIN, Job
from pipeline.jobs.plan import Plan as BasePlan
from pipeline.jobs.plan import run_config
from pipeline.training.judging import judged_loss, kept_epoch

# Seeds of one model may keep different learning rates, and start a step from their own weights.
APART = ("seed", "weights_sha256", "options.lr")


class Task(NamedTuple):
    """What answers are asked for: the classes of the data set, or counting on canvases."""

    name: str
    data: Path
    starts: Mapping[int, Path]  # starting weights with a head for the task, by seed

    @property
    def judge(self) -> str:
        """The split that chooses epochs and learning rates: held-out images if there are some."""
        return HELDOUT if HELDOUT in read_meta(self.data)["counts"] else "validation"


class Trained(NamedTuple):
    """A model trained with exits after the depths of `placement`, a job a learning rate."""

    task: Task
    strategy: str  # layer-wise, after the first step: with what its later layers began
    branch: BranchName | None
    placement: tuple[int, ...]
    seed: int
    variant: Any  # of the class with the papers' keys
    costs: Job
    jobs: list[Job]

    @property
    def title(self) -> str:
        """Its name among the runs and in outs/: "end_to_end_vit_3_6_9"."""
        parts = [self.strategy, self.branch or "none", *map(str, self.placement)]
        if self.task.name == COUNTING:
            parts.insert(0, COUNTING)
        return "_".join(parts)

    def best(self) -> tuple[Job, Row]:
        """The job whose best epoch has the lowest loss on the judging images, and that epoch."""
        judge = self.task.judge
        kept = []
        for job in self.jobs:
            history = read_json(job.folder / HISTORY, list)
            kept.append(kept_epoch(history, self.variant.route, judge))
        losses = [judged_loss(row, self.variant.route, judge) for row in kept]
        best = losses.index(min(losses))
        return self.jobs[best], kept[best]

    @property
    def is_last(self) -> bool:
        """True for the last step of the layer-wise strategy."""
        return self.variant.exits.step == len(self.placement)

    def weights(self) -> Path:
        """The weights of that epoch."""
        return self.best()[0].folder / weights_file(self.task.judge)


class Frozen(NamedTuple):
    """Branches of every architecture at every depth of a frozen backbone."""

    task: Task
    variant: str
    seed: int
    job: Job


class Plan(BasePlan):
    """Makes the jobs from params.yaml; those that start from others' results when these ended."""

    def __init__(self, params: Params, *folders: Path) -> None:
        super().__init__(params, Exits, *folders)
        self.plain = params.make_variant(route="sequential")
        self.sizes = self.options.narrow(BranchSizes).model_dump()

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
        values = self.params.resolve(Finetune).narrow(Optimisation).model_dump()
        values |= published | self.options.model_dump(include=keys)
        return Optimisation.model_validate(values)

    def trained(
        self,
        task: Task,
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
                **self.sizes,
            )
        variant = self.params.make_variant(route="sequential", exits=heads)
        costs = self.costs(task)
        model = Trained(task, strategy, branch, tuple(placement), seed, variant, costs, [])
        start = start or task.starts[seed]
        run = self._run(model.title, task, variant, self.digest(start))
        run |= self.params.distributed.identity
        first = self.digest(task.starts[self.seeds[0]])
        epochs, lrs = options.backbone_epochs, options.backbone_lrs
        if task.name == COUNTING:
            epochs, lrs = options.counting.epochs, options.counting.lrs or lrs
        for lr in lrs:
            config = TrainConfig(**run, options=self.tuning(epochs, lr), seed=seed)
            title = model.title
            if step is not None:
                title += f" step {step + 1}"
            title += f" seed {seed}"
            if len(lrs) > 1:
                title += f" lr {lr:g}"
            inputs = {"data": task.data, "weights": start}
            model.jobs.append(Job(title, TRAIN, config, inputs, epochs, APART, first))
        return model

    def control(self, task: Task) -> list[Trained]:
        """The model without exits, trained as those with exits."""
        return [self.trained(task, "end_to_end", None, (), seed) for seed in self.seeds]

    def at_placements(self, task: Task, strategy: str, branches: list[BranchName]) -> list[Trained]:
        """Every architecture at every placement; of the layer-wise strategy the first step."""
        step = 0 if strategy == "layer_wise" else None
        models = []
        for placement, branch, seed in product(self.options.placements, branches, self.seeds):
            models.append(self.trained(task, strategy, branch, placement, seed, step=step))
        return models

    def end_to_end_twin(self, step: Trained) -> Trained:
        """The same exits, trained end-to-end."""
        return self.trained(step.task, "end_to_end", step.branch, step.placement, step.seed)

    def join(self, first: Trained, later: LaterLayers) -> Job:
        """Puts the layers behind a finished first step's exit: new, original or end-to-end ones."""
        weights = {
            "none": None,
            "original": first.task.starts[first.seed],
            "end_to_end": self.end_to_end_twin(first).weights(),
        }[later]
        digest = self.digest(first.weights())
        if weights:
            digest += self.digest(weights)
        run = self._run(first.title, first.task, first.variant, digest)
        config = TrainConfig(**run, options=self.tuning(1, self.options.lrs[0]), seed=first.seed)
        inputs = {"data": first.task.data, "weights": first.weights(), "later": weights}
        title = f"{first.title} seed {first.seed}, later layers: {later}"
        return Job(title, "papers.exits.compute.steps:join", config, inputs)

    def next_step(
        self, ended: Trained, strategy: str | None = None, start: Path | None = None
    ) -> Trained:
        """The step of the layer-wise strategy after a finished one, by default from its weights."""
        task, before, branch, placement, seed = ended[:5]
        step = ended.variant.exits.step + 1
        start = start or ended.weights()
        return self.trained(task, strategy or before, branch, placement, seed, start, step)

    def frozen_variants(self, task: Task) -> list[Frozen]:
        """The branches that are asked for on every variant."""
        models = []
        for name, branches in self.options.variants.items():
            for seed in self.seeds:
                weights = self.weights_of(name, seed)
                models.append(self.frozen(task, name, weights, seed, branches))
        return models

    def frozen(
        self,
        task: Task,
        name: str,
        weights: Path,
        seed: int,
        branches: list[BranchName] | None = None,
    ) -> Frozen:
        """The given branches, or all, on one backbone: of a variant, or of a plain one."""
        update = {"branches": branches or self.options.branches}
        variant = self.params.all_variants.get(name, self.plain)
        config = self._exit_config(name, task, variant, self.digest(weights), seed, update)
        inputs = {"data": task.data, "weights": weights}
        title = f"exits of {name} seed {seed}"
        function = "papers.exits.compute.frozen:train_branches"
        memory = self._memory(task, weights, config.options.images)
        depths = self.options.depths or range(1, self.params.model_preset.kwargs.get("depth", 12))
        job = Job(title, function, config, inputs, len(depths), memory=memory)
        return Frozen(task, name, seed, job)

    def _memory(self, task: Task, weights: Path, images: int | None) -> int:
        """Bytes of the tokens of all images after one depth; 0 of models without a pos_embed."""
        counts = read_meta(task.data)["counts"]
        read = min(counts["train"], images or counts["train"])
        read += counts[task.judge] + 3 * counts["validation"]  # in three orders
        # A damaged file is for the job to tell of.
        with suppress(OSError, SafetensorError), safe_open(weights, "np") as file:
            for name in file.keys():  # noqa: SIM118 (no dictionary)
                if name.endswith("pos_embed"):  # (1, N, D)
                    return 4 * read * math.prod(file.get_slice(name).get_shape())
        return 0

    def head_for(self, task: Task, seed: int) -> Job:
        """Gives the starting weights of a seed a head for the task."""
        start = task.starts[seed]
        run = self._run(task.name, task, self.plain, self.digest(start))
        config = TrainConfig(**run, options=self.tuning(1, self.options.lrs[0]), seed=seed)
        inputs = {"data": task.data, "weights": start}
        title = f"{task.name}: starting weights seed {seed}"
        return Job(title, "pipeline.training.loop:fetch", config, inputs)

    def costs(self, task: Task) -> Job:
        """FLOPs up to every exit of a model without a variant's parts."""
        update = {"branches": self.options.every_branch}
        config = self._exit_config("plain", task, self.plain, None, 0, update)
        title = f"{task.name}: FLOPs of the exits"
        function = "papers.exits.compute.flops:write_flops"
        return Job(title, function, config, {"data": task.data})

    def _exit_config(
        self, name: str, task: Task, variant: Variant, digest: str | None, seed: int, update: dict
    ) -> ExitConfig:
        options = self.options
        return ExitConfig(
            **self._run(name, task, variant, digest),
            options=options.branch_training.model_copy(update=update),
            tuning=self.tuning(options.epochs, options.lrs[0]),
            precision=self.precision(),
            seed=seed,
        )

    def _run(self, title: str, task: Task, variant: Variant, digest: str | None) -> dict:
        run = run_config(self.params, title, variant, read_meta(task.data)["sha256"], digest)
        run["dataset"] = task.name
        if task.name == COUNTING:  # one output, whatever the preset gives its classes
            run["model"] = run["model"].model_copy(update={"num_classes": None})
        return run


def list_work(params: Params, num_layers: int) -> list[Work]:
    """List what stage exits does, for `lsvit cost`: no branches, no early stopping."""
    plan = Plan(params)
    options = plan.options
    preset = params.model_preset
    seeds = len(plan.seeds)
    placements = len(options.placements)
    later_steps = len(LATER_LAYERS) * sum(len(placement) for placement in options.placements)
    trainings = {
        "end_to_end": 1 + placements * len(options.branches),
        "layer_wise": (placements + later_steps) * len(options.layer_wise_branches),
    }
    works = []
    if params.sizes and "classifier_wise" in options.strategies:
        train, validation, heldout = params.sizes
        read = min(train, options.images or train) + heldout + 3 * validation
        sizes = (train, read, heldout)
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
