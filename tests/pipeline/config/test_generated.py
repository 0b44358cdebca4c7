"""params.yaml with values that nobody thought of: a file is refused, a line a mistake, or its whole
plan can be made.

`EXAMPLES=1000 uv run pytest tests/pipeline/config/test_generated.py` tries more of them, for a
quarter of an hour.
"""

import copy
import os
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from papers import PAPERS
from pipeline.config.effective import stage_params
from pipeline.config.load import load
from pipeline.errors import UserError, raise_all
from stages.check_params import build, check_machine
from tests.conftest import ROOT, cases_of
from tests.pipeline.jobs.listing import leave, listed

CASES = cases_of(__file__)
Place = tuple[Any, ...]
CONTENT = yaml.safe_load((ROOT / "params.yaml").read_text())


def places(node: Any, path: Place = ()) -> Iterator[Place]:
    """Of every value, mappings and lists among them."""
    for key, value in (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    ):
        yield (*path, key)
        yield from places(value, (*path, key))


def at(content: Any, place: Place) -> Any:
    for key in place:
        content = content[key]
    return content


PLACES = list(places(CONTENT))
CELL = {"vit_micro", "fashion_mnist_10k", "minutes"}
OWN = [p for p in PLACES if p[0] not in ("models", "datasets", "scales") or {*p[1:2]} & CELL]
KEYS = sorted({str(key) for place in PLACES for key in place})
WORDS = sorted(
    {value for place in PLACES if isinstance(value := at(CONTENT, place), str)} | set(KEYS)
)
NAMES = CASES["names"]


def numbers(value: float) -> list[Any]:
    near = [value + 1, value - 1, 2 * value, -value, value / 10, 1000 * value, value + 0.5]
    return [*near, *CASES["numbers"], str(value), True, None, [value], "auto"]


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """A value like this one, valid or nearly so, or one of another kind."""
    if isinstance(value, bool):
        return draw(st.sampled_from([not value, 1, "yes", None]))
    if isinstance(value, int | float):
        return draw(st.sampled_from(numbers(value)))
    if isinstance(value, str):
        words = st.sampled_from(WORDS) | st.sampled_from(NAMES)
        return draw(
            words
            | st.sampled_from(
                [
                    value[:-1],
                    f"{value}x",
                    value.upper(),
                    None,
                    3,
                    [value],
                    {"drop": 0.3},
                    {"fix_first": 1},
                ]
            )
        )
    if isinstance(value, list):
        return draw(
            st.sampled_from(
                [
                    [],
                    value + value[:1],
                    value[1:],
                    value[::-1],
                    None,
                    1,
                    [value],
                    {},
                    [*value, "x"],
                    [*value, None],
                    "all",
                ]
            )
        )
    if isinstance(value, dict) and value:
        found, key = copy.deepcopy(value), draw(st.sampled_from(list(value)))
        match draw(st.sampled_from(["without", "more", "renamed", "other", "kind"])):
            case "without":
                del found[key]
            case "more":
                found[draw(st.sampled_from(KEYS + NAMES))] = draw(
                    st.sampled_from([1, "x", None, {}])
                )
            case "renamed":
                found[draw(st.sampled_from([*NAMES, str(key)[:-1], 1]))] = found.pop(key)
            case "other":
                found[key] = copy.deepcopy(at(CONTENT, draw(st.sampled_from(PLACES))))
            case "kind":
                return draw(st.sampled_from([None, [], {}, 3, "x"]))
        return found
    return draw(st.sampled_from([0, 1, 0.5, "x", "auto", [], {}]))


@st.composite
def contents(draw: st.DrawFn) -> dict[str, Any]:
    """params.yaml with one to three values changed, mostly such as the chosen cell uses."""
    content = copy.deepcopy(CONTENT)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(OWN) | st.sampled_from(PLACES))
        try:
            parent = at(content, place[:-1])
            parent[place[-1]] = draw(changed(at(parent, place[-1:])))
        except (LookupError, TypeError):  # an earlier change has taken its place
            continue
    return content


@pytest.mark.slow
@settings(
    max_examples=int(os.environ.get("EXAMPLES", "40")),
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
@given(contents())
def test_a_file_is_refused_in_clear_lines_or_has_a_plan(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("generated")
    (folder / "params.yaml").write_text(
        yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DVC_ROOT", str(folder))
        try:
            params = load(papers=PAPERS)
            raise_all(check_machine(params))
            build(params)
        except UserError as error:
            lines = str(error).splitlines()
            assert lines
            assert all(line.startswith("params.yaml: ") and line.isprintable() for line in lines), (
                lines
            )
            return
        assert stage_params(params)
        if params.sizes:
            leave(params, folder)
            assert listed(params)["finetune"]
