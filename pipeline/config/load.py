"""Read params.yaml: strict YAML, typed sections, cross-checks."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from yaml.composer import Composer, ComposerError

from pipeline.config.checks import check
from pipeline.config.paper import Paper
from pipeline.config.params import Params, whole
from pipeline.errors import UserError, one_line

ALIASES = 30  # of a parameter file


class UniqueKeys(Composer, yaml.CSafeLoader):
    """Refuses a key that stands twice in a mapping, of which YAML would take the last without a word. libyaml does the parsing."""

    aliases = 0

    def __init__(self, stream: Any) -> None:
        yaml.CSafeLoader.__init__(self, stream)
        Composer.__init__(self)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Raises yaml.composer.ComposerError for more aliases than a file needs: of aliases of aliases a page fills any memory."""
        if self.check_event(yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > ALIASES:
                event: Any = self.get_event()
                raise ComposerError(
                    problem=f"more than {ALIASES} aliases", problem_mark=event.start_mark
                )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Raises yaml.constructor.ConstructorError for the first such key."""
        keys = [key.value for key, _ in node.value]
        for i, (key, _) in enumerate(node.value):
            if key.value in keys[:i]:
                raise yaml.constructor.ConstructorError(
                    problem=f"key {key.value!r} stands twice", problem_mark=key.start_mark
                )
        return super().construct_mapping(node, deep)


def load(path: str | Path = "params.yaml", *, papers: tuple[Paper, ...]) -> Params:
    """Read, validate and cross-check a parameter file.

    Raises:
        UserError: a line a mistake, naming the file, the key, the value found, what is accepted and the nearest known name.
    """
    params = parse(path, papers=papers)
    check(params, Path(path).name)
    return params


def parse(path: str | Path, *, papers: tuple[Paper, ...]) -> Params:
    """Read a parameter file, each value checked by itself. Raises UserError as :func:`load` does."""
    path = Path(path)
    try:
        with path.open() as file:
            content = UniqueKeys(file).get_single_data()
    except FileNotFoundError:
        raise UserError(f"{path}: not found; run in the repository's root") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: cannot be read ({type(error).__name__}), accepted: a file of YAML"
        ) from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: found {type(content).__name__}, accepted: a mapping of sections")
    try:
        params = whole(papers).model_validate(content)
    except ValidationError as error:
        raise UserError(one_line(error, whole(papers), file=path.name)) from None
    params._papers = papers
    return params
