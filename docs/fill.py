"""Fill what README and pages take from results/, and judge the committed cells anew: `uv run python
docs/fill.py` after results or rules have changed; tests hold it.

`<!-- table1: ... -->` begins a block, see below; `<!--= file column=value ... expression format
-->` a number, see :func:`pipeline.report.numbers.number`.
"""

import io
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # as a script it has its own folder alone

from docs.reference import campaign, parameters, plots_page, schema, speed  # noqa: E402
from papers import PAPERS  # noqa: E402
from papers.layershuffle.labels import label  # noqa: E402
from pipeline.files import write_json  # noqa: E402
from pipeline.report.claims import Claim, load_claims  # noqa: E402
from pipeline.report.comparison import moved  # noqa: E402
from pipeline.report.evidence import Evidence  # noqa: E402
from pipeline.report.ledger import (  # noqa: E402
    HOLDS,
    VERDICTS,
    judge,
    markdown,
)
from pipeline.report.numbers import NUMBER, Read, number  # noqa: E402

PAGES = ("README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))
PRETRAINED, HOURS = (
    f"cells/{name}/"
    for name in ("fashion_mnist_4k_vit_s14_56_few_epochs", "fashion_mnist_10k_vit_micro_hours")
)
MINUTES = "cells/fashion_mnist_10k_vit_micro_minutes"  # of the default run made again
SCHEMA, PLOTS = "docs/params.schema.json", ".dvc/plots.html"
TABLES = {  # block -> file
    "table1": "results/table1.md",
    "smoothing": "results/smoothing_table1.md",
    "pretrained": f"results/{PRETRAINED}table1.md",
}
CELLS = {  # words -> folder of results/
    f"[pre-trained ViT-S/14](results/{PRETRAINED}README.md), 4,000 images, three seeds": PRETRAINED,
    f"[micro model at `hours`](results/{HOURS}README.md), Latin orders, five seeds": HOURS,
    "micro model at `minutes`, the default run, five seeds": "",
}
BLOCK = re.compile(r"(<!-- (\w+):.*?-->)\n(.*?)(<!-- /\2 -->)", re.S)


def claims(old: list[str], read: Read) -> str:
    """The lines of a block as the ledger now has them; those of claims that are gone fall out."""
    ledger = read("results/claims.md").splitlines()
    rows = {line.split("|")[1].strip(): line for line in ledger if line.startswith("| ")}
    head = next(line for line in ledger if line.startswith("Data set"))
    columns = [line for line in ledger if line.startswith("|:")][-1]
    kept = [
        head
        if line.startswith("Data set")
        else rows.get(line.split("|")[1].strip())
        if line.startswith("| ")
        else columns
        if line.startswith("|:")
        else line
        for line in old
    ]
    return "\n".join(line for line in kept if line is not None)


def moved_verdicts(*folders: str, read: Read) -> str:
    """What the ledgers of two runs say differently of the claims that both have."""
    found, other = (json.loads(read(f"results/{folder}claims.json")) for folder in folders)
    both = {entry["id"] for entry in found["claims"]} & {entry["id"] for entry in other["claims"]}
    found["claims"] = [entry for entry in found["claims"] if entry["id"] in both]
    contradicting, marginal = moved(found, other)
    same = len(both) - len(contradicting) - len(marginal)
    lines = [
        f"Of {len(both)} verdicts {same} are the same, {len(contradicting)} contradict each other, {len(marginal)} others differ:"
    ]
    return "\n".join([*lines, "", *(f"- {line}" for line in contradicting + marginal)])


def result(old: list[str], read: Read) -> str:
    """Baseline and LS in both orders, a row a cell.

    Those of CELLS, then the published ViT-B/16 on ImageNet.
    """

    def row(words: str, file: str, *cell: str) -> str:
        table = [line for line in read(file).splitlines() if line.startswith("|")]
        names, _, *rows = [[each.strip() for each in line.strip("|").split("|")] for line in table]
        orders = [
            next(r for r in rows if r[: len(cell)] == [*cell] and r[3] == order)
            for order in ("sequential", "arbitrary")
        ]
        return f"| {' | '.join([words, *(order[names.index(v)] for v in ('baseline', 'LS') for order in orders)])} |"

    ours = [row(words, f"results/{folder}table1.md", "ours") for words, folder in CELLS.items()]
    return "\n".join(
        [
            *old[:2],
            *ours,
            row(
                "published: ViT-B/16, ImageNet",
                "results/table1.md",
                "published",
                "ImageNet",
                "ViT-B/16",
            ),
        ]
    )


def counts(old: list[str], read: Read) -> str:
    """Claims by paper and verdict, in the default run."""
    ledger = {entry["id"]: entry for entry in json.loads(read("results/claims.json"))["claims"]}

    def count(claims: list[Claim], key: str, verdict: str) -> str:
        verdicts = [ledger[claim.id][key] for claim in claims if claim.id in ledger]
        return str(verdicts.count(verdict))

    every = [(paper.title, claim) for paper in PAPERS for claim in load_claims(paper).claims]
    groups: dict[str, list[Claim]] = {}
    for title, claim in every:
        if not claim.own:
            groups.setdefault(title, []).append(claim)
    groups["all papers"] = [claim for _, claim in every if not claim.own]
    groups["our own questions"] = [claim for _, claim in every if claim.own]
    columns = [
        ("verdict", HOLDS),
        ("corrected", HOLDS),
        *(("verdict", verdict) for verdict in VERDICTS[1:]),
    ]
    lines = [
        [name, *(count(claims, *column) for column in columns)] for name, claims in groups.items()
    ]
    head = ["claims of", HOLDS, "of these, after Holm's correction", *VERDICTS[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])


def measured(old: list[str], read: Read) -> str:
    """Of models on real processes that fail: right answers, images/s, latency and lost answers, a
    row a fault and number of copies.

    Means over the seeds; of latency over those that had answers.
    """
    every = pd.read_csv(io.StringIO(read("results/nodes_measured/faults.csv")))
    keys = ["variant", "policy", "replication", "fault", "seed"]
    real, simulated = (
        every[every["how"] == how].set_index(keys) for how in ("processes", "simulation")
    )
    times = ["images_per_s", "p50_s", "p99_s"]
    ratios = (simulated[times] / real[times])[
        (real["images_per_s"] > 0) & (simulated["images_per_s"] > 0)
    ]
    within = ratios.sub(1).abs() <= 0.15
    near = within.sum()
    kinds = within["images_per_s"].groupby(
        within.index.get_level_values("fault").map(lambda fault: fault.partition("_")[0]),
        sort=False,
    )
    faults = ", ".join(f"{fault} {found.sum()} of {len(found)}" for fault, found in kinds)
    alike = (20 * (real["lost"] - simulated["lost"]).abs() <= real["micro_batches"]).sum()
    means = [each["images_per_s"].groupby(level=keys[:-1]).mean() for each in (real, simulated)]
    apart = (means[1] / means[0])[(means[0] > 0) & (means[1] > 0)].sub(1).abs()
    rows = (
        real.groupby(level=keys[:-1], sort=False)
        .mean(numeric_only=True)
        .reset_index(["replication", "fault"])
    )
    shown = [
        ("baseline", "strict"),
        ("baseline", "partial"),
        ("layerdrop", "partial"),
        ("ls", "any"),
    ]
    lines = [
        ["fault, nodes a layer", *(f"{label(variant)}, {policy}" for variant, policy in shown)],
        ["---"] * 5,
    ]
    for (fault, copies), own in rows.groupby(["fault", "replication"], sort=False):
        found = [own.loc[each] for each in shown]
        late = ["–" if pd.isna(one.p99_s) else f"{one.p99_s:.1f}" for one in found]
        fields = [
            f"{100 * one.right:.0f}, {one.images_per_s:.0f}, {p99}, {100 * one.lost / one.micro_batches:.0f}"
            for one, p99 in zip(found, late, strict=True)
        ]
        lines.append([f"{fault}, {copies}", *fields])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"""{table}

The same scheduler with the same faults, simulated, has the throughput within 15 % in {near["images_per_s"]} of {len(ratios)} runs in which
both answered under steady load ({faults}), the median latency in
{near["p50_s"]}, the 99th percentile in {near["p99_s"]}; as many lost answers, to 5 % of all, in {alike} of {len(real)}; the ratios to the
processes' throughput lie between {ratios["images_per_s"].min():.2f} and {ratios["images_per_s"].max():.2f}, their median is
{ratios["images_per_s"].median():.2f}. Of the means over the repeats {(apart <= 0.15).sum()} of {len(apart)} are within 15 %,
{(apart <= 0.25).sum()} within 25 %."""


def swarm(old: list[str], read: Read) -> str:
    """Of simulated nodes at the size of the internet.

    Answered journeys in %, median and 99th percentile of latency, a row a situation.
    """
    every = pd.read_csv(io.StringIO(read("results/nodes_measured/swarm.csv")))
    head = [
        "load, nodes",
        "away, nodes a layer",
        *(f"{policy} order" for policy in every["policy"].unique()),
    ]
    lines = [head, ["---"] * len(head)]
    for load, nodes in (("light", 10_000), ("heavy", 96)):
        own = every[(every["load"] == load) & (every["nodes"] == nodes)]
        for (away, copies), rows in own.groupby(["away", "replication"], sort=False):
            fields = [
                f"{100 * row.answered:.1f}, {row.p50_s:.1f}, {row.p99_s:.1f}".replace("nan", "–")
                for row in rows.itertuples()
            ]
            lines.append([f"{load}, {nodes:,}", f"{100 * away:.0f} %, {copies}", *fields])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


MADE: dict[str, Callable[[list[str], Read], str]] = {
    "claims": claims,
    "counts": counts,
    "measured": measured,
    "swarm": swarm,
    "moved_seeds": lambda old, read: moved_verdicts("", f"{MINUTES}_seeds_5_to_9/", read=read),
    "result": result,
    "parameters": lambda old, read: parameters(read),
    "speed": lambda old, read: speed(read),
    "faults": lambda old, read: campaign(read, "faults"),
    "faults_targets": lambda old, read: campaign(read, "faults_targets"),
    "together": lambda old, read: campaign(read, "together"),
}


def filled(text: str, read: Read) -> str:
    """A page with its blocks and numbers made anew."""

    def block(found: re.Match[str]) -> str:
        start, name, body, end = found.groups()
        new = read(TABLES[name]).strip() if name in TABLES else MADE[name](body.splitlines(), read)
        return f"{start}\n{new}\n{end}"

    return NUMBER.sub(
        lambda found: f"<!--= {found[1]} -->{number(shlex.split(found[1]), read, PAPERS)}<!--/-->",
        BLOCK.sub(block, text),
    )


def judge_cells() -> None:
    """Judge the committed cells anew, by today's rules."""
    for cell in (ROOT / "results" / "cells").iterdir():
        evidence = Evidence(cell, PAPERS)
        ledger = judge(evidence)
        write_json(cell / "claims.json", ledger)
        (cell / "claims.md").write_text(markdown(ledger, evidence.label))


if __name__ == "__main__":
    judge_cells()
    for name in PAGES:
        page = ROOT / name
        if (
            new := filled(page.read_text(), lambda file: (ROOT / file).read_text())
        ) != page.read_text():
            page.write_text(new)
            print(f"{name}: filled")
    (ROOT / SCHEMA).write_text(schema())
    (ROOT / PLOTS).write_text(plots_page((ROOT / PLOTS).read_text()))
