"""Tables of the pages that are made from results. Templates call them: see :mod:`docs.fill`.

Each function takes a reader of files and the file that it shows, by its path in the repository.
"""

import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from papers import PAPERS
from papers.layershuffle.labels import label
from pipeline.report.claims import Claim, load_claims
from pipeline.report.comparison import moved
from pipeline.report.ledger import (
    FAILS,
    HOLDS,
    NOT_COMPARABLE,
    NOT_RUN,
    UNDECIDED,
    VERDICTS,
    WEAKER,
    show_value,
)
from pipeline.report.numbers import Read

ORDER = (FAILS, WEAKER, HOLDS, UNDECIDED, NOT_COMPARABLE, NOT_RUN)  # of a page's claims
PRETRAINED = "results/cells/fashion_mnist_4k_vit_s14_56_few_epochs"
HOURS = "results/cells/fashion_mnist_10k_vit_micro_hours"
# What a row of the README's table is called -> the folder of its results.
CELLS = {
    f"[pre-trained ViT-S/14]({PRETRAINED}/README.md), 4,000 images, three seeds": PRETRAINED,
    f"[micro model at `hours`]({HOURS}/README.md), Latin orders, five seeds": HOURS,
    "micro model at `minutes`, the default run, five seeds": "results",
}
# Of the models on real processes, those that the page shows.
SERVED = (("baseline", "strict"), ("baseline", "partial"), ("layerdrop", "partial"), ("ls", "any"))


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table. Its columns are not padded, as a page would be twice as long."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table(read: Read, file: str) -> str:
    """The file itself."""
    return read(file).strip()


def claims(read: Read, file: str, ids: str) -> str:
    """Claims of a ledger with these ids, by verdict: those that do not hold come first."""
    entries = {entry["id"]: entry for entry in json.loads(read(file))["claims"]}
    chosen = sorted(
        (entries[name] for name in ids.split()), key=lambda entry: ORDER.index(entry["verdict"])
    )
    head = ["id", "claim", "published", "what is measured", "here", "verdict"]
    rows = []
    for entry in chosen:
        verdict = f"**{entry['verdict']}**"
        if entry["corrected"] != entry["verdict"]:
            verdict += f" (Holm: {entry['corrected']})"
        texts = [entry["id"], entry["claim"], entry["published"], entry["quantity"]]
        rows.append([*(text.replace("|", "\\|") for text in texts), show_value(entry), verdict])
    return markdown_table(head, rows)


def ledger_head(read: Read, file: str) -> str:
    """The ledger's sentences on the run and the number of claims."""
    return next(line for line in read(file).splitlines() if line.startswith("Data set"))


def moved_verdicts(read: Read, file: str, other_file: str) -> str:
    """What the ledgers of two runs decide differently, of the claims that both have."""
    ledger = json.loads(read(file))
    other = json.loads(read(other_file))
    shared = _ids(ledger) & _ids(other)
    ledger["claims"] = [entry for entry in ledger["claims"] if entry["id"] in shared]
    contradicting, differing = moved(ledger, other)
    same = len(shared) - len(contradicting) - len(differing)
    summary = (
        f"Of {len(shared)} verdicts {same} are the same, {len(contradicting)} contradict each "
        f"other, {len(differing)} others differ:"
    )
    return "\n".join([summary, "", *(f"- {line}" for line in contradicting + differing)])


def _ids(ledger: dict[str, Any]) -> set[str]:
    return {entry["id"] for entry in ledger["claims"]}


def result(read: Read, file: str) -> str:
    """Accuracy of baseline and LS in both orders, a row a cell, then the published one.

    Args:
        read: reads a file.
        file: the default run's table, which has the published row: ViT-B/16 on ImageNet.
    """
    head = ["", *(f"{name}, {order}" for name in ("baseline", "LS") for order in ORDERS.values())]
    rows = [
        _accuracies(read(f"{folder}/table1.md"), words, "ours") for words, folder in CELLS.items()
    ]
    published = _accuracies(
        read(file), "published: ViT-B/16, ImageNet", "published", "ImageNet", "ViT-B/16"
    )
    return markdown_table(head, [*rows, published])


ORDERS = {"sequential": "original order", "arbitrary": "arbitrary orders"}


def _accuracies(table1: str, words: str, *start: str) -> list[str]:
    """A row of :func:`result`, from the rows of a Table 1 that start with these cells."""
    lines = [line.strip("|").split("|") for line in table1.splitlines() if line.startswith("|")]
    names, _, *rows = [[cell.strip() for cell in line] for line in lines]
    chosen = {row[3]: row for row in reversed(rows) if row[: len(start)] == [*start]}
    cells = [
        chosen[order][names.index(variant)] for variant in ("baseline", "LS") for order in ORDERS
    ]
    return [words, *cells]


