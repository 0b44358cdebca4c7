"""A user's mistake ends in one line and exit code 2, never in a traceback."""

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `lsvit --help` needs no pydantic
    from pydantic import BaseModel, ValidationError


# What Linux, torch.save and SQLite say of a disk; Python, Linux, numpy and torch of memory.
NO_ROOM = re.compile(
    "No space left on device|Read-only file system|Disk quota exceeded|PytorchStreamWriter failed|disk is full|"
    "MemoryError|[Cc]an(no|')t allocate memory|Unable to allocate|can't start new thread"
)


def plain(text: str) -> str:
    """Text on one line in which a terminal finds nothing to obey: other characters are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class UserError(Exception):
    """A mistake the user can mend: the message, a line a mistake, names the file or key, what was found and what is accepted."""

    def __init__(self, message: str) -> None:
        super().__init__("\n".join(map(plain, message.split("\n"))))


class WorkerDied(UserError):
    """The process of a job was killed, or had too little memory: the job may go on from its last epoch."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with `error: <line>` on standard error, a line a mistake, and exit code 2 when a UserError is raised, or a disk is
    full or cannot be written, or there is no memory left; with one line and exit code 130, a shell's for SIGINT, on Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted; what has finished is kept: the same command goes on", file=sys.stderr)
        raise SystemExit(130) from None
    except UserError as error:
        for each in str(error).splitlines():
            print(f"error: {each}", file=sys.stderr)
        raise SystemExit(2) from None
    except Exception as error:  # a library's own, or an OSError
        if not NO_ROOM.search(said := " ".join(str(error).split()) or type(error).__name__):
            raise
        print(
            f"error: {plain(said[:200])}; what has finished is kept: make room, and run it again",
            file=sys.stderr,
        )
        raise SystemExit(2) from None


def collect_errors(check: Callable[..., object], *args: Any) -> list[str]:
    """The lines of the UserError that a check raises; none where it passes."""
    try:
        check(*args)
    except UserError as error:
        return str(error).splitlines()
    return []


def raise_all(lines: Iterable[str]) -> None:
    """Raises UserError with all of the lines, each once, if there are any."""
    if found := list(dict.fromkeys(lines)):
        raise UserError("\n".join(found))


def accepted(name: Any, names: Iterable[Any]) -> str:
    """What is accepted, the nearest known name first."""
    known = [plain(str(n)) for n in names]
    near = difflib.get_close_matches(str(name), known, n=1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"accepted: {', '.join(known)}"


def _keys_at(section: "type[BaseModel]", path: tuple[str | int, ...]) -> list[str]:
    """The keys accepted where an unknown one was found."""
    from pydantic import BaseModel

    annotation: Any = section
    for part in path:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            annotation = annotation.model_fields[str(part)].annotation
        else:  # dict[str, X], list[X]: one of the arguments is the item
            annotation = annotation.__args__[-1]
        models = [
            a
            for a in getattr(annotation, "__args__", ())
            if isinstance(a, type) and issubclass(a, BaseModel)
        ]
        if models and getattr(annotation, "__origin__", None) not in (dict, list):  # X | None
            annotation = models[0]
    return list(annotation.model_fields)


def one_line(
    error: "ValidationError",
    section: "type[BaseModel]",
    prefix: str = "",
    file: str = "params.yaml",
) -> str:
    """The errors of a validation, a line each: key, value found, what is accepted, the nearest known name."""
    return "\n".join(dict.fromkeys(line(each, section, prefix, file) for each in error.errors()))


def line(
    first: Any, section: "type[BaseModel]", prefix: str = "", file: str = "params.yaml"
) -> str:
    """One of a validation's errors as a line."""
    loc = list(first["loc"])
    key = ".".join(plain(str(part)) for part in ([prefix] if prefix else []) + loc)
    found, message = first["input"], first["msg"]
    if first["type"] == "extra_forbidden":
        return f"{file}: {key}: unknown key (value {found!r}), {accepted(loc[-1], _keys_at(section, tuple(loc[:-1])))}"
    if first["type"] == "missing":
        return f"{file}: {key}: missing, accepted: a value for this key"
    message = message.removeprefix("Value error, ")
    if message.count("\n") == 2:  # a cross-check inside a preset names its own key and value
        sub, value, wanted = message.split("\n")
        return f"{file}: {key}.{sub}: found {value}, accepted: {wanted}"
    if first["type"] == "literal_error":
        choices = [choice.strip(" '") for choice in re.split(r",| or ", first["ctx"]["expected"])]
        return f"{file}: {key}: found {found!r}, {accepted(found, choices)}"
    message = re.sub(
        r"^(Input should be |String should |List should )",
        "",
        message.partition(", unable to parse")[0],
    )
    message = message.replace("a valid int", "an int").replace("valid ", "")
    return f"{file}: {key}: found {found!r}, accepted: {message}"
