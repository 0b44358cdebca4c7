"""LayerShuffle in a plain PyTorch loop.

uv run dvc pull data.dvc
uv run python examples/plain_loop.py
"""

from pathlib import Path

import timm
import torch
from fashion import MEAN, STD, Fashion, read_options
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import lsvit

MODEL = {"img_size": 28, "patch_size": 14, "in_chans": 1, "embed_dim": 32, "num_heads": 2}


def main(folder: Path, images: int | None, epochs: int) -> list[lsvit.Score]:
    """Train a small vision transformer with shuffled layers, and measure it in random orders."""
    torch.manual_seed(0)
    steps = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([MEAN], [STD])]
    train = Fashion("train", folder, v2.Compose(steps), images)
    validation = Fashion("validation", folder, v2.Compose(steps), images)
    loader = DataLoader(train, batch_size=100, shuffle=True)

    model = timm.create_model("vit_tiny_patch16_224", depth=6, num_classes=10, **MODEL)
    lsvit.shuffle(model)  # from now on every training step runs the layers in a new order

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        model.train()
        for batch, labels in loader:
            loss = cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    return lsvit.evaluate(model, DataLoader(validation, batch_size=200), orders=20)


if __name__ == "__main__":
    main(**read_options(__doc__))
