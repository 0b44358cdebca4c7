"""Text of others: names of files and classes, messages of other programs."""

import os
import unicodedata
from pathlib import Path

JOINERS = "\u200c\u200d"  # letters of Persian, parts of an emoji


def plain(text: str) -> str:
    """Text on one line that is UTF-8 and has no control characters: they are escaped."""
    return "".join(map(_escape, text))


def folder_name(name: str) -> str:
    """The name of a class as its folder has it: "_" for "/", in one of Unicode's normal forms.

    macOS writes an accent as a character of its own, Linux mostly not.
    """
    return unicodedata.normalize("NFC", name.replace("/", "_"))


def user_path(path: str | Path) -> Path:
    """A path in which "~" is a home folder. That of an unknown user stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (pathlib's raises RuntimeError)


def one_line(error: BaseException) -> str:
    """The whole text of an error, on one line."""
    return " ".join(str(error).split())


def _escape(character: str) -> str:
    is_space = unicodedata.category(character) == "Zs"
    if character.isprintable() or character in JOINERS or is_space:
        return character
    return character.encode("unicode_escape").decode()
