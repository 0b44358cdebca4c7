"""Write the pages that show results, and judge the committed cells anew.

Run `uv run python docs/fill.py` after results, rules or templates have changed. Tests hold it.

A page `NAME.md` with results is made whole from `docs/templates/NAME.md.j2`, in Jinja's language.
`{{ number('FILE column=value ... EXPRESSION FORMAT') }}` is a number, see
:func:`pipeline.report.numbers.number`. The other functions are those of :mod:`docs.tables` and
:mod:`docs.reference`.
"""

import shlex
import sys
from functools import partial
from pathlib import Path

from jinja2 import Environment, StrictUndefined

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # as a script it has its own folder alone

from docs import reference, tables  # noqa: E402
from papers import PAPERS  # noqa: E402
from pipeline.files import write_json  # noqa: E402
from pipeline.report.evidence import Evidence  # noqa: E402
from pipeline.report.ledger import judge, markdown  # noqa: E402
from pipeline.report.numbers import Read, number  # noqa: E402
from pipeline.report.why import TEMPLATES  # noqa: E402

PAGES = ("README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))
SCHEMA, PLOTS = "docs/params.schema.json", ".dvc/plots.html"
FUNCTIONS = (
    tables.table,
    tables.claims,
    tables.moved_verdicts,
    tables.result,
    tables.both_orders,
    tables.gap,
    tables.last_layer,
    tables.counts,
    tables.served,
    tables.simulated,
    tables.swarm,
    tables.latin,
    reference.parameters,
    reference.benchmark,
)


def template_of(page: str) -> str:
    """Where a page's template is, if it has one."""
    return f"{TEMPLATES}/{page}.j2"


def filled(template: str, read: Read) -> str:
    """The page that a template makes.

    Args:
        template: its text.
        read: reads a file of the repository.
    """
    environment = Environment(  # noqa: S701 (Markdown, nothing to escape)
        undefined=StrictUndefined, keep_trailing_newline=True
    )
    functions = {function.__name__: partial(function, read) for function in FUNCTIONS}
    return environment.from_string(template).render(
        functions, number=lambda words: number(shlex.split(words), read, PAPERS)
    )


def judge_cells() -> None:
    """Judge the committed cells anew, by today's rules."""
    for cell in (ROOT / "results" / "cells").iterdir():
        evidence = Evidence(cell, PAPERS)
        ledger = judge(evidence)
        write_json(cell / "claims.json", ledger)
        (cell / "claims.md").write_text(markdown(ledger, evidence.label), "utf-8")


if __name__ == "__main__":
    judge_cells()
    for name in PAGES:
        page, template = ROOT / name, ROOT / template_of(name)
        if template.exists():
            text = filled(
                template.read_text("utf-8"), lambda file: (ROOT / file).read_text("utf-8")
            )
            if text != page.read_text("utf-8"):
                page.write_text(text, "utf-8")
                print(f"{name}: written")
    (ROOT / SCHEMA).write_text(reference.schema(), "utf-8")
    (ROOT / PLOTS).write_text(reference.plots_page((ROOT / PLOTS).read_text("utf-8")), "utf-8")
