"""LayerShuffle with timm's own loader, optimizer, schedule and EMA, as its train.py has them.

uv run dvc pull data.dvc
uv run python examples/timm_train.py
"""

from pathlib import Path

import timm
import torch
from fashion import MEAN, STD, Fashion, read_options
from timm.data import create_loader
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3

import lsvit

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MODEL = {"img_size": 28, "patch_size": 14, "in_chans": 1, "embed_dim": 32, "num_heads": 2}
SHAPE = (1, 28, 28)


def main(folder: Path, images: int | None, epochs: int) -> list[lsvit.Score]:
    """Train a small vision transformer with shuffled layers; measure its average over steps."""
    torch.manual_seed(0)
    common = {"batch_size": 100, "mean": (MEAN,), "std": (STD,), "num_workers": 0}
    common |= {"use_prefetcher": False, "device": DEVICE}
    train = create_loader(
        Fashion("train", folder, images=images), SHAPE, is_training=True, no_aug=True, **common
    )
    validation = create_loader(
        Fashion("validation", folder, images=images), SHAPE, crop_pct=1.0, **common
    )
    model = timm.create_model("vit_tiny_patch16_224", depth=6, num_classes=10, **MODEL)
    model.to(DEVICE)
    lsvit.shuffle(model)  # the one line

    optimizer = create_optimizer_v2(model, opt="adamw", lr=2e-3, weight_decay=0.05)
    scheduler, epochs = create_scheduler_v2(
        optimizer,
        sched="cosine",
        num_epochs=epochs,
        warmup_epochs=min(1, epochs - 1),
        updates_per_epoch=len(train),
        step_on_epochs=False,
    )
    average = ModelEmaV3(model, decay=0.99, use_warmup=True)
    criterion = LabelSmoothingCrossEntropy(0.1)
    updates = 0
    for epoch in range(epochs):
        model.train()
        for batch, labels in train:
            loss = criterion(model(batch.to(DEVICE)), labels.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
            average.update(model, step=updates)
            scheduler.step_update(num_updates=updates)
        scheduler.step(epoch + 1)
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    return lsvit.evaluate(average.module, validation, orders=20)


if __name__ == "__main__":
    main(**read_options(__doc__))
