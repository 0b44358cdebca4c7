"""Read params.yaml: strict YAML, typed sections, cross-checks."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pipeline.config.checks import check
from pipeline.config.paper import Paper
from pipeline.config.params import Params, whole
from pipeline.errors import UserError, describe_errors


class UniqueKeys(yaml.CSafeLoader):
    """Refuses a key that stands twice in a mapping: YAML would take the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Raises yaml.constructor.ConstructorError for the first such key."""
        keys = set[Any]()
        for key, _ in node.value:
            if key.value in keys:
                raise yaml.constructor.ConstructorError(
                    problem=f"key {key.value!r} stands twice", problem_mark=key.start_mark
                )
            keys.add(key.value)
        return super().construct_mapping(node, deep)


def load(path: str | Path = "params.yaml", *, papers: tuple[Paper, ...]) -> Params:
    """Read, validate and cross-check a parameter file.

    Raises:
        UserError: a line a mistake, naming the file, the key, the value found, what is accepted and
            the nearest known name.
    """
    params = parse(path, papers=papers)
    check(params)
    return params


def parse(path: str | Path, *, papers: tuple[Paper, ...]) -> Params:
    """Read a parameter file, each value checked by itself. Raises UserError as :func:`load`
    does."""
    path = Path(path)
    try:
        with path.open() as file:
            content = yaml.load(file, UniqueKeys)  # noqa: S506 (a safe loader)
    except FileNotFoundError:
        raise UserError(f"{path}: not found; run in the repository's root") from None
    except (OSError, ValueError, RecursionError) as error:
        kind = type(error).__name__
        raise UserError(f"{path}: cannot be read ({kind}), accepted: a file of YAML") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: found {type(content).__name__}, accepted: a mapping of sections")
    try:
        return whole(papers).model_validate(content).with_papers(papers)
    except ValidationError as error:
        raise UserError(describe_errors(error, whole(papers))) from None
