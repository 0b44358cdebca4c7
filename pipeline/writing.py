"""Files that are whole or not there."""

import os
from pathlib import Path


def replace_text(file: Path, text: str) -> None:
    """Write a file of which readers find the old text or the new one, never half, and of which nothing is left where a disk is full."""
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        partial.write_text(text)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
