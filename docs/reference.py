"""The generated pages: every parameter, every measured speed, and what DVC's plots stand in.
:mod:`docs.fill` writes them."""

import json
import re
from typing import Any

import vl_convert
import yaml

from papers import PAPERS
from pipeline.config.params import whole
from pipeline.report.numbers import Read

BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
GIVEN = (
    "models",
    "datasets",
    "scales",
    "variants",
    "baseline",
)  # whose entries are shown as a kind, not as what params.yaml has


def schema() -> str:
    """The JSON schema of params.yaml, for editors."""
    return json.dumps(whole(PAPERS).model_json_schema()) + "\n"


def plots_page(page: str) -> str:
    """The HTML template of `dvc plots` with the installed Vega inside, as DVC's own template asks a
    network for it."""
    vega = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return re.sub(r"(?<=<script>).*(?=</script>)", lambda _: vega, page, flags=re.S)


def accepted(field: dict[str, Any], kinds: dict[str, Any]) -> str:
    """What a field of the schema takes, in words."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return (
            f"see `{name}`" if kinds[name].get("type") == "object" else accepted(kinds[name], kinds)
        )
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(accepted(each, kinds) for each in field["anyOf"]))
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        if "prefixItems" in field:
            return f"{len(field['prefixItems'])} values: {accepted(field['prefixItems'][0], kinds)}"
        return f"list: {accepted(field.get('items', {}), kinds)}"
    if field.get("type") == "object":
        values = field.get("additionalProperties")
        return (
            f"mapping to: {accepted(values, kinds)}"
            if isinstance(values, dict) and values
            else "mapping"
        )
    names = {
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "boolean": "`true`, `false`",
        "null": "`null`",
    }
    bounds = [f"{words} {field[key]:g}" for key, words in BOUNDS.items() if key in field]
    return " ".join([names.get(field.get("type", ""), "any value"), ", ".join(bounds)]).strip()


def _rows(
    kind: dict[str, Any],
    kinds: dict[str, Any],
    given: dict[str, Any] | None = None,
    prefix: str = "",
) -> list[dict[str, str]]:
    """A row a key of a schema: what it accepts, its default (or what is given), its description."""
    rows = []
    for key, field in kind["properties"].items():
        if given is not None:
            default = json.dumps(given.get(key, field.get("default", {})))
        elif key in kind.get("required", ()):
            default = "required"
        else:
            default = json.dumps(field.get("default", {}))
        rows.append(
            {
                "key": f"`{prefix}{key}`",
                "accepted": accepted(field, kinds),
                "default": f"`{default}`" if len(default) < 90 else "long",
                "note": " ".join(field.get("description", "").split()),
            }
        )
    return rows


def parameters(read: Read, file: str) -> str:
    """Every key of params.yaml: what it accepts, and what it is without a scale or preset."""
    whole_schema = whole(PAPERS).model_json_schema()
    kinds = whole_schema["$defs"]
    given = yaml.safe_load(read(file))
    plain = {}
    sections = {}
    for key, field in whole_schema["properties"].items():
        if key in GIVEN:
            continue
        if "$ref" in field:
            sections[key] = field["$ref"].rpartition("/")[2]
        else:
            plain[key] = field
    pages = ["## At the top", _table(_rows({"properties": plain}, kinds, given))]
    for key, name in sections.items():
        rows = _rows(kinds[name], kinds, given[key], f"{key}.")
        pages += [f"## `{key}`", _about(kinds[name]), _table(rows)]
    for name, kind in kinds.items():
        if name not in sections.values() and kind.get("type") == "object":
            pages += [f"## `{name}`", _about(kind), _table(_rows(kind, kinds))]
    return "\n\n".join(page for page in pages if page)


def _about(kind: dict[str, Any]) -> str:
    """What a class says of itself: its first paragraphs, without references to code."""
    return kind.get("description", "").partition("see :")[0].rstrip(", ")


def _parts(document: Any) -> list[dict[str, Any]]:
    """A benchmark's content, by machine where it has several, each with its name if it has one."""
    if isinstance(document, list):
        return document
    if all(isinstance(value, dict) for value in document.values()):
        return [{"name": name} | value for name, value in document.items()]
    return [document]


def benchmark(read: Read, file: str) -> str:
    """What a file of benchmarks/ says: the machine, single numbers, a table a list of records."""
    paragraphs: list[str] = []
    for part in _parts(json.loads(read(file))):
        paragraphs += _measured(part)
    return "\n\n".join(paragraphs)


def _measured(found: dict[str, Any]) -> list[str]:
    """One machine's part: single values, mappings, and a table a list of records."""
    numbers = {key: value for key, value in found.items() if not isinstance(value, list | dict)}
    lines = [_listed(numbers)] if numbers else []
    for key, value in found.items():
        if isinstance(value, dict):
            lines.append(f"{key.replace('_', ' ')}: {_listed(value)}")
    for key, rows in found.items():
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            lines.append(f"**{key.replace('_', ' ')}**")
            lines += _records(rows)
    return lines


def _records(rows: list[dict[str, Any]]) -> list[str]:
    """A table of records. What all of them share stands in a line above it."""
    names = [name for name in rows[0] if any(row.get(name) is not None for row in rows)]
    shared = {}
    for name in names[1:]:
        if len(rows) > 2 and all(row.get(name) == rows[0][name] for row in rows):
            shared[name] = rows[0][name]
    columns = [name for name in names if name not in shared]
    table = _table(
        [{name.replace("_", " "): _text(row.get(name)) for name in columns} for row in rows]
    )
    return [f"All rows: {_listed(shared)}", table] if shared else [table]


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {_text(value)}" for key, value in values.items())


def _text(value: Any) -> str:
    """A value as pages show it: thousands have commas and no decimals."""
    if value is None:
        return "–"
    if isinstance(value, list):
        return " to ".join(map(_text, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _table(rows: list[dict[str, str]]) -> str:
    """A Markdown table whose columns are as wide as they come: padded ones would be twice the
    file."""
    lines = [
        list(rows[0]),
        ["---"] * len(rows[0]),
        *([text.replace("|", "\\|") for text in row.values()] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
