"""Weights from a file, refined and evaluated by the pipeline's own functions, against a plain loop
over timm.
"""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate

from lsvit.routes import arbitrary, generator
from papers.layershuffle.compute.evaluation import evaluate
from papers.layershuffle.section import EvalConfig, PruneEval
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.files import read_json
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import HISTORY, ORIGIN, ROWS, WEIGHTS
from pipeline.jobs.rows import read_rows
from pipeline.training.loop import fetch, train
from tests.conftest import run_fields

# Architectures of published weights: a plain one; with layer scale; with that and register tokens.
# Here narrow, weights random.
PUBLISHED: dict[str, dict[str, Any]] = {
    "vit_small_patch16_224": {"patch_size": 14},
    "vit_small_patch14_dinov2": {},
    "vit_small_patch14_reg4_dinov2": {},
}
SMALL: dict[str, Any] = {"img_size": 56, "embed_dim": 48, "num_heads": 3, "depth": 6, "in_chans": 1}
EPOCHS, BATCH = 7, 12  # 56 steps with 96 images


def published_preset(name: str, folder: Path) -> ModelPreset:
    """A model that starts from a checkpoint of 1,000 classes, 70 pixels and three channels."""
    torch.manual_seed(1)
    published: Any = timm.create_model(
        name, **(SMALL | PUBLISHED[name] | {"num_classes": 1000, "in_chans": 3, "img_size": 70})
    )
    save_file(published.state_dict(), folder / "mine.safetensors")
    weights = str(folder / "mine.safetensors")
    return ModelPreset(timm=name, kwargs=SMALL | PUBLISHED[name], weights=weights)


def read_bytes(path: Path, header: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def pixels(raw: Path, split: str) -> Tensor:
    """Images as a plain script makes them: 56 pixels, bilinear, normalised by the training set's
    mean and standard deviation.
    """
    images = {
        name: read_bytes(raw / f"{file}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
        for name, file in (("train", "train"), ("validation", "t10k"))
    }
    mean, std = images["train"].mean() / 255, images["train"].std() / 255
    large = interpolate(
        torch.tensor(images[split]).float().unsqueeze(1), (56, 56), mode="bilinear", antialias=True
    )
    return (large / 255 - float(mean)) / float(std)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("route", ["sequential", "arbitrary"])
def test_training_from_a_checkpoint_equals_a_plain_loop(
    name: str,
    route: str,
    train_config: Callable[..., TrainConfig],
    prepared: Path,
    tmp_path: Path,
    params: Params,
) -> None:
    """Loss of each of 7 epochs, 56 steps of Adam in all, to 1e-5; the trained model is then
    evaluated, pruned too.
    """
    preset = published_preset(name, tmp_path)
    config = train_config(seed=3, route=route, batch_size=BATCH, epochs=EPOCHS, lr=1e-4)
    config = config.model_copy(update={"model": preset})
    start, trained, evaluated = (tmp_path / part for part in ("start", "trained", "evaluated"))
    for folder in (start, trained, evaluated):
        folder.mkdir()
    fetch(config, prepared, None, start, lambda event: None)
    assert read_json(start / ORIGIN)["head"] == "fresh"
    train(config, prepared, start / WEIGHTS, trained, lambda event: None)
    history = read_json(trained / HISTORY, list)

    raw = prepared.parent / "raw"
    plain: Any = timm.create_model(name, **(SMALL | PUBLISHED[name] | {"num_classes": 10}))
    plain.load_state_dict(load_file(start / WEIGHTS))
    images = pixels(raw, "train")
    labels = torch.tensor(read_bytes(raw / "train-labels-idx1-ubyte.gz", 8)).long()
    adam = torch.optim.Adam(plain.parameters(), lr=1e-4, eps=1e-6)
    for epoch, row in enumerate(history, 1):
        order, losses = generator("batches", 3, epoch).permutation(len(images)), []
        for step, chosen in enumerate(np.split(order, len(images) // BATCH)):
            layers: Any = range(6)
            if route == "arbitrary":
                layers = arbitrary(generator("train", 3, epoch, step), 6)
            tokens = plain._pos_embed(plain.patch_embed(images[chosen]))
            for layer in layers:
                tokens = plain.blocks[layer](tokens)
            loss = cross_entropy(plain.forward_head(plain.norm(tokens)), labels[chosen])
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses.append(loss.item())
        assert row["train/class_loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert history[-1]["train/class_loss"] < history[0]["train/class_loss"]

    changes = {"keep": [3, 6], "orders": 2, "samplers": []}
    options = PruneEval(**params.prune_eval.model_dump() | changes)
    fields = run_fields(prepared, preset, config.variant, precision="auto", seed=3)
    measured = EvalConfig(**fields, options=options)
    evaluate(measured, prepared, trained / WEIGHTS, evaluated, lambda event: None)
    rows = read_rows(evaluated / ROWS)
    full = rows[(rows["keep"] == 6) & (rows["order"] == "sequential")]["accuracy"].item()
    with torch.inference_mode():
        plain.load_state_dict(load_file(trained / WEIGHTS))
        answers = plain.eval()(pixels(raw, "validation")).argmax(-1)
    right = answers.numpy() == read_bytes(raw / "t10k-labels-idx1-ubyte.gz", 8)
    assert full == pytest.approx(right.mean(), abs=1e-6)
