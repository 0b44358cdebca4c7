"""Files that may be damaged: whatever goes wrong while one is read is a user's mistake that names
it. No torch here."""

import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import UserError, find_remedy

LARGEST = 2**28  # bytes of a text file; a larger one is not this project's and would fill memory


@contextmanager
def reading(
    path: Path | str, remedy: str = "`dvc checkout` or `dvc repro` brings it back"
) -> Iterator[None]:
    """Turn what a damaged or missing text file raises, while it is read or what it holds is looked
    up, into a UserError that names it.

    Of a text that does not come from a file, a name stands in for the path.
    """
    try:
        if isinstance(path, Path) and path.stat().st_size > LARGEST:
            raise ValueError(f"{path.stat().st_size:,} bytes, at most {LARGEST:,}")
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        remedy = find_remedy(error) or remedy
        raise UserError(
            f"{path}: cannot be read ({type(error).__name__}: {reason}); {remedy}"
        ) from None


def read_json(path: Path, kind: type = dict) -> Any:
    """A mapping, or a list where that is the `kind`, as a JSON file holds it. Raises UserError if
    it holds none."""
    with reading(path):
        if not isinstance(found := json.loads(path.read_text("utf-8")), kind):
            raise TypeError(f"found {type(found).__name__}, accepted: {kind.__name__}")
        return found


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    """Write a JSON file that ends in a newline; `indent` None puts all of it in one line."""
    path.write_text(json.dumps(content, indent=indent) + "\n", "utf-8")


def sound(path: Path) -> bool:
    """Whether every part of a zip file, such as torch.save writes, has its checksum: torch itself
    looks at none of them."""
    try:
        with zipfile.ZipFile(path) as parts:
            return parts.testzip() is None
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zipfile.LargeZipFile):
        return False


def replace_text(file: Path, text: str) -> None:
    """Write a file of which readers find the old text or the new one, never half, and of which
    nothing is left where a disk is full."""
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        partial.write_text(text, "utf-8")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
