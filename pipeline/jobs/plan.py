"""What every plan makes its jobs from: parameters, and digests of data and weights."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from lsvit.text import user_path
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Finetune, Optimisation
from pipeline.config.types import Per, Section
from pipeline.config.variant import BASELINE, PLAIN, Variant
from pipeline.errors import UserError
from pipeline.jobs.configs import MeasureConfig, TrainConfig
from pipeline.jobs.files import (
    CONFIG,
    DATA,
    FINETUNED,
    JUDGES,
    PRETRAINED,
    ROWS,
    finetuned,
    read_meta,
    sha256,
    starting_weights,
)
from pipeline.jobs.job import TRAIN, Job
from pipeline.jobs.processes import root
from pipeline.jobs.rows import read_rows


def run_config(
    params: Params,
    title: str,
    variant: Variant,
    data_sha256: str,
    weights_sha256: str | None,
    preset: ModelPreset | None = None,
) -> dict[str, Any]:
    """The fields of a RunConfig for one variant; `preset` stands in for the chosen model's own.

    Left out is what must not change its key: the variant's `per` and overrides of `finetune`, whose
    effect the job's own options hold, the checksum of published weights, and the scale.
    """
    model = (preset or params.model_preset).model_copy(
        update={"sha256": None, "scale": "published"}
    )
    return {
        "title": title,
        "dataset": params.dataset,
        "model_name": params.model,
        "model": model,
        "variant": variant.model_copy(update={"finetune": {}, "per": None}),
        "device": params.device,
        "engine": params.engine,
        "deterministic": params.deterministic,
        "portable": params.portable,
        "data_sha256": data_sha256,
        "weights_sha256": weights_sha256,
    }


class Plan:
    """The base of every plan.

    Args:
        params: params.yaml.
        section: of the plan's stage. Its key `seeds`, if any, says for how many of the seeds.
        data: prepared images.
        folder: of the refined models.
        pretrained: folder of the starting weights.
    """

    def __init__(
        self,
        params: Params,
        section: type[Section],
        data: Path = DATA,
        folder: Path = FINETUNED,
        pretrained: Path = PRETRAINED,
    ) -> None:
        self.params, self.data, self.folder, self.pretrained = params, data, folder, pretrained
        self.options: Any = params.resolve(section)
        self.seeds = params.seeds[: getattr(self.options, "seeds", None)]
        self.judge = JUDGES[params.protocol]
        self.digest = cache(sha256)

    def fields(
        self, title: str, variant: Variant, weights: Path | None, preset: ModelPreset | None = None
    ) -> dict[str, Any]:
        """The fields of a RunConfig for a model with the weights of a file."""
        return run_config(
            self.params,
            title,
            variant,
            read_meta(self.data)["sha256"],
            self.digest_of(weights),
            preset,
        )

    def digest_of(self, file: Path | None) -> str | None:
        """The sha256 of a file, if there is one."""
        if file and not file.is_file():
            raise UserError(f"{file}: missing; `dvc repro` makes it")
        return self.digest(file) if file else None

    def training(
        self,
        title: str,
        variant: Variant,
        options: Optimisation,
        seed: int,
        weights: Path | None = None,
        preset: ModelPreset | None = None,
        per: Per = "batch",
    ) -> Job:
        """One training, from the weights of a file or from scratch; a route for each `per`."""
        if not variant.position.predict:
            options = options.model_copy(update={"position_weight": 1.0})  # of nothing
        if variant.teacher is None:
            options = options.model_copy(update={"teacher_weight": 1.0})
        fields = self.fields(title, variant, weights, preset) | self.params.distributed.identity
        inputs = {"data": self.data, "weights": weights}
        if variant.teacher == "baseline":
            inputs["teacher"] = self.weights_of(BASELINE, seed)
            fields["teacher_sha256"] = self.digest_of(inputs["teacher"])
            fields["teacher"] = self.fields("", self.params.all_variants[BASELINE], None)["variant"]
        config = TrainConfig(**fields, options=options, seed=seed, per=per)
        return Job(f"{title} seed {seed}", TRAIN, config, inputs, options.epochs)

    def evaluation(
        self,
        function: str,
        config: type[MeasureConfig],
        variant: str,
        seed: int,
        /,
        *,
        weights: Path | None = None,
        title: str | None = None,
        total: int = 1,
        **fields: Any,
    ) -> Job:
        """Make a job that measures one trained model.

        Args:
            function: "module:name", see :class:`Job`.
            config: class of the job's configuration.
            variant: its name. One that params.yaml does not have stands for a plain model.
            seed: of its training.
            weights: by default the refined ones of variant and seed.
            title: of the job on the screen, without the seed. By default the variant's name.
            total: how many reports the job makes.
            fields: of the configuration, beyond those of every model: `options` and others.
        """
        if weights is None:
            weights = self.weights_of(variant, seed)
        model = self.fields(variant, self.params.all_variants.get(variant, PLAIN), weights)
        if "precision" not in fields:
            fields["precision"] = self.precision(variant)
        inputs = {"data": self.data, "weights": weights}
        return Job(
            f"{title or variant} seed {seed}", function, config(**model, **fields), inputs, total
        )

    def gather(
        self, jobs: Mapping[Any, Job], file: str = ROWS, keys: Sequence[str] = ("variant", "seed")
    ) -> pd.DataFrame:
        """Concatenate a file of rows of each job.

        The first columns are data set, model and, with these names, what the jobs' keys hold.
        """
        cell = {"dataset": self.params.dataset, "model": self.params.model}
        frames = []
        for key, job in jobs.items():
            where = cell | dict(zip(keys, key, strict=True))
            rows = read_rows(job.folder / file)
            frames.append(rows.assign(**where)[[*where, *rows.columns]])
        return pd.concat(frames, ignore_index=True)

    def starting(self) -> dict[int, Job]:
        """What makes the starting weights, by seed, of a plan for `pretrain`.

        Trainings from scratch, or what draws random weights, or fetches published ones or those of
        a file or folder, which get a head for the data.
        """
        preset = self.params.model_preset
        if preset.weights == "scratch":
            return {
                seed: self.training("pretrain", PLAIN, self.options, seed)
                for seed in self.params.starts
            }
        file = preset.local_file(root())
        whole = file if file and file.is_file() else None
        fields = self.fields("pretrain", PLAIN, whole)
        fields["model"] = preset
        if whole and (about := whole.with_name(CONFIG)).is_file():  # it names the outputs
            fields["weights_sha256"] += self.digest(about)
        inputs = {
            "data": self.data,
            "weights": root() / user_path(preset.weights) if file else None,
        }
        jobs = {}
        for seed in self.params.starts:
            config = TrainConfig(**fields, options=self.options, seed=seed)
            jobs[seed] = Job("pretrain", "pipeline.training.loop:fetch", config, inputs, here=True)
        return jobs

    def refinements(self, variants: Iterable[str]) -> dict[str, dict[int, Job]]:
        """Trainings of variants from the starting weights of their seeds, by variant and seed."""
        found: dict[str, dict[int, Job]] = {}
        for name in variants:
            variant, own = self.params.all_variants[name], self.params.resolve(Finetune, name)
            first = self.digest(self.start(self.seeds[0]))
            found[name] = {}
            for seed in self.params.seeds:
                job = self.training(name, variant, own, seed, self.start(seed), per=own.per)
                found[name][seed] = replace(job, apart=("seed", "weights_sha256"), first=first)
        return found

    def start(self, seed: int) -> Path:
        """The starting weights of the trainings with a seed."""
        return starting_weights(self.params.start_of(seed), self.pretrained)

    def weights_of(self, variant: str, seed: int, judge: str | None = None) -> Path:
        """The weights of a refined variant, of the epoch that a split chose, or the protocol's."""
        return finetuned(variant, seed, judge or self.judge, self.folder)

    def precision(self, variant: str | None = None) -> str:
        """In which models are measured."""
        return self.params.resolve(Finetune, variant).precision
