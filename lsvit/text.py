"""Text of others: names of files and classes."""


def plain(text: str) -> str:
    """Text on one line without control characters, and such that UTF-8 has it.

    Others are escaped: a line feed is shown as ``\\n``, a byte that is not UTF-8 as ``\\udcff``.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
