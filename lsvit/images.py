"""Modes of images. No torch here."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image


def in_mode(image: "Image", mode: str) -> "Image":
    """The image in mode RGB or L. Like torchvision's loader it does not turn it as EXIF says."""
    if image.mode.startswith("I"):  # 16 bits; Pillow would cut them off at 255
        image = image.convert("I").point(lambda value: value * (1 / 257)).convert("L")
    return image.convert(mode)
