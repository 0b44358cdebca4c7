"""Image files: those of a folder, and their pixels."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lsvit.text import plain

if TYPE_CHECKING:
    from PIL.Image import Image

# Tags of TIFF
BITS, PHOTOMETRIC, SAMPLE_FORMAT = 258, 262, 339
UNSIGNED = 1
WHITE_IS_ZERO = 0


def in_mode(image: "Image", mode: str) -> "Image":
    """The image in mode RGB or L: its first picture, without transparency.

    Numbers of 16 bits are divided by 257. Like torchvision's loader it does not turn the image as
    EXIF says.

    Raises:
        ValueError: numbers of another kind, of which nobody says which one is white.
    """
    tags = getattr(image, "tag_v2", {})
    known = tags.get(SAMPLE_FORMAT, (UNSIGNED,))[0] == UNSIGNED
    if image.mode == "I":
        known = image.format in ("PNG", "PPM")  # which have at most 16 bits
    elif image.mode.startswith("I"):
        known &= tags.get(BITS) in (None, (16,)) and tags.get(PHOTOMETRIC) != WHITE_IS_ZERO
    if not known or image.mode == "F":
        wanted = "whole numbers of 8 or 16 bits, where 0 is black"
        raise ValueError(f"pixels of mode {image.mode}, accepted: {wanted}")
    if image.mode.startswith("I"):  # Pillow would cut them off at 255
        image = image.convert("I").point(lambda value: value * (1 / 257)).convert("L")
    if image.mode == "P":  # otherwise Pillow warns of the transparency that it drops
        image = image.convert("RGBA")
    return image.convert(mode)


# ---- folders -----------------------------------------------------------------------------------

Unused = dict[str, list[str]]  # by reason: paths
# Thumbnails of a Synology disk, what macOS puts into archives, what file systems keep.
OF_SYSTEMS = ("@eaDir", "__MACOSX", "lost+found", "$RECYCLE.BIN", "System Volume Information")


def list_images(folder: Path, unused: Unused) -> list[tuple[str, str]]:
    """List the image files below a folder, as torchvision's ImageFolder, but no hidden ones.

    Links are followed. What systems put beside files is left out too.

    Args:
        folder: with images in it and in folders of any depth.
        unused: gets the paths of what is left out.

    Returns:
        The folder and the name of each file, sorted.

    Raises:
        OSError: a folder cannot be opened.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS

    found = []
    real = folder.resolve()
    # A folder that a link puts into itself has no end.
    todo = [(folder, frozenset(map(_identify, (real, *real.parents))))]
    while todo:
        place, around = todo.pop()
        for path in place.iterdir():
            if path.name.startswith("."):
                reason = "hidden"
            elif path.name in OF_SYSTEMS:
                reason = "of the system"
            elif path.is_dir():
                identity = _identify(path)
                if identity not in around:
                    todo.append((path, around | {identity}))
                    continue
                reason = "links to a folder that holds them"
            elif not path.is_file():
                reason = "links that lead nowhere" if path.is_symlink() else "no regular files"
            elif not path.name.lower().endswith(IMG_EXTENSIONS):
                reason = "of other endings"
            else:
                found.append((str(place), path.name))
                continue
            unused.setdefault(reason, []).append(str(path))
    return sorted(found)


def _identify(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def describe_unused(folder: Path, unused: Unused) -> str:
    """A line: how many files below a folder are left out, why, and one of each kind."""
    reasons = []
    for reason, paths in unused.items():
        reasons.append(f"{len(paths):,} {reason} ({os.path.relpath(min(paths), folder)})")
    return plain(f"{folder}: left out: {', '.join(reasons)}")
