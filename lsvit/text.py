"""Text of others: names of files and classes, messages of other programs."""

import unicodedata

JOINERS = "\u200c\u200d"  # letters of Persian, parts of an emoji


def plain(text: str) -> str:
    """Text on one line that is UTF-8 and has no control characters: they are escaped."""
    return "".join(map(_escape, text))


def one_line(error: BaseException) -> str:
    """The whole text of an error, on one line."""
    return " ".join(str(error).split())


def _escape(character: str) -> str:
    is_space = unicodedata.category(character) == "Zs"
    if character.isprintable() or character in JOINERS or is_space:
        return character
    return character.encode("unicode_escape").decode()
