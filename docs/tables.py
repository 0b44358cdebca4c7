"""Tables of the pages that are made from results. Templates call them: see :mod:`docs.fill`.

Each function takes a reader of files and the file that it shows, by its path in the repository.
"""

import io
import json
from collections.abc import Iterable, Sequence
from statistics import mean

import pandas as pd
import yaml

from lsvit.routes import ORDERS
from papers import PAPERS
from papers.layershuffle.labels import label
from papers.layershuffle.section import LOGISTIC
from pipeline.report.claims import Claim, load_claims
from pipeline.report.ledger import (
    DECIDED,
    FAILS,
    HOLDS,
    UNDECIDED,
    VERDICTS,
    by_verdict,
    show_value,
)
from pipeline.report.numbers import Read

PUBLISHED = "papers/layershuffle/published.yaml"
REGRESSION = "logistic regression on the pixels"
# Rows of the README's table: variants of ours, and columns of the published table.
SHOWN = {
    "usual refinement": "baseline",
    "usual refinement, four times as long": "baseline_long",
    "LayerShuffle": "ls",
    "LayerShuffle, four times as long": "ls_long",
    "LayerDrop": "layerdrop",
    "the first three layers alone (refit-3)": "refit_3",
    REGRESSION: LOGISTIC,
}
PUBLISHED_COLUMNS = {
    "published, ViT-B/16 on ImageNet: usual refinement": 0,
    "published, ViT-B/16 on ImageNet: LayerShuffle": 1,
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
    chosen = by_verdict(entries[name] for name in ids.split())
    head = ["id", "claim", "published", "what is measured", "here", "verdict"]
    rows = []
    for entry in chosen:
        verdict = f"**{entry['verdict']}**"
        if entry["corrected"] != entry["verdict"]:
            verdict += f" (Holm: {entry['corrected']})"
        texts = [entry["id"], entry["claim"], entry["published"], entry["quantity"]]
        rows.append([*(text.replace("|", "\\|") for text in texts), show_value(entry), verdict])
    return markdown_table(head, rows)


def moved_verdicts(read: Read, file: str, other_file: str) -> str:
    """Claims that two runs both judge, and not alike: those that both decide come first."""
    other = {entry["id"]: entry["verdict"] for entry in json.loads(read(other_file))["claims"]}
    judged = (*DECIDED, UNDECIDED)
    shared = 0
    rows = []
    for entry in json.loads(read(file))["claims"]:
        verdict, other_verdict = entry["verdict"], other.get(entry["id"])
        if verdict in judged and other_verdict in judged:
            shared += 1
            if verdict != other_verdict:
                rows.append([entry["id"], entry["claim"], verdict, other_verdict])
    rows.sort(key=lambda row: UNDECIDED in row)
    table = markdown_table(["id", "claim", "default run", "second run"], rows)
    same = shared - len(rows)
    contrary = sum(UNDECIDED not in row for row in rows)
    return (
        f"Both runs judge {shared} claims, and give {same} the same verdict. They decide {contrary} "
        f"in different ways, and one of them leaves {len(rows) - contrary} undecided:\n\n{table}"
    )


def result(read: Read, file: str) -> str:
    """Mean accuracy in both orders, one number a cell: of a table1.csv, and published ones."""
    table = pd.read_csv(io.StringIO(read(file)))
    accuracies = table.pivot(index="variant", columns="order", values="mean")
    texts = (100 * accuracies).map("{:.0f}".format).replace("nan", "")
    published = yaml.safe_load(read(PUBLISHED))["ImageNet"]["ViT-B/16"]
    rows = []
    for words, variant in SHOWN.items():
        rows.append([words, *(texts.loc[variant, order] for order in ORDERS)])
    for words, column in PUBLISHED_COLUMNS.items():
        rows.append([words, *(f"{published[order][column][0]:.0f}" for order in ORDERS)])
    return markdown_table(["accuracy in %", "original order", "random orders"], rows)


def both_orders(read: Read, file: str) -> str:
    """Accuracy of every variant in both orders, mean and deviation over seeds: of a table1.csv."""
    table = pd.read_csv(io.StringIO(read(file)))
    rows = []
    for variant, cells in table.groupby("variant", sort=False):
        texts = {}
        for cell in cells.itertuples():
            spread = "" if variant == LOGISTIC else f" ± {100 * cell.std:.2f}"
            texts[cell.order] = f"{100 * cell.mean:.2f}{spread}"
        rows.append([label(variant), *(texts.get(order, "") for order in ORDERS)])
    return markdown_table(["accuracy in %", "original order", "random orders"], rows)


def gap(read: Read, file: str, dataset: str, other: str) -> str:
    """How far the baseline lies above something: held-out images with interval, validation."""
    cell = json.loads(read(file))[dataset]
    row = cell["gate"][f"baseline minus {other}"]
    rival = cell["validation"][other.replace(" ", "_")]
    rivals = rival["sequential"] if isinstance(rival, dict) else [rival]
    lead = mean(cell["validation"]["baseline"]["sequential"]) - mean(rivals)
    interval = f"{row['low']:.1f} to {row['high']:.1f}"
    return f"{row['mean']:.2f} ({interval}), on validation images {lead:.1f}"


def last_layer(read: Read, file: str, variant: str) -> str:
    """Accuracy along single routes of random layers, with the model's last layer and without.

    Least and most over routes and seeds.
    """
    rows = pd.read_csv(io.StringIO(read(file)))
    last = str(rows["keep"].max() - 1)
    own = rows[(rows["variant"] == variant) & (rows["routes"] == 1)]
    own = own[own["keep"] < own["keep"].max()]
    own = own[own["choose"] == "random"]
    has_last = own["route"].str.split("-").map(lambda layers: last in layers)
    cells: dict[int, list[str]] = {}
    for (_, keep), routes in own.groupby([~has_last, "keep"]):  # first those that have it
        accuracies = 100 * routes["accuracy"]
        count = len(routes[["order", "route"]].drop_duplicates())
        cell = f"{accuracies.min():.0f} to {accuracies.max():.0f} ({count})"
        cells.setdefault(keep, [str(keep)]).append(cell)
    return markdown_table(["layers kept", "with the last layer", "without it"], cells.values())


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
    columns = []
    for verdict in VERDICTS:
        columns.append((verdict, "verdict", verdict))
        if verdict in (HOLDS, FAILS):
            columns.append(("after Holm", "corrected", verdict))
    rows = []
    for name, members in groups.items():
        found = [entries[claim.id] for claim in members if claim.id in entries]
        rows.append(
            [name, *(str([e[key] for e in found].count(verdict)) for _, key, verdict in columns)]
        )
    return markdown_table(["claims of", *(head for head, _, _ in columns)], rows)


def served(read: Read, file: str, column: str, number_format: str) -> str:
    """A column of what real processes that fail answered, a row a fault and number of copies.

    Means over the seeds; of what has none where nothing was answered, over the others.
    """
    every = pd.read_csv(io.StringIO(read(file)))
    every = every[every["how"] == "processes"].assign(right=100 * every["right"])
    rows = []
    for (fault, copies), group in every.groupby(["fault", "replication"], sort=False):
        means = group.groupby(["variant", "policy"])[column].mean()
        cells = [f"{means[variant]:{number_format}}" for variant in SERVED]
        rows.append([fault, str(copies), *cells])
    head = ["fault", "nodes a layer", *(f"{label(name)}, {policy}" for name, policy in SERVED)]
    return markdown_table(head, rows).replace("nan", "–")


def simulated(read: Read, file: str) -> str:
    """How near the simulation is to the processes, run by run and in the means over the seeds."""
    every = pd.read_csv(io.StringIO(read(file)))
    runs = ["variant", "policy", "replication", "fault", "seed"]
    processes = every[every["how"] == "processes"].set_index(runs)
    simulation = every[every["how"] == "simulation"].set_index(runs)
    times = ["images_per_s", "p50_s", "p99_s"]
    answered = (processes["images_per_s"] > 0) & (simulation["images_per_s"] > 0)
    ratios = (simulation[times] / processes[times])[answered]
    within = ratios.sub(1).abs() <= 0.15
    near = within.sum()
    lost = (simulation["lost"] - processes["lost"]).abs() / processes["micro_batches"]
    means = [how["images_per_s"].groupby(level=runs[:-1]).mean() for how in (processes, simulation)]
    apart = (means[1] / means[0])[(means[0] > 0) & (means[1] > 0)].sub(1).abs()
    kinds = within.index.get_level_values("fault").map(lambda fault: fault.partition("_")[0])
    by_kind = within["images_per_s"].groupby(kinds, sort=False)
    throughput = ratios["images_per_s"]
    lines = [
        ("throughput within 15 %", near["images_per_s"], len(ratios)),
        *((f"the same, fault `{kind}`", part.sum(), len(part)) for kind, part in by_kind),
        ("median latency within 15 %", near["p50_s"], len(ratios)),
        ("99th percentile of latency within 15 %", near["p99_s"], len(ratios)),
        ("lost answers within 5 % of all", (lost <= 0.05).sum(), len(lost)),
        ("mean throughput over the repeats within 15 %", (apart <= 0.15).sum(), len(apart)),
        ("mean throughput over the repeats within 25 %", (apart <= 0.25).sum(), len(apart)),
    ]
    table = markdown_table(
        ["agreement", "runs that agree", "of"], [[name, str(n), str(of)] for name, n, of in lines]
    )
    ratio = (
        f"The ratio of simulated to real throughput lies between {throughput.min():.2f} and "
        f"{throughput.max():.2f}, and its median is {throughput.median():.2f}."
    )
    return f"{table}\n\n{ratio}"


def swarm(read: Read, file: str, column: str, number_format: str) -> str:
    """A column of simulated nodes at the size of the internet, a row a situation."""
    every = pd.read_csv(io.StringIO(read(file)))
    every = every.assign(answered=100 * every["answered"])
    policies = every["policy"].unique()
    rows = []
    for load, nodes in (("light", 10_000), ("heavy", 96)):
        situations = every[(every["load"] == load) & (every["nodes"] == nodes)]
        for (away, copies), group in situations.groupby(["away", "replication"], sort=False):
            values = group.set_index("policy")[column]
            cells = [f"{values[policy]:{number_format}}" for policy in policies]
            rows.append([load, f"{100 * away:.0f} %", str(copies), *cells])
    head = ["load", "nodes away", "nodes a layer", *(f"{policy} order" for policy in policies)]
    return markdown_table(head, rows).replace("nan", "–")


def latin(read: Read, file: str) -> str:
    """Micro-batches a second of the Latin schedule and of strict order on real processes."""
    every = pd.read_csv(io.StringIO(read(file)))
    every = every[(every["service_s"] == 0.05) & (every["images"] == 5)]
    rates = every.pivot(index="micro_batches", columns="schedule", values="micro_batches_per_s")
    rows = [
        [str(m), f"{row['latin']:.1f}", f"{row['pipeline']:.1f}"] for m, row in rates.iterrows()
    ]
    return markdown_table(["micro-batches", "Latin schedule", "strict order"], rows)
