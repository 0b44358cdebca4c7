"""Read params.yaml: strict YAML, typed sections, cross-checks."""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pipeline.config.checks import check
from pipeline.config.paper import Paper
from pipeline.config.params import Params, whole
from pipeline.config.presets import ModelPreset
from pipeline.errors import UserError, describe_errors
from pipeline.files import read_json, reading

# Name, scale and preset of the chosen model, as stage check-params resolved them.
CHECKED = Path("outs/params/model.json")


class StrictLoader(yaml.CSafeLoader):
    """Refuses what YAML 1.1 would take without a word: the last of equal keys, 010 as 8."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Raises yaml.constructor.ConstructorError for the first key that stands twice."""
        keys: list[Any] = []  # that of a list or a mapping has no hash
        for key, _ in node.value:
            if key.value in keys:
                raise yaml.constructor.ConstructorError(
                    problem=f"key {key.value!r} stands twice", problem_mark=key.start_mark
                )
            keys.append(key.value)
        return super().construct_mapping(node, deep)

    def read_int(self, node: yaml.ScalarNode) -> int:
        """Raises yaml.constructor.ConstructorError for 010, which is 10 to DVC, and for 1:30."""
        if re.match(r"[-+]?0[0-9_]|.*:", node.value):
            raise yaml.constructor.ConstructorError(
                problem=f"found the number {node.value}, accepted: one without leading 0 or :",
                problem_mark=node.start_mark,
            )
        return self.construct_yaml_int(node)


StrictLoader.add_constructor("tag:yaml.org,2002:int", StrictLoader.read_int)


def load(path: str | Path = "params.yaml", *, papers: tuple[Paper, ...]) -> Params:
    """Read, validate and cross-check a parameter file.

    Raises:
        UserError: a line a mistake, naming the file, the key, the value found, what is accepted and
            the nearest known name.
    """
    params = parse(path, papers=papers)
    check(params)
    return params


def load_checked(*, papers: tuple[Paper, ...]) -> Params:
    """Read params.yaml as :func:`load` does, with what check-params read beside local weights.

    Raises:
        UserError: as :func:`load` does, or check-params has not run for this model.
    """
    params = load(papers=papers)
    own = params.model_preset
    if own.local_file() is None:
        return params
    name, scale, values = read_json(CHECKED, list)
    checked = ModelPreset.model_validate(values)
    if (name, scale, checked.weights) != (params.model, params.cell.scale, own.weights):
        raise UserError(f"{CHECKED}: of another model; `dvc repro check-params` makes it again")
    known = {"kwargs": checked.kwargs, "pixels": checked.pixels}
    return params.with_model(own.model_copy(update=known))


def parse(path: str | Path, *, papers: tuple[Paper, ...]) -> Params:
    """Read a parameter file, each value checked by itself. Raises UserError as :func:`load`
    does."""
    path = Path(path)
    try:
        with path.open(encoding="utf-8") as file:
            content = yaml.load(file, StrictLoader)  # noqa: S506 (a safe loader)
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
        return whole(papers).model_validate(content)
    except ValidationError as error:
        raise UserError(describe_errors(error, whole(papers))) from None


def overridden(overrides: Sequence[str], papers: tuple[Paper, ...]) -> Params:
    """Load params.yaml with changes written as `dvc exp run -S` takes them. Raises UserError."""
    file = Path("params.yaml")
    if not overrides:
        return load(file, papers=papers)
    from dvc.exceptions import DvcException
    from dvc.utils.hydra import apply_overrides

    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / file.name
        with reading(file, "run in the repository's root"):
            changed.write_text(file.read_text("utf-8"), "utf-8")
        try:
            apply_overrides(str(changed), list(overrides))
        except DvcException as error:
            why = " ".join(str(error.__cause__ or error).split())
            text = f"found {', '.join(overrides)}, accepted: KEY=VALUE of params.yaml ({why})"
            raise UserError(f"-S: {text}") from None
        return load(changed, papers=papers)
