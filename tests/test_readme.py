"""The README and the pages of docs/ say what the repository holds."""

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from conftest import check_words
from docs.fill import PAGES, SCHEMA, filled, template_of
from docs.reference import schema
from pipeline.files import read_json
from tests.conftest import ROOT, cases_of

CASES = cases_of(__file__)


def committed(path: str) -> str:
    """The committed file: a user's own run may have changed results/ in the working tree."""
    return subprocess.check_output(["git", "show", f"HEAD:{path}"], cwd=ROOT, text=True)


def section(heading: str) -> str:
    """A heading's anchor, as forges make them."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


MADE = [page for page in PAGES if (ROOT / template_of(page)).is_file()]


@pytest.mark.parametrize("page", MADE)
def test_pages_are_what_their_templates_make_of_committed_results(page: str) -> None:
    """A page that differs was edited itself, or `docs/fill.py` has not run since."""
    assert filled(committed(template_of(page)), committed) == committed(page)


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_text_to_read(page: str) -> None:
    """Neither comments nor expressions stand in them; every template is that of a page."""
    text = committed(page)
    assert "<!--" not in text
    assert "{{ " not in text
    assert {template_of(name) for name in PAGES} >= {
        str(path.relative_to(ROOT)) for path in (ROOT / "docs/templates").rglob("*.j2")
    }


@pytest.mark.parametrize(("page", "call", "least"), CASES["taken"])
def test_what_pages_take_from_results_is_there(page: str, call: str, least: int) -> None:
    """Each table with so many lines at least, the README's with one number a cell."""
    expressions = re.findall(rf"{{{{ {call}\(.*?\) }}}}", committed(template_of(page)), re.S)
    assert expressions
    for expression in expressions:
        lines = filled(expression, committed).splitlines()
        assert len(lines) >= least
        if call == "result":
            row = re.compile(r"\| [^|]+ \| \d+ \| \d* \|")
            assert all(map(row.fullmatch, lines[2:]))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in ("docs/parameters.md", "docs/speed.md")]
)
def test_no_number_is_retyped(page: str) -> None:
    """Decimals in prose come from files, by expressions of the template. Code apart."""
    text = committed(template_of(page) if page in MADE else page)
    text = re.sub(r"{{.*?}}|```.*?```|`[^`]*`|\(http[^)]*\)|arXiv:[\d.]+", "", text, flags=re.S)
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    decimals = set(re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", prose))
    assert decimals <= set(CASES["not_ours"].get(page, "").split())


def test_the_schema_is_that_of_the_parameters() -> None:
    """The file that params.yaml names to editors.

    They find nothing wrong in what is accepted, and what is wrong.
    """
    found = read_json(ROOT / SCHEMA)
    assert found == json.loads(schema())
    first, *_ = (ROOT / "params.yaml").read_text().splitlines()
    assert first.endswith(f"$schema={SCHEMA}")
    given = yaml.safe_load((ROOT / "params.yaml").read_text())
    jsonschema.validate(given, found)
    recipe = found["$defs"]["Recipe"]["properties"]
    assert (recipe["crop"]["maximum"], recipe["randaugment"]["maximum"]) == (1, 10)
    # A bound behind a validator would stand under its name in Python, which no editor knows.
    assert not re.search(r'"[lg][te]": ', json.dumps(found))
    changes: list[dict[str, Any]] = [
        {"device": "gpu"},
        {"seeds": []},
        {"finetune": given["finetune"] | {"lr": 0}},
        {"finetun": {}},
    ]
    for wrong in changes:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(given | wrong, found)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "said"), CASES["commands"])
def test_commands_of_pages_could_be_wrong(command: str, said: str) -> None:
    """The check of /conftest.py, by which sybil looks at those that take longer than seconds."""
    with pytest.raises(Exception, match=said):
        check_words(*command.split())


@pytest.mark.parametrize("page", PAGES)
def test_files_and_sections_named_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    for path, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), path
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.M)
            assert anchor in map(section, headings), f"{path}#{anchor}"


def test_the_readme_is_short_and_shows_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    for command in ("uv run dvc repro --pull", "uv run pytest"):
        assert any(line.strip().startswith(command) for line in lines), command


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    for page in {page for page in PAGES if page.startswith("docs/")} - {"docs/README.md"}:
        assert f"]({Path(page).name})" in index, page


def test_columns_of_results_are_explained() -> None:
    """Those that no reader could guess."""
    known = {"dataset", "model", "variant", "seed", "seeds", "class", "interval", "source", "count"}
    explained = set(re.findall(r"`(\w+)`", (ROOT / "results/README.md").read_text()))
    for table in (ROOT / "results").glob("*.csv"):
        header, *_ = table.read_text("utf-8").splitlines()
        for column in header.split(","):
            name = column if column in explained else column.removesuffix("_std")
            guessed = name in known or "/" in name or name.endswith("_ratio")
            assert guessed or name in explained, (table.name, column)


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cited["version"] == project["version"]
