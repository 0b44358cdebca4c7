"""The report: one page with every result, its way back, and nothing from a network."""

import base64
import re
import shlex
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import vl_convert
from jinja2 import Environment, FileSystemLoader
from jinja2.utils import htmlsafe_json_dumps
from markdown_it import MarkdownIt
from markupsafe import Markup, escape
from PIL import Image

from pipeline.config.params import Params
from pipeline.declared import checksums, declared_stages, stage_results
from pipeline.jobs.files import RESULTS
from pipeline.report.charts import GRID, Chart, Charts, Grid, Picture
from pipeline.report.evaluations import label
from pipeline.report.ledger import VERDICTS, Claim
from pipeline.report.results import Results
from pipeline.report.trainings import LAST, curves, options, trainings
from pipeline.report.why import number, rows_of

CHECKLISTS = Path("docs/checklists.md")
DOTS = 220, 34  # width and height of a claim's picture


class Paper(NamedTuple):
    """A paper's page."""

    name: str
    title: str
    shown: Charts
    claims: list[tuple[Claim, dict[str, Any]]]

    @property
    def counts(self) -> dict[str, int]:
        """Claims by verdict."""
        found = [entry["verdict"] for _, entry in self.claims]
        return {verdict: found.count(verdict) for verdict in VERDICTS}


