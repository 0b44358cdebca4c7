"""Stages finetune-baseline and finetune-variants@<name>: refine the starting weights, once per seed, seeds in parallel."""

from pathlib import Path

import typer

from lsvit import launch
from lsvit.data import read_meta
from lsvit.errors import UserError, accepted, one_line_errors
from lsvit.jobs import JUDGES, TrainConfig, gather_trainings, run_config, show_options, starting_weights
from lsvit.params import load
from lsvit.processes import root
from lsvit.sections import Finetune
from lsvit.shards import sha256
from lsvit.tracking import Tracker

DATA = Path("outs/prepare_data")


@one_line_errors()
def main(variant: str) -> None:
    """outs/prepare_data/, outs/pretrain/ -> outs/finetune/<variant>/, results/finetune/<variant>.csv"""
    launch.warm_up("lsvit.training")
    params = load()
    if variant not in params.all_variants:
        raise UserError(f"variant: found {variant!r}, {accepted(variant, params.all_variants)}")
    options = params.resolve(Finetune, variant)
    start = starting_weights()
    run = run_config(params, variant, params.all_variants[variant], read_meta(DATA)["sha256"], sha256(start))
    configs = {seed: TrainConfig(**run, options=options, seed=seed, **params.distributed.identity) for seed in params.seeds}
    inputs = {"data": DATA, "weights": start}
    jobs = {
        seed: launch.Job(f"{variant} seed {seed}", "lsvit.training:train", config, inputs, total=options.epochs)
        for seed, config in configs.items()
    }
    show_options(variant, configs[params.seeds[0]], params.values(Finetune, variant), f"{len(jobs)} trainings, seeds {params.seeds}")
    tracker = Tracker(f"{params.dataset}/{params.model}", root())
    launch.run(list(jobs.values()), params.device, lambda job, row: tracker.epoch(job.record(), row), options.threads,
               params.distributed)  # fmt: skip
    out = Path("outs/finetune") / variant
    folders, table = {seed: job.folder for seed, job in jobs.items()}, Path("results/finetune") / f"{variant}.csv"
    gather_trainings(folders, out, table, JUDGES[params.protocol])
    tracker.training(out)


if __name__ == "__main__":
    typer.run(main)
