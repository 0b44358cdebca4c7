"""Settings of the micro model, tried side by side on held-out images."""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from papers import PAPERS
from pipeline.config.load import load
from pipeline.config.params import Params
from pipeline.config.sections import Finetune, Optimisation, Pretrain
from pipeline.config.variant import PLAIN, Variant
from pipeline.data.prepare import prepare
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import WEIGHTS, read_meta
from pipeline.jobs.plan import run_config
from pipeline.training.loop import train

SEEDS = (0, 1)


def pretrain(params: Params, data: Path, folder: Path, seed: int, **changes: Any) -> Path:
    """The starting weights."""
    _train(
        params, PLAIN, params.resolve(Pretrain).model_copy(update=changes), seed, data, None, folder
    )
    return folder / WEIGHTS


def refine(
    params: Params,
    name: str,
    options: Finetune,
    seed: int,
    data: Path,
    start: Path,
    folder: Path,
    teacher: Path | None = None,
) -> TrainConfig:
    """Refine a variant in a folder; what it was trained with."""
    variant = params.all_variants[name]
    fields: dict[str, Any] = {"per": options.per}
    if teacher:
        fields["teacher"] = params.all_variants["baseline"]
    return _train(params, variant, options, seed, data, start, folder, teacher, **fields)


def _train(
    params: Params,
    variant: Variant,
    options: Optimisation,
    seed: int,
    data: Path,
    start: Path | None,
    folder: Path,
    teacher_weights: Path | None = None,
    **changes: Any,
) -> TrainConfig:
    config = TrainConfig(
        **run_config(params, "", variant, read_meta(data)["sha256"], None),
        options=options,
        seed=seed,
        **changes,
    )
    folder.mkdir(parents=True)
    train(config, data, start, folder, lambda event: None, teacher_weights)
    return config


def try_settings(
    what: str,
    settings: Sequence[Any],
    measure: Callable[..., Any],
    prepared: Callable[[Path, Path], Any] = lambda data, folder: None,
) -> list[list[Any]]:
    """What `measure(setting, seed, data, folder, prepared)` gives, in processes of one thread: by
    setting, then by seed.

    `prepared`: made once, from the data, in a folder of its own.
    """
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--workers", type=int, default=2, help="settings measured side by side")
    workers, params = parser.parse_args().workers, load(papers=PAPERS)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(
            params.dataset,
            params.dataset_preset,
            Path("data") / params.dataset,
            data := folder / "data",
        )
        given = prepared(data, folder / "prepared")
        with ProcessPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            found = [
                [
                    pool.submit(measure, setting, seed, data, folder / f"{i}_{seed}", given)
                    for seed in SEEDS
                ]
                for i, setting in enumerate(settings)
            ]
            return [[each.result() for each in seeds] for seeds in found]
