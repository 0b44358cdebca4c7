"""What params.yaml asks for, before anything runs: trainings, images, FLOPs, and their time.

FLOPs are counted on the models themselves. Time = FLOPs / the rate that `benchmarks/cost.py`
measured on models of the nearest width: narrow ones reach a small part of a machine's FLOP/s.
"""

from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from statistics import fmean

import pandas as pd
from pydantic import BaseModel, Field, TypeAdapter

from lsvit.routes import generator, layers_of
from pipeline.config.checks import check, check_layers
from pipeline.config.paper import Work
from pipeline.config.params import Params
from pipeline.config.samplers import Spec, make_sampler, training_order
from pipeline.config.sections import Finetune, Pretrain
from pipeline.config.variant import PLAIN
from pipeline.data.prepare import choose
from pipeline.data.sources import find
from pipeline.errors import UserError
from pipeline.files import reading
from pipeline.jobs.files import HELDOUT
from pipeline.jobs.identity import processor
from pipeline.jobs.machine import available_cores

KNOWN_HARDWARE = Path("benchmarks/cost.json")
TRAINING_STEP = 3  # forward passes: the backward pass takes two
NOTES = (
    "One multiply-add is 2 FLOPs. A training step counts as 3 forward passes.",
    "Time: the models of a row side by side, one a worker; the rows one after another.",
    "Not counted: branches of early exits, talking heads, losses beyond the class loss, reading, "
    "writing, UMAP, figures, start of processes; what early stopping, bf16 or a compilation saves.",
    "Another machine: `uv run python benchmarks/cost.py` measures it.",
)


class Rates(BaseModel):
    """FLOP/s of one worker on models of one width."""

    width: int = Field(gt=0)
    training: float = Field(gt=0)
    evaluation: float = Field(gt=0)


class Hardware(BaseModel):
    """A named machine of `benchmarks/cost.json`."""

    workers: int = Field(gt=0)
    rates: list[Rates] = Field(min_length=1)
    source: str
    gpu: bool = False

    def hours(self, work: Work, width: int, training: float, passes: float) -> float:
        """Hours for the FLOPs of each of the models, side by side, at the nearest width's rates."""
        rates = min(self.rates, key=lambda rates: abs(rates.width - width))
        seconds = work.models * (training / rates.training + passes / rates.evaluation)
        return seconds / 3600 / min(self.workers, work.models)


def known_hardware() -> dict[str, Hardware]:
    """Read the named machines. Raises UserError if `benchmarks/cost.py` did not write the file."""
    with reading(KNOWN_HARDWARE, "run in the repository's root"):
        return TypeAdapter(dict[str, Hardware]).validate_json(KNOWN_HARDWARE.read_bytes())


def list_work(params: Params, num_layers: int) -> list[Work]:
    """List what all stages do."""
    work = []
    preset = params.model_preset
    if preset.weights == "scratch":
        work.append(
            Work("pretrain", "", len(params.starts), preset, training=params.resolve(Pretrain))
        )
    for name, variant in params.all_variants.items():
        tuning = params.resolve(Finetune, name)
        work.append(Work("finetune", name, len(params.seeds), preset, variant, tuning))
    for paper in params.running:
        work += paper.run("work", params, num_layers)
    return work


def mean_length(spec: Spec, num_layers: int) -> float:
    """Average how many layers a sampler's routes execute. Those of LayerDrop differ in length."""
    rng = generator("samples", 0)
    sampler = make_sampler(spec)
    return fmean(len(layers_of(sampler(rng, num_layers))) for _ in range(200))


def count_training(work: Work, sizes: tuple[int, int, int]) -> tuple[int, int]:
    """Count the images that one training trains on, and validates on, over all its epochs."""
    options = work.training
    if options is None:
        return 0, 0
    train, validation, heldout = sizes
    used = min(train, options.images or train)
    trained = used // options.batch_size * options.batch_size  # complete batches alone
    orders = 1
    if options.validation_orders == "all":
        orders = 3 if training_order(work.variant.route) == "trained" else 2
    return options.epochs * trained, options.epochs * (orders * validation + heldout)


