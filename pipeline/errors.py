"""A user's mistake ends in one line and exit code 2, never in a traceback."""

import difflib
import errno
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `lsvit --help` needs no pydantic
    from pydantic import BaseModel, ValidationError

ROOM = "make room, and run it again"
RIGHTS = "give this user the right to use it, or work in a clone of your own"
REMEDIES = {
    errno.ENOSPC: ROOM,
    errno.EDQUOT: ROOM,
    errno.EFBIG: ROOM,
    errno.ENOMEM: ROOM,
    errno.EROFS: RIGHTS,
    errno.EACCES: RIGHTS,
    errno.EPERM: RIGHTS,
}
SQLITE_REMEDIES = {
    "SQLITE_FULL": ROOM,
    "SQLITE_READONLY": RIGHTS,
    "SQLITE_CANTOPEN": RIGHTS,
}


def plain(text: str) -> str:
    """Escape text of others, see :func:`lsvit.text.plain`."""
    from lsvit.text import plain  # late: it brings numpy, before which a stage sets variables

    return plain(text)


class UserError(Exception):
    """A mistake the user can mend.

    The message has a line for each: the file or key, what was found, what is accepted.
    """

    def __init__(self, message: str) -> None:
        super().__init__("\n".join(map(plain, message.split("\n"))))


class WorkerDied(UserError):
    """The process of a job was killed, or had too little memory.

    The job may go on from its last epoch.
    """


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with `error: <line>` for each line of a UserError, and exit code 2.

    A full disk, one that this user may not write to and too little memory end it in the same way,
    Ctrl-C with one line and exit code 130, as a shell has for SIGINT, and a reader of its output
    that is gone, such as `head`, without a line and with 141, as a shell has for SIGPIPE.
    """
    from lsvit.output import drop_output, flushed, is_reader_gone  # late, as in plain

    try:
        with flushed():
            try:
                yield
            except KeyboardInterrupt:
                message = "interrupted; what has finished is kept: the same command goes on"
                print(message, file=sys.stderr)
                raise SystemExit(130) from None
            except UserError as error:
                for line in str(error).splitlines():
                    print(f"error: {line}", file=sys.stderr)
                raise SystemExit(2) from None
    except (Exception, SystemExit) as error:
        if is_reader_gone(error):
            code = 141
        elif isinstance(error, Exception) and (explanation := explain(error)):
            print(f"error: {explanation}", file=sys.stderr)
            code = 2
        else:
            raise
        drop_output()
        raise SystemExit(code) from None


def explain(error: BaseException) -> str | None:
    """The line of a full disk, missing rights or too little memory; None for all other errors."""
    remedy = find_remedy(error)
    if remedy is None:
        return None
    reason = plain(" ".join(str(error).split()) or type(error).__name__)
    return f"{reason}; what has finished is kept: {remedy}"


def find_remedy(error: BaseException) -> str | None:
    """What helps where a full disk, one without rights, or too little memory is behind an error.

    numpy and torch's CPU allocator raise MemoryError and RuntimeError; of the latter only those
    that carry their cause are recognised. Libraries written in Rust, such as safetensors, name the
    system's error in their text. None for all other errors.
    """
    if isinstance(error, MemoryError):
        return ROOM
    if isinstance(error, OSError):
        return REMEDIES.get(error.errno or 0)
    if named := re.search(r"\(os error (\d+)\)", str(error)):
        return REMEDIES.get(int(named[1]))
    remedy = SQLITE_REMEDIES.get(getattr(error, "sqlite_errorname", ""))
    cause = error.__cause__ or error.__context__
    if remedy or cause is None:
        return remedy
    return find_remedy(cause)


def collect_errors(check: Callable[..., object], *args: Any) -> list[str]:
    """The lines of the UserError that a check raises; none if it passes."""
    try:
        check(*args)
    except UserError as error:
        return str(error).splitlines()
    return []


def raise_all(lines: Iterable[str]) -> None:
    """Raises UserError with all of the lines, each once, if there are any."""
    if text := "\n".join(dict.fromkeys(lines)):
        raise UserError(text)


def accepted(name: Any, names: Iterable[Any]) -> str:
    """What is accepted, the nearest known name first."""
    known = [plain(str(n)) for n in names]
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}accepted: {', '.join(known)}"


def mistake(key: str, value: Any, wanted: str, file: str = "params.yaml") -> str:
    """The line of a wrong value."""
    return f"{file}: {key}: found {value!r}, accepted: {wanted}"


def unknown_name(key: str, name: Any, names: Iterable[Any], file: str = "params.yaml") -> str:
    """The line of a name that is none of those known."""
    return f"{file}: {key}: found {name!r}, {accepted(name, names)}"


def at_most(key: str, value: int | str, most: int, why: str) -> list[str]:
    """The line of a number, or of a text that spells one, that is too large; none if it is not."""
    return [mistake(key, value, f"at most {most} ({why})")] if float(value) > most else []


def describe_errors(
    error: "ValidationError",
    section: "type[BaseModel]",
    prefix: str = "",
    file: str = "params.yaml",
) -> str:
    """The errors of a validation, a line each."""
    lines = [describe_error(details, section, prefix, file) for details in error.errors()]
    return "\n".join(dict.fromkeys(lines))


def describe_error(
    details: Mapping[str, Any],
    section: "type[BaseModel]",
    prefix: str = "",
    file: str = "params.yaml",
) -> str:
    """One of a validation's errors: key, value, what is accepted, the nearest known name."""
    path = details["loc"]
    key = ".".join(plain(str(part)) for part in (prefix, *path) if part != "")
    value = details["input"]
    context = details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            known = accepted(path[-1], _keys_at(section, path[:-1]))
            return f"{file}: {key}: unknown key (value {value!r}), {known}"
        case "missing":
            return f"{file}: {key}: missing, accepted: a value for this key"
        case "refused":
            inner = f"{key}.{context['key']}" if key else context["key"]
            return mistake(inner, context["value"], context["accepted"], file)
        case "literal_error":
            names = re.split(r",| or ", context["expected"])
            return unknown_name(key, value, [name.strip(" '") for name in names], file)
    framing = "^(Value error,|Input should be|String should|List should) |, unable to parse.*"
    message = re.sub(framing, "", details["msg"])
    message = message.replace("a valid int", "an int").replace("valid ", "")
    message = re.sub("dictionary( or instance of .*)?$", "mapping", message)  # as YAML calls it
    return mistake(key, value, message, file)


def _keys_at(section: "type[BaseModel]", path: tuple[str | int, ...]) -> list[str]:
    """The keys accepted where an unknown one was found."""
    from pydantic import BaseModel

    annotation: Any = section
    for part in path:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            annotation = annotation.model_fields[str(part)].annotation
        else:  # dict[str, X] or list[X]
            annotation = annotation.__args__[-1]
        if getattr(annotation, "__origin__", None) not in (dict, list):  # X | None
            for option in getattr(annotation, "__args__", ()):
                if isinstance(option, type) and issubclass(option, BaseModel):
                    annotation = option
                    break
    return list(annotation.model_fields)
