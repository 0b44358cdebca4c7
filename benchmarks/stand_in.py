"""Which micro model behaves like a pre-trained one: `python benchmarks/stand_in.py` -> stand_in.json.

A model with published weights needs its order all the way down, a briefly pre-trained micro model only in its first layers. Each
setting is pre-trained and refined in original and (with Latin routes) in arbitrary order, as `minutes` does it; then accuracy with the
first k layers in place and the others shuffled is measured on held-out images, which nothing else reports. The distance to the
pre-trained ViT-S is the root mean square, over k, of the difference between the shares of what is above chance that are left.
"""

import argparse
import math
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine, show, write

from lsvit.config.params import Params, load
from lsvit.config.sections import Finetune, Optimisation, Pretrain
from lsvit.config.variant import Variant
from lsvit.data.prepare import prepare
from lsvit.jobs.configs import TrainConfig
from lsvit.jobs.files import HELDOUT, WEIGHTS, read_meta, weights_file
from lsvit.jobs.plan import run_config
from lsvit.latin import latin
from lsvit.routes import generator
from lsvit.training.loop import train
from lsvit.training.scoring import open_model, open_split, score

FILE = Path(__file__).with_suffix(".json")
KS = (0, 1, 2, 3, 4, 6, 8, 12)
# A pre-trained ViT-S/14 of DINOv2's architecture, refined for 5 epochs in original order on 4,000 images of Fashion-MNIST at 56
# pixels; one seed, 500 images
PRE_TRAINED = (0.24, 0.26, 0.33, 0.44, 0.46, 0.63, 0.74, 0.80)
CHANCE, ORDERS, SEEDS = 0.1, 200, (0, 1)
# What differs from vit_micro: of the preset (kwargs too) and, with a dot, of its pre-training.
SETTINGS: list[dict[str, Any]] = [
    {"init_growth": 0.0},  # vit_micro before
    {"init_growth": 0.0, "init_std": 0.3},
    {"init_growth": 0.0, "init_std": 0.3, "embed_dim": 24},
    {"init_growth": 0.0, "init_values": 0.1},
    {"init_growth": 0.5},
    {"init_growth": 0.75},
    {"init_growth": 1.0},
    {"init_growth": 1.5},
    {"init_growth": 0.5, "init_std": 0.2},
    {"init_growth": 0.75, "init_std": 0.15},
    {"init_growth": 0.35, "init_std": 0.3},
    {"init_growth": 1.0, "pretrain.epochs": 3},
    {"init_growth": 1.0, "embed_dim": 64, "num_heads": 4, "init_std": 0.069},
    {"init_growth": 1.0, "patch_size": 7},
]


def train_one(params: Params, name: str, options: Optimisation, seed: int, data: Path, start: Path | None, folder: Path) -> TrainConfig:
    """Train one model in a folder; what it was trained with."""
    variant = params.all_variants[name]
    config = TrainConfig(**run_config(params, name, variant, read_meta(data)["sha256"], None), options=options, seed=seed)
    folder.mkdir(parents=True)
    train(config, data, start, folder, lambda event: None)
    return config


def curve(config: TrainConfig, data: Path, weights: Path) -> list[float]:
    """Accuracy on the held-out images, by number of layers in place."""
    model, execution = open_model(config, data, weights)
    split = open_split(config, data, HELDOUT, model)
    found = []
    for k in KS:
        groups = max(model.num_layers - k, 1)
        passes, batch_size = math.ceil(ORDERS / groups / 10), math.ceil(len(split) / 10)
        drawn = [[latin(generator("stand-in", k, i, j), model.num_layers, k) for j in range(10)] for i in range(passes)]
        found.append(float(np.mean([score(model, split, routes, batch_size, execution).accuracy for routes in drawn])))
    return found


def measure(given: tuple[dict[str, Any], int, Path, Path]) -> dict[str, Any]:
    """One setting and seed: pre-trained, refined twice, and the curves."""
    setting, seed, data, folder = given
    torch.set_num_threads(1)
    params = load()
    own, plain = params.models[params.model], {k: v for k, v in setting.items() if k in ("init_std", "init_growth")}
    kwargs = own.kwargs | {k: v for k, v in setting.items() if "." not in k and k not in plain}
    params = params.model_copy(update={"models": {params.model: own.model_copy(update=plain | {"kwargs": kwargs})}})
    own_pretrain = {k.partition(".")[2]: v for k, v in setting.items() if "." in k}
    options = params.resolve(Pretrain).model_copy(update=own_pretrain | {"threads": 1})
    config = run_config(params, "pretrained", Variant(route="sequential"), read_meta(data)["sha256"], None)
    folder.mkdir(parents=True)
    train(TrainConfig(**config, options=options, seed=seed), data, None, folder, lambda event: None)
    found = {}
    for name in ("baseline", "ls"):
        trained = train_one(params, name, params.resolve(Finetune, name), seed, data, folder / WEIGHTS, folder / name)
        found[name] = curve(trained, data, folder / name / weights_file(HELDOUT))
    return found


def distance(accuracies: np.ndarray) -> float:
    """Of a curve to that of the pre-trained model, both as shares of what lies above chance with all layers in place."""
    shares = [(each - CHANCE) / (each[-1] - CHANCE) for each in (accuracies, np.array(PRE_TRAINED))]
    return float(np.sqrt(np.mean((shares[0] - shares[1])[:-1] ** 2)))


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description="Which micro model behaves like a pre-trained one.")
    parser.add_argument("--workers", type=int, default=2, help="settings measured side by side")
    params = load()
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / "data"
        prepare(params.dataset, params.dataset_preset, Path("data") / params.dataset, data)
        todo = [(s, seed, data, Path(temporary) / f"{i}_{seed}") for i, s in enumerate(SETTINGS) for seed in SEEDS]
        with ProcessPoolExecutor(parser.parse_args().workers) as pool:
            found = list(pool.map(measure, todo))
    rows = []
    for i, setting in enumerate(SETTINGS):
        curves = {name: np.array([each[name] for each in found[i * len(SEEDS) : (i + 1) * len(SEEDS)]]) for name in ("baseline", "ls")}
        distances = [distance(each) for each in curves["baseline"]]
        rows.append({
            "setting": ", ".join(f"{key} {value}" for key, value in setting.items()), "distance": float(np.mean(distances)),
            "distance_std": float(np.std(distances, ddof=1)),
            **{name: [round(float(value), 3) for value in each.mean(0)] for name, each in curves.items()},
        })  # fmt: skip
    write(FILE, {"machine": machine(), "seeds": len(SEEDS), "layers_in_place": KS, "pre_trained": PRE_TRAINED, "settings": rows})
    show("accuracy on held-out images by number of first layers in place", rows)


if __name__ == "__main__":
    main()