def estimate(params: Params, known: Mapping[str, Hardware]) -> pd.DataFrame:
    """Count what the stages do.

    Returns:
        A row for each stage and name: columns of counts, and by each machine's name of hours.

    Raises:
        UserError: timm does not know the model, a value does not fit its number of layers, or only
            the data set's folder tells how many images there are.
    """
    from pipeline.flops import ModelFlops, count_variant  # imports torch

    if params.sizes is None:
        raise UserError(
            f"datasets.{params.dataset}: its folder tells how many images there are; "
            "accepted here: datasets.NAME.train and datasets.NAME.validation"
        )
    classes = params.dataset_preset.num_classes
    counted: dict[str, ModelFlops] = {}
    num_layers = count_variant(params.model_preset, classes).num_layers
    check_layers(params, num_layers)
    rows = []
    for work in list_work(params, num_layers):
        plain = PLAIN.model_copy(update={"position": work.variant.position})
        key = f"{work.preset!r} {plain!r}"
        if key not in counted:
            counted[key] = count_variant(work.preset, classes, plain)
        model = counted[key]
        sizes = work.sizes or params.sizes
        trained, validated = count_training(work, sizes)
        depth = work.variant.layers or model.num_layers
        length = mean_length(work.variant.route, depth)
        training = TRAINING_STEP * trained * model.whole(length)
        images = min(sizes[1], work.images or sizes[1])
        passes = validated * model.whole(depth)
        passes += images * sum(map(model.whole, work.passes))
        row = {
            "stage": work.stage,
            "name": work.name,
            "trainings": work.models if work.training else 0,
            "training_images": work.models * trained,
            "passes": work.models * len(work.passes),
            "evaluation_images": work.models * (validated + images * len(work.passes)),
            "flops": work.models * (training + passes),
        }
        for name, hardware in known.items():
            row[name] = hardware.hours(work, model.width, training, passes)
        rows.append(row)
    return pd.DataFrame(rows).groupby(["stage", "name"], sort=False).sum()


def this_machine(params: Params) -> dict[str, Hardware]:
    """The CPU here, as fast as the one measured last. {} where jobs run on anything else."""
    device, _ = processor(params.device, params.engine)
    if device != "cpu" or params.engine != "local":
        return {}
    measured = [hardware for hardware in known_hardware().values() if not hardware.gpu]
    workers = params.workers or max(1, available_cores() // params.resolve(Finetune).threads)
    return {"here": measured[-1].model_copy(update={"workers": workers})}


def with_counted_images(params: Params) -> Params:
    """The parameters for as many images as a folder has, if the data are a folder.

    Raises:
        UserError: the folder cannot be read, or has too few images for a value.
    """
    preset = params.dataset_preset
    if params.sizes or preset.source != "image_folder":
        return params
    with redirect_stdout(None):  # prepare-data says what it leaves out
        found = find(preset.source, preset.folder, Path())
    splits = choose(params.dataset, preset, found.splits).items()
    counts = {name: len(split.labels) for name, split in splits}
    counted = params.with_sizes(counts["train"], counts["validation"], counts.get(HELDOUT, 0))
    check(counted)
    return counted


def announce(params: Params) -> None:
    """Print what a run will do, before it does: by stage trainings, passes, and about how long."""
    print(f"papers: {', '.join(paper.name for paper in params.running)}")
    if left_out := [paper.name for paper in params.all_papers if paper not in params.running]:
        print(f"not run: {', '.join(left_out)}; `papers` in params.yaml takes a list of names")
    try:
        machine = this_machine(params)
        stages = estimate(params, machine).groupby("stage", sort=False).sum()
    except UserError as error:
        print(f"how much there is to do is not known yet: {error}")
        return
    for stage, row in stages.iterrows():
        counts = []
        if row["trainings"]:
            counts.append(f"{row['trainings']:,.0f} trainings")
        if row["passes"]:
            counts.append(f"{row['passes']:,.0f} passes over images")
        if machine:
            counts.append(f"about {format_hours(row['here'])}")
        print(f"{stage}: {', '.join(counts)}")
    if not machine:
        print("no time is told: jobs run on a GPU or a cluster, where speed was never measured")
        return
    print(
        f"in all about {format_hours(stages['here'].sum())} of computing if nothing has finished "
        "before, and some seconds for each stage to start, "
        f"{machine['here'].workers} jobs side by side, at speeds in benchmarks/cost.json; "
        "`lsvit cost` says what is not counted"
    )


def format_hours(hours: float) -> str:
    """Write hours as days, hours or minutes."""
    if hours >= 48:
        return f"{hours / 24:,.1f} d"
    if hours >= 2:
        return f"{hours:.1f} h"
    return f"{60 * hours:.1f} min"


def show(params: Params, known: Mapping[str, Hardware]) -> None:
    """Print an :func:`estimate` as a table."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from pipeline.report.tables import console

    title = f"params.yaml: {params.dataset}, {params.model}, {len(params.seeds)} seeds"
    table = Table("", "", title=title, box=SIMPLE_HEAD, title_justify="left")
    times = [f"time ({i})" for i in range(1, len(known) + 1)]
    for column in ("trainings", "images trained", "images run", "FLOPs", *times):
        table.add_column(column, justify="right")
    rows = estimate(params, known)
    rows.loc[("total", ""), :] = rows.sum()
    for place, row in rows.iterrows():
        if place == rows.index[-1]:
            table.add_section()
        counts = row[["trainings", "training_images", "evaluation_images"]]
        cells = [f"{count:,.0f}" if count else "" for count in counts]
        hours = [format_hours(row[name]) for name in known]
        table.add_row(*place, *cells, f"{row['flops']:.2e}", *hours)
    out = console(140)
    out.print(table)
    for i, (name, hardware) in enumerate(known.items(), 1):
        out.print(f"({i}) {name}: {hardware.source}")
    out.print(*NOTES, sep="\n")
