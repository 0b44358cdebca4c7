"""Fill what README and pages take from results/: `uv run python docs/fill.py` after results have changed; tests hold it.

`<!-- table1: ... -->` begins a block, see below; `<!--= file column=value ... expression format -->` a number, see
:func:`lsvit.report.why.number`.
"""

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # as a script it has its own folder alone

from docs.reference import parameters, schema, speed  # noqa: E402
from lsvit.report.why import Read, number  # noqa: E402

PAGES = ("README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))
SCHEMA = "docs/params.schema.json"
TABLES = {  # block -> file
    "table1": "results/table1.md",
    "smoothing": "results/smoothing_table1.md",
    "pretrained": "results/cells/fashion_mnist_4k_vit_s14_56_few_epochs/table1.md",
}
BLOCK = re.compile(r"(<!-- (\w+):.*?-->)\n(.*?)(<!-- /\2 -->)", re.S)
NUMBER = re.compile(r"<!--= (.*?) -->.*?<!--/-->", re.S)


def claims(old: list[str], read: Read) -> str:
    """The lines of a block as the ledger now has them; those of claims that are gone fall out."""
    ledger = read("results/claims.md").splitlines()
    rows = {line.split("|")[1].strip(): line for line in ledger if line.startswith("| ")}
    head = next(line for line in ledger if line.startswith("Data set"))
    kept = [
        head if line.startswith("Data set") else rows.get(line.split("|")[1].strip()) if line.startswith("| ") else line for line in old
    ]
    return "\n".join(line for line in kept if line is not None)


def result(old: list[str], read: Read) -> str:
    """The rows of baseline and LS from Table 1: ours, then ViT-B/16's on ImageNet, in both orders."""
    table = [line for line in read("results/table1.md").splitlines() if line.startswith("|")]
    names, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    ours = next(row[1:3] for row in rows if row[0] == "ours")
    cells = (["ours", *ours], ["published", "ImageNet", "ViT-B/16"])
    chosen = [row for cell in cells for order in ("sequential", "arbitrary") for row in rows if row[:4] == [*cell, order]]
    return "\n".join([*old[:2], *(f"| {v} | {' | '.join(row[names.index(v)] for row in chosen)} |" for v in ("baseline", "LS"))])


MADE: dict[str, Callable[[list[str], Read], str]] = {
    "claims": claims,
    "result": result,
    "parameters": lambda old, read: parameters(read),
    "speed": lambda old, read: speed(read),
}


def filled(text: str, read: Read) -> str:
    """A page with its blocks and its counts made anew."""

    def block(found: re.Match[str]) -> str:
        start, name, body, end = found.groups()
        new = read(TABLES[name]).strip() if name in TABLES else MADE[name](body.splitlines(), read)
        return f"{start}\n{new}\n{end}"

    counts = re.search(r"\d+ claims: .*?hold and \d+ do not\.", read("results/claims.md"))
    text = NUMBER.sub(lambda found: f"<!--= {found[1]} -->{number(shlex.split(found[1]), read)}<!--/-->", BLOCK.sub(block, text))
    return re.sub(r"^> \d+ claims: .*$", f"> {counts[0]}", text, flags=re.M) if counts else text


if __name__ == "__main__":
    for name in PAGES:
        page = ROOT / name
        if (new := filled(page.read_text(), lambda file: (ROOT / file).read_text())) != page.read_text():
            page.write_text(new)
            print(f"{name}: filled")
    (ROOT / SCHEMA).write_text(schema())
