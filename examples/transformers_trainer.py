"""LayerShuffle with transformers' Trainer: one line more than without.

uv run dvc pull data.dvc
uv run python examples/transformers_trainer.py
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from fashion import MEAN, STD, Fashion, read_options
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.transforms import v2
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import lsvit

CONFIG = ViTConfig(
    image_size=28,
    patch_size=14,
    num_channels=1,
    hidden_size=32,
    intermediate_size=128,
    num_hidden_layers=6,
    num_attention_heads=2,
    num_labels=10,
)


def collate(samples: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    """Join samples to what the model takes."""
    images, labels = zip(*samples, strict=True)
    return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}


def main(folder: Path, images: int | None, epochs: int) -> list[lsvit.Score]:
    """Train transformers' ViT with shuffled layers, and measure it in random orders."""
    torch.manual_seed(0)
    steps = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([MEAN], [STD])]
    train = Fashion("train", folder, v2.Compose(steps), images)
    validation = Fashion("validation", folder, v2.Compose(steps), images)

    model = ViTForImageClassification(CONFIG)
    lsvit.shuffle(model)  # the one line

    with tempfile.TemporaryDirectory() as output:
        arguments: Any = TrainingArguments(
            output,
            num_train_epochs=epochs,
            per_device_train_batch_size=100,
            learning_rate=2e-3,
            save_strategy="no",
            report_to="none",
            dataloader_pin_memory=False,
        )
        Trainer(model, arguments, train_dataset=train, data_collator=collate).train()
    loader = DataLoader(validation, batch_size=200, collate_fn=collate)
    return lsvit.evaluate(model, loader, orders=20)


if __name__ == "__main__":
    main(**read_options(__doc__))
