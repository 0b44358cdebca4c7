"""All trainings of one cell or of several ahead of the stages, which then find them finished: in waves, so that many workers have work."""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from importlib import import_module
from itertools import product, zip_longest
from pathlib import Path
from typing import NamedTuple

from pipeline.config.checks import check, check_sizes
from pipeline.config.effective import files
from pipeline.config.load import load, parse
from pipeline.config.paper import Paper
from pipeline.config.params import Params
from pipeline.config.sections import Finetune, Pretrain
from pipeline.errors import UserError
from pipeline.files import reading
from pipeline.jobs.files import DATA, HELDOUT, finetuned, read_meta
from pipeline.jobs.job import Job
from pipeline.jobs.plan import Plan
from pipeline.jobs.pool import run, workers_here
from pipeline.jobs.processes import root
from pipeline.jobs.stage import terminated

EMBEDDED = Path("data/fashion_mnist_10k")
MADE_OF = {
    f"{name}.json": Path(f"outs/params/{name}.json") for name in ("dataset", "model")
}  # outs/prepare_data
SHARED = ("engine", "device", "distributed")  # by all cells: they run together
PLANS = ("papers.smoothing.compute.plan", "papers.inversion.compute.plan")
ROUNDS = ("papers.exits.compute.rounds",)
Waves = Iterator[list[Job]]


class Cell(NamedTuple):
    """One of several: its parameters, and where its images lie."""

    name: str  # what tells it from the others
    params: Params
    data: Path


def overridden(overrides: Sequence[str], papers: tuple[Paper, ...]) -> Params:
    """The parameters with changes written as `dvc exp run -S` takes them. Raises UserError."""
    file = Path("params.yaml")
    if not overrides:
        return load(file, papers=papers)
    from dvc.exceptions import DvcException  # takes a second
    from dvc.utils.hydra import apply_overrides

    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / file.name
        with reading(file, "run in the repository's root"):
            changed.write_text(file.read_text())
        try:
            apply_overrides(str(changed), list(overrides))
        except DvcException as error:
            raise _no_override(overrides, error) from None
        params = parse(changed, papers=papers)
    check(params)
    return params


def _no_override(overrides: Sequence[str], error: Exception) -> UserError:
    why = " ".join(str(error.__cause__ or error).split())
    return UserError(
        f"-S: found {', '.join(overrides)}, accepted: KEY=VALUE of params.yaml ({why})"
    )


def grid(overrides: Sequence[str], papers: tuple[Paper, ...]) -> dict[str, Params]:
    """The parameters of all combinations of choices, KEY=A,B, by what tells them apart. Raises UserError."""
    if not overrides:
        return {"": overridden(overrides, papers)}
    from dvc.exceptions import DvcException
    from dvc.utils.hydra import get_hydra_sweeps, to_hydra_overrides
    from hydra.errors import HydraException

    try:
        parsed = to_hydra_overrides(list(overrides))
        choices = [[each.input_line] for each in parsed]
        for i, each in enumerate(parsed):
            if each.is_sweep_override():
                choices[i] = [found[""][0] for found in get_hydra_sweeps({"": choices[i]})]
    except (DvcException, HydraException) as error:
        raise _no_override(overrides, error) from None
    several = [i for i, of in enumerate(choices) if len(of) > 1]
    found = {
        " ".join(cell[i] for i in several): overridden(cell, papers) for cell in product(*choices)
    }
    for key in SHARED:
        if len({repr(getattr(params, key)) for params in found.values()}) > 1:
            raise UserError(
                f"-S: {key}: found several, accepted: one for all cells, which run together"
            )
    return found


def images(params: Params, place: Path) -> Path:
    """The folder of a cell's images: the workspace's if they are these, else they are prepared in `place`.

    Raises:
        UserError: as stage prepare-data does.
    """
    wanted = {name: text for name, text in files(params).items() if name in MADE_OF}
    if (DATA / "meta.json").is_file() and all(
        file.is_file() and file.read_text() == wanted[name] for name, file in MADE_OF.items()
    ):
        return DATA
    data = place / sha256("".join(wanted.values()).encode()).hexdigest()
    if not data.exists():
        from pipeline.data.prepare import prepare

        print(f"prepares the images of {params.dataset}", flush=True)
        prepare(
            params.dataset,
            params.dataset_preset,
            EMBEDDED,
            data,
            params.model_preset,
            partial(check_sizes, params),
        )
    return data


