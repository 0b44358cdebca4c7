"""The data-set presets of params.yaml, and their validation. No torch here."""

from typing import Any, Literal, Self

from pydantic import model_validator

from pipeline.config.types import Count, Section, refuse
from pipeline.errors import mistake

SIZES = {  # training, validation images of a source
    "embedded": (10_000, 2_000),
    "fashion_mnist": (60_000, 10_000),
    "digits": (1_437, 360),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "imagenet": (1_281_167, 50_000),
}
CLASSES = {"cifar100": 100, "imagenet": 1000}  # other sources have 10, or tell only when read
COLOURED = ("cifar10", "cifar100", "imagenet", "image_folder")  # others have one channel


class DatasetPreset(Section):
    """Where images come from, how many are used, and how many training images are held out.

    Sections beside these keys override values for the data set.
    """

    source: Literal[
        "embedded", "fashion_mnist", "digits", "cifar10", "cifar100", "imagenet", "image_folder"
    ]
    """embedded: tracked by data.dvc. fashion_mnist: `folder`, else Debian's package, else a
    download. digits: scikit-learn's 1,797 images of 8 x 8 pixels. cifar10, cifar100: `folder` with
    the official archive or what it holds, else a download. imagenet: `folder` with train/<synset>/
    and val/<synset>/, or with the three official tar files. image_folder: `folder` with
    train/<class>/ and val/<class>/ (or validation/, or test/)."""
    folder: str | None = None
    """Where the files lie; a relative path begins at this repository."""
    resize: Literal["published", "timm"] = "published"
    """published: shorter side to the model's size, bilinear. timm: as the weights' own evaluation
    (crop_pct, bicubic). Then the centre is cropped."""
    train: Count | None = None
    """Use only n training images: the first; of image files random ones, always the same."""
    validation: Count | None = None
    """Use only n validation images."""
    heldout: Count | None = None
    """So many training images are never trained on: they choose the epoch of protocol heldout."""

    @model_validator(mode="after")
    def _check_folder(self) -> Self:
        if self.folder is None and self.source in ("imagenet", "image_folder"):
            raise refuse("folder", None, "the folder with the images")
        if self.folder is not None and self.source in ("embedded", "digits"):
            raise refuse("folder", self.folder, f"none, source {self.source} reads no folder")
        return self

    @property
    def num_classes(self) -> int:
        """As far as it is known beforehand; 10 for a folder of images."""
        return CLASSES.get(self.source, 10)

    @property
    def sizes(self) -> tuple[int, int, int] | None:
        """Images to train on, to validate on, and held out; None if only the source knows."""
        train, validation = SIZES.get(self.source, (None, None))
        train = self.train or train
        validation = self.validation or validation
        if train is None or validation is None:
            return None
        heldout = self.heldout or 0
        return train - heldout, validation, heldout

    def check_channels(self, kwargs: dict[str, Any], key: str) -> list[str]:
        """A line if a model with these arguments does not take the images.

        Grey images are repeated over any channels, images in colour have three.
        """
        channels = kwargs.get("in_chans", 3)
        if self.source not in COLOURED or channels == 3:
            return []
        accepted = f"3 (the images of {self.source} are in colour)"
        return [mistake(f"{key}.kwargs.in_chans", channels, accepted)]
