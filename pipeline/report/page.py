"""The report: one page with every result, its way back, and nothing from a network."""

import base64
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import vl_convert
from jinja2 import Environment, FileSystemLoader
from jinja2.utils import htmlsafe_json_dumps
from markdown_it import MarkdownIt
from markupsafe import Markup
from PIL import Image

from pipeline.config.paper import Paper
from pipeline.config.params import Params
from pipeline.declared import checksums, declared_stages, stage_results
from pipeline.jobs.files import RESULTS
from pipeline.report.charts import GRID, Chart, Charts, Grid, Picture
from pipeline.report.claims import Claim, load_claims
from pipeline.report.ledger import ORDER, VERDICTS, by_id, count_verdicts, show_effect
from pipeline.report.numbers import number, rows_of
from pipeline.report.results import Results
from pipeline.report.trainings import LAST, curves, options, trainings

OWN = "own"
CHECKLISTS = Path("docs/checklists.md")
HERE = Path(__file__).parent
Judged = list[tuple[Claim, dict[str, Any]]]  # claims with their entries in the ledger


class Group(NamedTuple):
    """The claims of one paper, or all questions of our own."""

    name: str  # of the paper, or OWN
    title: str
    where: tuple[str, ...]  # conditions of its rows in the ledger
    claims: Judged

    def verdicts(self, key: str) -> dict[str, int]:
        """Claims by verdict, or by what is left of it ("corrected")."""
        return count_verdicts([entry for _, entry in self.claims], key)


