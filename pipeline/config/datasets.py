"""The data-set presets of params.yaml, and their validation. No torch here."""

from typing import Literal, Self

from pydantic import model_validator

from pipeline.config.presets import ModelPreset
from pipeline.config.types import Count, Section
from pipeline.errors import UserError

SIZES = {  # training, validation images of a source
    "embedded": (10_000, 2_000),
    "fashion_mnist": (60_000, 10_000),
    "digits": (1_437, 360),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "imagenet": (1_281_167, 50_000),
}
CLASSES = {
    "cifar100": 100,
    "imagenet": 1000,
}  # of sources that have not 10, as far as they are known beforehand
COLOURED = (
    "cifar10",
    "cifar100",
    "imagenet",
    "image_folder",
)  # sources whose images have three channels; others have one


class DatasetPreset(Section):
    """Where images come from, how many of them are used, and how many of the training images are held out."""

    source: Literal[
        "embedded", "fashion_mnist", "digits", "cifar10", "cifar100", "imagenet", "image_folder"
    ]
    folder: str | None = None
    resize: Literal["published", "timm"] = "published"
    train: Count | None = None
    validation: Count | None = None
    heldout: Count | None = None

    @model_validator(mode="after")
    def _folder_is_given(self) -> Self:
        if self.folder is None and self.source in ("imagenet", "image_folder"):
            raise ValueError("folder\nnull\nthe folder with the images")
        return self

    @property
    def num_classes(self) -> int:
        """As far as it is known beforehand; a folder's are counted as 10, too."""
        return CLASSES.get(self.source, 10)

    @property
    def sizes(self) -> tuple[int, int, int] | None:
        """Images to train on, to validate on, and held out; None where only the source knows."""
        train, validation = SIZES.get(self.source, (None, None))
        train, validation = self.train or train, self.validation or validation
        if train is None or validation is None:
            return None
        return train - (self.heldout or 0), validation, self.heldout or 0

    def check_channels(self, model: ModelPreset, key: str, file: str) -> None:
        """Raises UserError if the model does not take these images: grey ones are repeated over any channels, colours are three."""
        channels = model.kwargs.get("in_chans", 3)
        if self.source in COLOURED and channels != 3:
            raise UserError(
                f"{file}: {key}.kwargs.in_chans: found {channels}, accepted: 3 (the images of {self.source} are in colour)"
            )
