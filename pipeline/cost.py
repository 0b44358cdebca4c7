"""What params.yaml asks for, before anything runs: trainings, images, FLOPs, and their time.

FLOPs are counted on the models themselves. Time = FLOPs / the rate that `benchmarks/cost.py`
measured on models of the nearest width, because narrow models reach a small part of a machine's
FLOP/s.
"""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter

from lsvit.routes import generator, layers_of
from pipeline.config.checks import check, check_layers
from pipeline.config.load import load, parse
from pipeline.config.paper import Paper, Work
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.samplers import Spec, make_sampler, training_order
from pipeline.config.sections import Finetune, Pretrain
from pipeline.config.variant import PLAIN, Variant
from pipeline.data.prepare import choose
from pipeline.data.sources import find
from pipeline.errors import UserError
from pipeline.files import reading
from pipeline.jobs.files import DATA, HELDOUT, read_meta
from pipeline.jobs.identity import processor
from pipeline.jobs.machine import available_cores
from pipeline.jobs.plan import Plan

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

    def rates_of(self, width: int) -> Rates:
        """Return the rates of the nearest width."""
        return min(self.rates, key=lambda rates: abs(rates.width - width))


def known_hardware(path: Path = KNOWN_HARDWARE) -> dict[str, Hardware]:
    """Read the named machines. Raises UserError if `benchmarks/cost.py` did not write the file."""
    with reading(path, "run in the repository's root"):
        return TypeAdapter(dict[str, Hardware]).validate_json(path.read_bytes())


def overridden(overrides: Sequence[str], papers: tuple[Paper, ...]) -> Params:
    """Load params.yaml with changes written as `dvc exp run -S` takes them. Raises UserError."""
    file = Path("params.yaml")
    if not overrides:
        return load(file, papers=papers)
    from dvc.exceptions import DvcException
    from dvc.utils.hydra import apply_overrides

    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / file.name
        with reading(file, "run in the repository's root"):
            changed.write_text(file.read_text("utf-8"), "utf-8")
        try:
            apply_overrides(str(changed), list(overrides))
        except DvcException as error:
            why = " ".join(str(error.__cause__ or error).split())
            text = f"found {', '.join(overrides)}, accepted: KEY=VALUE of params.yaml ({why})"
            raise UserError(f"-S: {text}") from None
        params = parse(changed, papers=papers)
    check(params)
    return params


def list_work(params: Params, num_layers: int) -> list[Work]:
    """List what all stages do."""
    preset = params.model_preset
    work = []
    if preset.weights == "scratch":
        options = params.resolve(Pretrain)
        work.append(Work("pretrain", "", len(params.starts), preset, training=options))
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


def estimate(params: Params, known: Mapping[str, Hardware]) -> dict[str, Any]:
    """Count what the stages do: a row for each :class:`Work`, their total, and how it was counted.

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

    counted: dict[tuple[str, str], ModelFlops] = {}

    def count(preset: ModelPreset, variant: Variant) -> ModelFlops:
        plain = PLAIN.model_copy(update={"position": variant.position})
        key = preset.model_dump_json(), plain.model_dump_json()
        if key not in counted:
            counted[key] = count_variant(preset, classes, plain)
        return counted[key]

    num_layers = count(params.model_preset, PLAIN).num_layers
    check_layers(params, num_layers)
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for work in list_work(params, num_layers):
        sizes = work.sizes or params.sizes
        model = count(work.preset, work.variant)
        trained, validated = count_training(work, sizes)
        depth = work.variant.layers or model.num_layers
        length = mean_length(work.variant.route, depth)
        training = TRAINING_STEP * trained * model.whole(length)
        images = min(sizes[1], work.images or sizes[1])
        passes = validated * model.whole(depth)
        passes += images * sum(model.whole(length) for length in work.passes)
        hours = {}
        for name, hardware in known.items():
            rates = hardware.rates_of(model.width)
            seconds = work.models * (training / rates.training + passes / rates.evaluation)
            hours[name] = seconds / 3600 / min(hardware.workers, work.models)
        row = {
            "trainings": work.models if work.training else 0,
            "training_images": work.models * trained,
            "passes": work.models * len(work.passes),
            "evaluation_images": work.models * (validated + images * len(work.passes)),
            "flops": work.models * (training + passes),
            "hours": hours,
        }
        rows.setdefault((work.stage, work.name), []).append(row)
    stages = [{"stage": stage, "name": name} | add_up(same) for (stage, name), same in rows.items()]
    return {
        "dataset": params.dataset,
        "model": params.model,
        "seeds": len(params.seeds),
        "stages": [*stages, {"stage": "total", "name": ""} | add_up(stages)],
        "hardware": {name: hardware.source for name, hardware in known.items()},
        "notes": list(NOTES),
    }


def add_up(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sum the counts and hours of rows."""
    keys = ("trainings", "training_images", "passes", "evaluation_images", "flops")
    total: dict[str, Any] = {key: sum(row[key] for row in rows) for key in keys}
    total["hours"] = {name: sum(row["hours"][name] for row in rows) for name in rows[0]["hours"]}
    return total