class Report:
    """Makes the page from a folder of results: the same bytes for the same files.

    Args:
        results: the folder.
        params: today's, which may be of another cell.
    """

    def __init__(self, results: Results, params: Params) -> None:
        self.results = results
        self.params = params
        self.ledger = results.read("claims")

    def html(self) -> str:
        """The page."""
        loader = FileSystemLoader(HERE)
        environment = Environment(
            loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters["label"] = self.results.label
        groups = self.groups()
        claims = [(group, claim, entry) for group in groups for claim, entry in group.claims]
        claims.sort(key=lambda row: ORDER.index(row[2]["verdict"]))
        trained = trainings(self.results)
        variants = [training.name for training in trained]
        bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
        return environment.get_template("report.html.j2").render(
            cell=self.results.cell,
            ledger=self.ledger,
            papers=self.results.papers_here(),
            has_run=self.results.has_run,
            shown_of=self.shown_of,
            groups=groups,
            claims=claims,
            verdicts=VERDICTS,
            stages=self.stages(),
            data=self.data,
            table=self.table,
            spec=spec,
            pictures=self.pictures,
            dots=dots,
            effect=show_effect,
            checklists=checklists(),
            trainings=trained,
            curves=curves(trained, self.results.label),
            options=options(self.params, self.results, variants),
            last_epoch=LAST,
            script=Markup(bundle),  # noqa: S704 (a package's own)
            live=self.results.read("shuffle"),
            shuffle=Markup((HERE / "shuffle.js").read_text("utf-8")),  # noqa: S704 (our own)
        )

    def shown_of(self, paper: Paper) -> Charts:
        """A paper's tables, charts and pictures. One that has not run has none."""
        charts = paper.import_reader("charts")
        return charts.charts(self.results) if charts and self.results.has_run(paper) else Charts()

    def groups(self) -> list[Group]:
        """The papers' claims, a group a paper that has any, and the questions of our own."""
        entries = by_id(self.ledger)
        groups = []
        questions: Judged = []
        for paper in self.results.papers_here():
            published: Judged = []
            for claim in load_claims(paper).claims:
                group = questions if claim.own else published
                group.append((claim, entries[claim.id]))
            if published:
                where = (f"paper={paper.name}", "own=False")
                groups.append(Group(paper.name, paper.title, where, published))
        return [*groups, Group(OWN, "Questions of our own", ("own=True",), questions)]

    def data(self, file: str, *words: str) -> Markup:
        """A number that says where it comes from, see :func:`pipeline.report.numbers.number`."""
        text = number((file, *words), self._read, self.results.papers)
        element = '<data value="{}" data-from="{}" tabindex="0" role="button">{}</data>'
        return Markup(element).format(  # noqa: S704 (escapes what it is filled with)
            text, shlex.join((file, *words)), text
        )

    def _read(self, file: str) -> str:
        return (self.results.folder / Path(file).relative_to(RESULTS)).read_text("utf-8")

    def table(self, grid: Grid) -> dict[str, Any]:
        """The cells of a table: rows and columns in the file's order."""
        file = f"results/{grid.file}"
        rows = rows_of(file, grid.where, self._read, self.results.papers)
        if grid.only:
            rows = rows[rows[grid.rows].isin(grid.only)]
        names = rows[[grid.rows, grid.columns]].astype(str)
        columns = names[grid.columns].unique().tolist()
        table = []
        for row, there in names.groupby(grid.rows, sort=False)[grid.columns]:
            cells: list[tuple[str, ...] | None] = []
            for column in columns:
                where = (file, *grid.where, f"{grid.rows}={row}", f"{grid.columns}={column}")
                cells.append(where if column in set(there) else None)
            table.append((grid.called(row), cells))
        return {"columns": columns, "rows": table}

    def pictures(self, shown: Sequence[Picture]) -> list[dict[str, Any]]:
        """The figures that were drawn: title, name, caption, data address and grid.

        The grid says where a page of pictures has them. It is None for other figures.
        """
        text = (self.results.folder / "figures" / "captions.md").read_text("utf-8")
        captions = dict(re.findall(r"^\*\*(.+?)\.\*\* (.+)$", text, re.M))
        pictures = []
        for title, name, caption in shown:
            file = self.results.folder / "figures" / f"{name}.png"
            if not file.is_file():
                continue
            with Image.open(file) as image:
                grid = image.info.get(GRID)
            content = base64.b64encode(file.read_bytes()).decode()
            pictures.append(
                {
                    "title": title,
                    "name": name,
                    "caption": captions[caption],
                    "source": f"data:image/png;base64,{content}",
                    "grid": grid,
                }
            )
        return pictures

    def stages(self) -> list[dict[str, Any]]:
        """Every stage with its command, its files in results/ and the checksums of what it left.

        The report's own are not known before it is written. Those of outs/params/ change with
        values that no result depends on, and those of claims.md with the results of other cells.
        """
        stages = []
        for name, declared in declared_stages().items():
            stage = declared | {"name": name}
            if name != "report":
                stage["files"] = stage_results(name)[0]
                stage["sums"] = checksums(name)
                for other in ("outs/params", "results/claims.md"):
                    stage["sums"].pop(other, None)
            stages.append(stage)
        return stages


def spec(chart: Chart) -> Markup:
    """A chart's specification, safe inside a script element."""
    return htmlsafe_json_dumps(chart.spec, separators=(",", ":"), allow_nan=False)


def dots(claim: Claim, entry: dict[str, Any]) -> dict[str, Any] | None:
    """What the picture of a measured claim shows, in the quantity's own unit.

    A dot a seed, the 95 % interval, the borders of the claim. None where there is no interval.
    """
    value = entry["measured"]
    if not value or value["low"] is None:
        return None
    borders: list[float] = []
    if not claim.centre:
        borders = [b for b in {*claim.holds_within, *claim.contradicted_outside} if np.isfinite(b)]
    seeds = value.get("values", [])
    span = [*seeds, value["low"], value["high"], *borders]
    width = (max(span) - min(span)) or 1
    return value | {"seeds": seeds, "borders": borders, "least": min(span), "width": width}


def checklists() -> Markup:
    """The checklists of docs/, below a heading of the page, with links that hold from results/."""
    text = CHECKLISTS.read_text("utf-8").removeprefix("# Checklists\n").replace("\n## ", "\n### ")
    text = re.sub(r"\]\((?!http|\.\./)", "](../docs/", text).replace("](../results/", "](")
    return Markup(MarkdownIt("commonmark").render(text))  # noqa: S704 (a page of this repository)
