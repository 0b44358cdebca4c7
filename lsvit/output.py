"""What is left of a command's output at its end, and a reader that is gone."""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def flushed() -> Iterator[None]:
    """Write what is left of the output at the end, also of a process that exits.

    What fails only when the interpreter ends has a traceback.
    """
    try:
        yield
    except SystemExit:
        flush_output()
        raise
    flush_output()


def flush_output() -> None:
    """Write what is left of the output, unless it is closed."""
    if sys.stdout:
        sys.stdout.flush()


def is_reader_gone(error: BaseException) -> bool:
    """True if an error is that nobody reads this process's output any more."""
    if isinstance(error, SystemExit):  # rich and typer end so, with code 1
        return isinstance(error.__context__, BrokenPipeError)
    if not isinstance(error, BrokenPipeError):
        return False
    output = select.poll()
    output.register(1, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in output.poll(0))


def drop_output() -> None:
    """If what is left of the output cannot be written, let it go nowhere."""
    try:
        flush_output()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