def counts(read: Read, file: str) -> str:
    """Claims by paper and verdict in a ledger."""
    entries = {entry["id"]: entry for entry in json.loads(read(file))["claims"]}
    groups: dict[str, list[Claim]] = {}
    papers: list[Claim] = []
    own: list[Claim] = []
    for paper in PAPERS:
        for claim in load_claims(paper).claims:
            if claim.own:
                own.append(claim)
            else:
                groups.setdefault(paper.title, []).append(claim)
                papers.append(claim)
    groups |= {"all papers": papers, "our own questions": own}
    columns = [("verdict", HOLDS), ("corrected", HOLDS)]
    columns += [("verdict", verdict) for verdict in VERDICTS[1:]]
    rows = []
    for name, members in groups.items():
        found = [entries[claim.id] for claim in members if claim.id in entries]
        rows.append(
            [name, *(str([e[key] for e in found].count(verdict)) for key, verdict in columns)]
        )
    head = ["claims of", HOLDS, "of these, after Holm's correction", *VERDICTS[1:]]
    return markdown_table(head, rows)


def measured(read: Read, file: str) -> str:
    """Of models on real processes that fail: right answers, images/s, latency and lost answers.

    A row a fault and number of copies, means over the seeds; of latency over those that had
    answers. Then sentences on the simulation with the same faults.
    """
    every = pd.read_csv(io.StringIO(read(file)))
    keys = ["variant", "policy", "replication", "fault", "seed"]
    real = every[every["how"] == "processes"].set_index(keys)
    simulated = every[every["how"] == "simulation"].set_index(keys)
    rows = (
        real.groupby(level=keys[:-1], sort=False)
        .mean(numeric_only=True)
        .reset_index(["replication", "fault"])
    )
    lines = []
    for (fault, copies), group in rows.groupby(["fault", "replication"], sort=False):
        cells = [f"{fault}, {copies}"]
        for served in SERVED:
            row = group.loc[served]
            p99 = "–" if pd.isna(row.p99_s) else f"{row.p99_s:.1f}"
            lost = 100 * row.lost / row.micro_batches
            cells.append(f"{100 * row.right:.0f}, {row.images_per_s:.0f}, {p99}, {lost:.0f}")
        lines.append(cells)
    head = [
        "fault, nodes a layer",
        *(f"{label(variant)}, {policy}" for variant, policy in SERVED),
    ]
    return f"{markdown_table(head, lines)}\n\n{_simulated(real, simulated)}"


def _simulated(real: pd.DataFrame, simulated: pd.DataFrame) -> str:
    """How near the simulation is to the processes, run by run and in the means over the seeds."""
    times = ["images_per_s", "p50_s", "p99_s"]
    answered = (real["images_per_s"] > 0) & (simulated["images_per_s"] > 0)
    ratios = (simulated[times] / real[times])[answered]
    within = ratios.sub(1).abs() <= 0.15
    near = within.sum()
    kinds = within.index.get_level_values("fault").map(lambda fault: fault.partition("_")[0])
    by_kind = within["images_per_s"].groupby(kinds, sort=False)
    faults = ", ".join(f"{fault} {runs.sum()} of {len(runs)}" for fault, runs in by_kind)
    alike = (20 * (real["lost"] - simulated["lost"]).abs() <= real["micro_batches"]).sum()
    repeats = list(real.index.names[:-1])
    means = [runs["images_per_s"].groupby(level=repeats).mean() for runs in (real, simulated)]
    apart = (means[1] / means[0])[(means[0] > 0) & (means[1] > 0)].sub(1).abs()
    throughput = ratios["images_per_s"]
    return f"""\
The same scheduler with the same faults, simulated, has the throughput within 15 % in {near["images_per_s"]} of {len(ratios)} runs in which
both answered under steady load ({faults}), the median latency in
{near["p50_s"]}, the 99th percentile in {near["p99_s"]}; as many lost answers, to 5 % of all, in {alike} of {len(real)}; the ratios to the
processes' throughput lie between {throughput.min():.2f} and {throughput.max():.2f}, their median is
{throughput.median():.2f}. Of the means over the repeats {(apart <= 0.15).sum()} of {len(apart)} are within 15 %,
{(apart <= 0.25).sum()} within 25 %."""


def swarm(read: Read, file: str) -> str:
    """Of simulated nodes at the size of the internet.

    Answered journeys in %, median and 99th percentile of latency, a row a situation.
    """
    every = pd.read_csv(io.StringIO(read(file)))
    rows = []
    for load, nodes in (("light", 10_000), ("heavy", 96)):
        situations = every[(every["load"] == load) & (every["nodes"] == nodes)]
        for (away, copies), group in situations.groupby(["away", "replication"], sort=False):
            cells = [f"{load}, {nodes:,}", f"{100 * away:.0f} %, {copies}"]
            for row in group.itertuples():
                cell = f"{100 * row.answered:.1f}, {row.p50_s:.1f}, {row.p99_s:.1f}"
                cells.append(cell.replace("nan", "–"))
            rows.append(cells)
    head = [
        "load, nodes",
        "away, nodes a layer",
        *(f"{policy} order" for policy in every["policy"].unique()),
    ]
    return markdown_table(head, rows)
