"""What params.yaml asks for, before anything runs: trainings, images, FLOPs, and time on hardware whose speed is known.

Counted with the functions that the pipeline itself goes by (routes, orders, cells). One multiply-add is 2 FLOPs. Seconds of a
process = batches x batch + operations x operation + elements x element + FLOPs / rate, with the constants that
`benchmarks/cost.py` measured: operations decide the time of small batches, the elements that they put out that of narrow models.
"""

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from pipeline.config.checks import check_layers
from pipeline.config.paper import Paper
from pipeline.config.params import Params
from pipeline.config.sections import Finetune, Pretrain
from pipeline.config.variant import PLAIN
from pipeline.cost.hardware import Hardware
from pipeline.cost.work import Stage, count, training_job
from pipeline.errors import UserError
from pipeline.report.tables import console

NOTES = (
    "FLOPs: 1 multiply-add = 2; attention and position parts included; a training step = 3 forward passes.",
    "sum: the times of all processes; wall: a stage's processes side by side, the stages one after another.",
    "Not in the time: start of processes, reading and writing files, tracking, UMAP, figures; nor what bf16, TF32, checkpointing, a "
    "compilation or several processes a training change.",
)
MACHINE = "Another machine: `uv run python benchmarks/cost.py` measures it and adds it."


def notes(papers: Sequence[Paper]) -> list[str]:
    """What the figures hold and what not."""
    return [*NOTES, *(note for cost in _modules(papers) for note in cost.NOTES), MACHINE]


def _modules(papers: Sequence[Paper]) -> list[ModuleType]:
    """The modules of the papers that tell what their stages cost."""
    return [module for paper in papers if (module := paper.import_reader("cost"))]


def stages(params: Params) -> list[Stage]:
    """The stages of the pipeline that compute, for the chosen model and data set.

    Raises:
        UserError: timm does not know the model, a value does not fit its number of layers, or only the folder tells the images.
    """
    preset, data, seeds = params.model_preset, params.dataset_preset, len(params.seeds)
    if (sizes := params.sizes) is None:
        raise UserError(
            f"datasets.{params.dataset}: its folder tells how many images there are; accepted here: "
            "datasets.NAME.train and datasets.NAME.validation"
        )
    whole = count(preset, data.num_classes)
    check_layers(params, whole.num_layers)

    found: list[Stage] = []
    if preset.weights == "scratch":
        first = params.resolve(Pretrain)
        found.append(
            Stage(
                "pretrain",
                "",
                [training_job(whole, PLAIN, first, *sizes)] * len(params.starts),
                first.threads,
            )
        )
    for name, variant in params.all_variants.items():
        routed, tuning = count(preset, data.num_classes, variant), params.resolve(Finetune, name)
        found.append(
            Stage(
                "finetune",
                name,
                [training_job(routed, variant, tuning, *sizes, per=tuning.per)] * seeds,
                tuning.threads,
            )
        )
    for cost in _modules(params.papers):
        found += cost.stages(params, sizes)
    return found


def _published(papers: Sequence[Paper]) -> list[ModuleType]:
    """The papers that tell what their own trainings took."""
    return [cost for cost in _modules(papers) if hasattr(cost, "published")]


def estimate(params: Params, known: dict[str, Hardware]) -> dict[str, Any]:
    """What `lsvit cost --json` prints: a row a stage and their total, the same for the paper's trainings, and what is known."""
    own = [stage for cost in _published(params.papers) for stage in cost.published(params)]
    ours, paper = ([stage.row(known) for stage in found] for found in (stages(params), own))
    return {
        "dataset": params.dataset,
        "model": params.model,
        "seeds": len(params.seeds),
        "stages": [*ours, total(ours)],
        "paper": [*paper, total(paper)],
        "hardware": {name: hardware.source for name, hardware in known.items()},
        "notes": [
            *notes(params.papers),
            *(f"paper: {cost.PAPER}" for cost in _published(params.papers)),
        ],
    }


def total(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sum of rows; stages run one after another, so their walls add up too."""
    sums = {
        key: sum(row[key] for row in rows)
        for key, value in rows[0].items()
        if isinstance(value, int | float)
    }
    seconds = {
        name: {key: sum(row["seconds"][name][key] for row in rows) for key in times}
        for name, times in rows[0]["seconds"].items()
    }
    return {"part": "total", "name": "", **sums, "seconds": seconds}


def show(estimated: dict[str, Any], papers: tuple[Paper, ...]) -> None:
    """Print an :func:`estimate` as two tables."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    out = console(180)
    ours = "params.yaml: {dataset}, {model}, {seeds} seeds".format(**estimated)
    times = [
        f"({i}) {what}"
        for i in range(1, len(estimated["hardware"]) + 1)
        for what in ("sum", "wall")
    ]
    counts = ["trainings", "training_images", "validation_images", "evaluation_images"]
    for key, title in (
        ("stages", ours),
        (
            "paper",
            f"The paper's four cells: {'; '.join(cost.PAPER for cost in _published(papers))}",
        ),
    ):
        table = Table("", "", title=title, box=SIMPLE_HEAD, title_justify="left")
        for column in (*counts, "FLOPs", *times):
            table.add_column(column.replace("_", " "), justify="right")
        for row in estimated[key]:
            if row["part"] == "total":
                table.add_section()
            shown = [f"{row[count]:,}" if row[count] else "" for count in counts] + [
                format_flops(row["flops"])
            ]
            shown += [
                format_seconds(seconds)
                for of_hardware in row["seconds"].values()
                for seconds in of_hardware.values()
            ]
            table.add_row(row["part"], row["name"], *shown)
        out.print(table)
    out.print(
        *(
            f"({i}) {name}: {source}"
            for i, (name, source) in enumerate(estimated["hardware"].items(), 1)
        ),
        *notes(papers),
        sep="\n",
    )


def format_flops(flops: float) -> str:
    """1.2e15 -> "1.2 P"."""
    power = min(6, int(math.log10(max(flops, 1)) / 3))
    return f"{flops / 1000**power:.3g} {' kMGTPE'[power]}".rstrip()


def format_seconds(seconds: float) -> str:
    """In the unit that leaves few digits."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"