def this_machine(params: Params, known: Mapping[str, Hardware]) -> dict[str, Hardware]:
    """The CPU here, as fast as the one measured last. {} where jobs run on anything else."""
    device, _ = processor(params.device, params.engine)
    if device != "cpu" or params.engine != "local":
        return {}
    measured = [hardware for hardware in known.values() if not hardware.gpu]
    workers = params.workers or max(1, available_cores() // params.resolve(Finetune).threads)
    return {"here": measured[-1].model_copy(update={"workers": workers})}


def count_finished(params: Params) -> dict[str, int]:
    """Count the trainings that earlier runs finished, of the stages that train for all papers.

    They cannot be told before the images are prepared, and refinements before the starting weights
    are trained.
    """
    finished = {"pretrain": 0, "finetune": 0}
    meta = DATA / "meta.json"  # damaged, it is made again
    with suppress(UserError), reading(meta), tempfile.TemporaryDirectory() as folder:
        if read_meta(DATA)["name"] != params.dataset:
            return finished
        for seed, job in Plan(params, Pretrain).starting().items():
            finished["pretrain"] += job.done
            Path(folder, f"seed_{seed}").symlink_to(job.folder)
        plan = Plan(params, Finetune, pretrained=Path(folder))
        for jobs in plan.refinements(params.all_variants).values():
            finished["finetune"] += sum(job.done for job in jobs.values())
    return finished


def count_images(params: Params) -> tuple[int, int, int]:
    """Count a folder's images to train on, to validate on, and held out. Raises UserError."""
    preset = params.dataset_preset
    with redirect_stdout(None):  # what is left out was said when the folder was checked
        source = find(preset.source, preset.folder, Path())
    splits = choose(params.dataset, preset, source.splits)
    heldout = len(splits[HELDOUT].labels) if HELDOUT in splits else 0
    return len(splits["train"].labels), len(splits["validation"].labels), heldout


def announce(params: Params) -> None:
    """Print what a run will do, before it does: by stage trainings, passes, and about how long."""
    left_out = [paper.name for paper in params.all_papers if paper not in params.running]
    print(f"papers: {', '.join(paper.name for paper in params.running)}")
    if left_out:
        print(f"not run: {', '.join(left_out)}; `papers` in params.yaml takes a list of names")
    try:
        if params.sizes is None and params.dataset_preset.source == "image_folder":
            params = params.with_sizes(*count_images(params))
        machine = this_machine(params, known_hardware())
        rows = estimate(params, machine)["stages"]
    except UserError as error:
        print(f"how much there is to do is not known yet: {error}")
        return
    finished = count_finished(params)
    whole = 0.0
    for stage in dict.fromkeys(row["stage"] for row in rows[:-1]):
        total = add_up([row for row in rows if row["stage"] == stage])
        trainings, done = total["trainings"], finished.get(stage, 0)
        counts = [f"{trainings:,} trainings"] if trainings else []
        if trainings and stage in finished:
            counts.append(f"{done:,} of them finished before")
        if total["passes"]:
            counts.append(f"{total['passes']:,} passes over images")
        for hours in total["hours"].values():
            to_do = hours * (1 - done / trainings) if done else hours
            whole += to_do
            counts.append(f"about {format_hours(to_do)}")
        print(f"{stage}: {', '.join(counts)}")
    if machine:
        print(
            f"in all about {format_hours(whole)}, {machine['here'].workers} jobs side by side, at "
            "speeds in benchmarks/cost.json; `lsvit cost` says what is not counted"
        )
    else:
        print("no time is told: jobs run on a GPU or a cluster, where speed was never measured")


def format_hours(hours: float) -> str:
    """Write hours as days, hours or minutes."""
    if hours >= 48:
        return f"{hours / 24:,.1f} d"
    if hours >= 2:
        return f"{hours:.1f} h"
    return f"{60 * hours:.1f} min"


def show(estimated: Mapping[str, Any]) -> None:
    """Print an :func:`estimate` as a table."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from pipeline.report.tables import console

    title = "params.yaml: {dataset}, {model}, {seeds} seeds".format(**estimated)
    table = Table("", "", title=title, box=SIMPLE_HEAD, title_justify="left")
    numbers = [f"time ({i})" for i in range(1, len(estimated["hardware"]) + 1)]
    for column in ("trainings", "images trained", "images run", "FLOPs", *numbers):
        table.add_column(column, justify="right")
    for row in estimated["stages"]:
        if row["stage"] == "total":
            table.add_section()
        counts = [row["trainings"], row["training_images"], row["evaluation_images"]]
        cells = [f"{count:,}" if count else "" for count in counts]
        cells.append(f"{row['flops']:.2e}")
        cells += [format_hours(hours) for hours in row["hours"].values()]
        table.add_row(row["stage"], row["name"], *cells)
    out = console(140)
    out.print(table)
    for i, (name, source) in enumerate(estimated["hardware"].items(), 1):
        out.print(f"({i}) {name}: {source}")
    out.print(*estimated["notes"], sep="\n")
