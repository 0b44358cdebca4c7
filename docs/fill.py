"""Fill what README and pages take from results/: `uv run python docs/fill.py` after results have changed; tests hold it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLES = {  # block -> file of results/
    "table1": "table1.md",
    "smoothing": "smoothing_table1.md",
}


def lines_of_claims(block: str, ledger: list[str]) -> str:
    """The lines of a block as the ledger now has them; those of claims that are gone fall out."""
    rows = {line.split("|")[1].strip(): line for line in ledger if line.startswith("| ")}
    head = next(line for line in ledger if line.startswith("Data set"))
    kept = [
        head if line.startswith("Data set") else rows.get(line.split("|")[1].strip()) if line.startswith("| ") else line for line in block
    ]
    return "\n".join(line for line in kept if line is not None)


def result(block: list[str], table: list[str]) -> str:
    """The rows of baseline and LS from Table 1: ours, then ViT-B/16's on ImageNet, in both orders."""
    names, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table if line.startswith("|")]
    ours = next(row[1:3] for row in rows if row[0] == "ours")
    cells = (["ours", *ours], ["published", "ImageNet", "ViT-B/16"])
    chosen = [row for cell in cells for order in ("sequential", "arbitrary") for row in rows if row[:4] == [*cell, order]]
    return "\n".join([*block[:2], *(f"| {v} | {' | '.join(row[names.index(v)] for row in chosen)} |" for v in ("baseline", "LS"))])


def filled(text: str) -> str:
    """A page with its blocks and its counts made anew."""
    results = ROOT / "results"
    ledger = (results / "claims.md").read_text().splitlines()

    def block(found: re.Match[str]) -> str:
        start, name, body, end = found.groups()
        old = body.strip("\n").splitlines()
        if name in TABLES:
            new = (results / TABLES[name]).read_text().strip()
        else:
            new = lines_of_claims(old, ledger) if name == "claims" else result(old, (results / "table1.md").read_text().splitlines())
        return f"{start}\n{new}\n{end}"

    text = re.sub(r"(<!-- (table1|smoothing|claims|result):.*?-->)\n(.*?)(<!-- /\2 -->)", block, text, flags=re.S)
    counts = re.search(r"\d+ claims: .*?hold and \d+ do not\.", "\n".join(ledger))
    return re.sub(r"^> \d+ claims: .*$", f"> {counts[0]}", text, flags=re.M) if counts else text


if __name__ == "__main__":
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        if (new := filled(page.read_text())) != page.read_text():
            page.write_text(new)
            print(f"{page.relative_to(ROOT)}: filled")