@contextmanager
def prepared(overrides: Sequence[str], papers: tuple[Paper, ...]) -> Iterator[list[Cell]]:
    """The cells that are asked for; what had to be prepared for them is removed at the end, also at SIGTERM."""
    asked, scratch = grid(overrides, papers), root() / ".lsvit"
    scratch.mkdir(exist_ok=True)
    with terminated(), tempfile.TemporaryDirectory(prefix="fill-", dir=scratch) as place:
        found = []
        for name, params in asked.items():
            data = images(params, Path(place))
            counts = read_meta(data)["counts"]
            found.append(
                Cell(
                    name,
                    params.with_sizes(
                        counts["train"], counts["validation"], counts.get(HELDOUT, 0)
                    ),
                    data,
                )
            )
        yield found


def together(several: Sequence[Waves]) -> Waves:
    """The first waves of all as one, then the second ones, and so on."""
    for wave in zip_longest(*several, fillvalue=()):
        yield [job for jobs in wave for job in jobs]


def waves(cell: Cell, place: Path) -> Waves:
    """A cell's trainings: those of a wave have ended when the next one is asked for. `place` gets links to their weights."""
    params, data, folder, pretrained = (
        cell.params,
        cell.data,
        place / "finetune",
        place / "pretrain",
    )
    starts = Plan(params, Pretrain, data).starting()
    own = [
        job
        for room in map(import_module, PLANS)
        if hasattr(room, "from_scratch")
        for job in room.from_scratch(params, data)
    ]
    yield [*starts.values(), *own]
    link(starts, pretrained)
    refined = _refined(Plan(params, Finetune, data, folder, pretrained))
    yield from together(
        [
            refined,
            *(
                room.ahead(params, data, folder, pretrained, place / "ahead")
                for room in map(import_module, ROUNDS)
            ),
        ]
    )


def _refined(plan: Plan) -> Waves:
    """Every variant; whoever asks again finds the weights."""
    found = plan.refinements(plan.params.all_variants)
    yield [job for seeds in found.values() for job in seeds.values()]
    for name, seeds in found.items():
        link(seeds, finetuned(name, 0, folder=plan.folder).parents[1])


def link(jobs: Mapping[int, Job], folder: Path) -> None:
    """Weights of finished jobs, by seed, in a folder as stages leave them."""
    for seed, job in jobs.items():
        (place := folder / f"seed_{seed}").mkdir(parents=True)
        for file in job.folder.glob("weights*"):
            (place / file.name).symlink_to(file.absolute())


def threads_of(cells: Sequence[Cell]) -> int:
    """The most that a training takes: all of them run side by side."""
    return max(int(values["threads"].value) for cell in cells for values in cell.params.trainings())


def expected(cells: Sequence[Cell]) -> list[str]:
    """How long the trainings of all stages take on known hardware, side by side on the workers that there are, a line each."""
    from pipeline.cost.estimate import format_seconds, stages
    from pipeline.cost.hardware import known_hardware

    found = [
        stage
        for cell in cells
        for stage in stages(cell.params)
        if any(work.training for job in stage.jobs for work in job)
    ]
    params, threads = cells[0].params, threads_of(cells)
    distributed = params.distributed
    if params.engine == "ray" and distributed.nodes == 1:
        from pipeline.jobs.cluster import slots

        workers = slots(params.device, threads, distributed.processes)
    else:
        workers = workers_here(params.device, threads) if distributed.world_size == 1 else 1
    lines = [
        f"{sum(len(stage.jobs) for stage in found)} trainings of all stages, {workers} side by side; about"
    ]
    for name, hardware in known_hardware().items():
        as_many = hardware.model_copy(
            update={"gpus": workers if hardware.gpus else 0, "cores": workers * threads}
        )
        whole = found[0]._replace(
            jobs=[job for stage in found for job in stage.jobs], threads=threads
        )
        lines.append(
            f"    {format_seconds(whole.time(as_many)['wall'])} on workers like those of {name}"
        )
    return lines


def fill(cells: Sequence[Cell]) -> None:
    """Run them all. Raises UserError as :func:`pipeline.jobs.pool.run` does."""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # as in stage pretrain
    params, threads = cells[0].params, threads_of(cells)
    with tempfile.TemporaryDirectory(prefix="fill-", dir=root() / ".lsvit") as folder:
        several = [
            _named(cell.name, waves(cell, Path(folder, str(i)))) for i, cell in enumerate(cells)
        ]
        for wave in together(several):
            run(
                wave,
                params.device,
                threads=threads,
                distributed=params.distributed,
                engine=params.engine,
            )


def _named(cell: str, found: Waves) -> Waves:
    """The same, with the cell's name before each job's."""
    for wave in found:
        yield [replace(job, title=f"{cell}: {job.title}") for job in wave] if cell else wave