class Report:
    """Makes the page from a folder of results: the same bytes for the same files, no time and no commit in them."""

    def __init__(self, results: Results, params: Params | None = None) -> None:
        """`params`: with which the trainings were made, if they are known."""
        self.results, self.params = results, params
        self.texts: dict[str, str] = {}
        self.ledger = results.read("claims")

    def html(self) -> str:
        """The page."""
        here = Path(__file__).parent
        environment = Environment(
            loader=FileSystemLoader(here), autoescape=True, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters |= {"label": label}
        papers, trained = self.papers(), trainings(self.results)
        claims = [
            (paper, *each)
            for verdict in VERDICTS
            for paper in papers
            for each in paper.claims
            if each[1]["verdict"] == verdict
        ]
        return environment.get_template("report.html.j2").render(
            cell=self.results.cell,
            ledger=self.ledger,
            papers=papers,
            claims=claims,
            verdicts=VERDICTS,
            stages=self.stages(),
            data=self.data,
            table=self.table,
            spec=spec,
            pictures=self.pictures,
            dots=dots,
            checklists=checklists(),
            trainings=trained,
            curves=curves(trained),
            options=options(self.params, self.results.cell, [each.name for each in trained]),
            last_epoch=LAST,
            script=Markup(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")),  # noqa: S704 (a package's own)
        )

    def papers(self) -> list[Paper]:
        """The papers with rows in the folder."""
        entries = {entry["id"]: entry for entry in self.ledger["claims"]}
        shown = {
            paper_of(module): module.charts(self.results)
            for module in self.results.readers("charts")
        }
        return [
            Paper(
                name,
                module.TITLE,
                shown.get(name, Charts()),
                [(claim, entries[claim.id]) for claim in module.CLAIMS],
            )
            for module in self.results.readers("claims")
            if (name := paper_of(module))
        ]

    def data(self, file: str, *words: str) -> Markup:
        """A number that says where it comes from, see :func:`pipeline.report.why.number`."""
        text = number((file, *words), self._read, self.results.papers)
        return Markup(
            '<data value="{}" data-from="{}" tabindex="0" role="button">{}</data>'
        ).format(text, shlex.join((file, *words)), text)

    def _read(self, file: str) -> str:
        if file not in self.texts:
            self.texts[file] = (self.results.folder / Path(file).relative_to(RESULTS)).read_text()
        return self.texts[file]

    def table(self, grid: Grid) -> dict[str, Any]:
        """The cells of a table: rows and columns in the file's order."""
        rows = rows_of(f"results/{grid.file}", grid.where, self._read, self.results.papers)
        rows = rows[rows[grid.rows].isin(grid.only)] if grid.only else rows
        names, columns = (
            list(dict.fromkeys(rows[key].astype(str))) for key in (grid.rows, grid.columns)
        )
        there = set(zip(rows[grid.rows].astype(str), rows[grid.columns].astype(str), strict=True))

        def cell(row: str, column: str) -> Markup:
            where = (
                f"results/{grid.file}",
                *grid.where,
                f"{grid.rows}={row}",
                f"{grid.columns}={column}",
            )
            mean, std = (
                self.data(*where, f"{grid.factor}*{what}", ".2f") for what in ("mean", "std")
            )
            return mean if ">nan<" in std else Markup("{} ± {}").format(mean, std)

        cells = [
            [cell(row, column) if (row, column) in there else "–" for column in columns]
            for row in names
        ]
        return {"columns": columns, "rows": list(zip(map(grid.called, names), cells, strict=True))}

    def pictures(self, shown: Sequence[Picture]) -> list[dict[str, Any]]:
        """The figures that were drawn: title, name, caption, data address, and where a page of pictures has them (None: it is none)."""
        found = []
        for title, name, caption in shown:
            if (file := self.results.folder / "figures" / f"{name}.png").is_file():
                with Image.open(file) as image:
                    grid = image.info.get(GRID)
                source = f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
                found.append(
                    {
                        "title": title,
                        "name": name,
                        "caption": self.captions[caption],
                        "source": source,
                        "grid": grid,
                    }
                )
        return found

    @cached_property
    def captions(self) -> dict[str, str]:
        """The captions by their titles."""
        text = (self.results.folder / "figures" / "captions.md").read_text()
        return dict(re.findall(r"^\*\*(.+?)\.\*\* (.+)$", text, re.M))

    def stages(self) -> list[dict[str, Any]]:
        """Every stage with what it is, its command, the files it left in results/, and the checksums of all that it left.

        The report's own are not known before it is written; those of outs/params/ change with values that no result depends on.
        """
        found = []
        for name, declared in declared_stages().items():
            written = stage_results(name)[0] if name != "report" else []
            sums = {
                path: md5
                for path, md5 in checksums(name).items()
                if name != "report" and path != "outs/params"
            }
            found.append(
                {
                    "name": name,
                    "desc": declared["desc"],
                    "cmd": declared["cmd"],
                    "files": written,
                    "sums": sums,
                }
            )
        return found


def paper_of(module: Any) -> str:
    """The paper that a room belongs to."""
    return module.__name__.split(".")[-2]


def spec(chart: Chart) -> Markup:
    """A chart's specification, safe inside a script element."""
    return htmlsafe_json_dumps(chart.spec, separators=(",", ":"), allow_nan=False)


def dots(claim: Claim, entry: dict[str, Any]) -> Markup:
    """A picture of what was measured: a dot a seed, the 95 % interval, the borders of the claim; nothing where there is no interval."""
    value = entry["measured"]
    if not value or value["low"] is None:
        return Markup("")
    borders = (
        [border for border in {*claim.holds, *(claim.plausible or ())} if np.isfinite(border)]
        if claim.centre is None
        else []
    )
    seeds = [each for each in value.get("values", ()) if each is not None]
    span = [*seeds, value["low"], value["high"], *borders]
    low, high = min(span), max(span)
    width, height = DOTS

    def x(number: float) -> str:
        return f"{8 + (width - 16) * (number - low) / ((high - low) or 1):.1f}"

    middle = height // 2 - 4
    parts = [
        f'<line x1="{x(b)}" x2="{x(b)}" y1="2" y2="{height - 12}" class="border"/>'
        f'<text x="{x(b)}" y="{height - 1}" text-anchor="middle">{b:g}</text>'
        for b in borders
    ]
    parts += [
        f'<line x1="{x(value["low"])}" x2="{x(value["high"])}" y1="{middle}" y2="{middle}" class="interval"/>'
    ]
    parts += [f'<circle cx="{x(each)}" cy="{middle}" r="3"/>' for each in seeds]
    about = escape(f"{value['n']} {value['over']}, interval {value['low']:g} to {value['high']:g}")
    return Markup(
        f'<svg class="dots" viewBox="0 0 {width} {height}" role="img" aria-label="{about}">{"".join(parts)}</svg>'
    )


def checklists() -> Markup:
    """The checklists of docs/, below a heading of the page, with links that hold from results/."""
    text = CHECKLISTS.read_text().removeprefix("# Checklists\n").replace("\n## ", "\n### ")
    text = re.sub(r"\]\((?!http|\.\./)", "](../docs/", text).replace("](../results/", "](")
    return Markup(MarkdownIt("commonmark").render(text))  # noqa: S704 (a page of this repository)
