"""All trainings of a cell ahead of the stages, which then find them finished: two waves, so that many workers have work at once."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lsvit.config.checks import check
from lsvit.config.effective import files
from lsvit.config.papers import rooms
from lsvit.config.params import Params, load, parse
from lsvit.config.sections import Finetune, Pretrain
from lsvit.config.variant import PLAIN
from lsvit.errors import UserError
from lsvit.jobs.files import DATA, HELDOUT, read_meta
from lsvit.jobs.job import Job
from lsvit.jobs.plan import Plan
from lsvit.jobs.pool import run, workers_here
from lsvit.reading import reading

PREPARED = Path("outs/params/dataset.json")  # what outs/prepare_data was made of


def overridden(overrides: Sequence[str], file: Path = Path("params.yaml")) -> Params:
    """The parameters with changes written as `dvc exp run -S` takes them. Raises UserError."""
    if not overrides:
        return load(file)
    from dvc.exceptions import DvcException  # takes a second
    from dvc.utils.hydra import apply_overrides

    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / file.name
        with reading(file, "run in the repository's root"):
            changed.write_text(file.read_text())
        try:
            apply_overrides(str(changed), list(overrides))
        except DvcException as error:
            why = " ".join(str(error.__cause__ or error).split())
            raise UserError(f"-S: found {', '.join(overrides)}, accepted: KEY=VALUE of params.yaml ({why})") from None
        params = parse(changed)
    check(params)
    return params


def prepared(params: Params) -> Params:
    """The parameters with the sizes of the images that lie there. Raises UserError if these are others."""
    if not PREPARED.is_file() or not DATA.is_dir() or PREPARED.read_text() != files(params)[PREPARED.name]:
        raise UserError(f"{DATA}: not the images that this asks for; `uv run dvc exp run --pull prepare-data` with the same -S makes them")
    counts = read_meta(DATA)["counts"]
    return params.with_sizes(counts["train"], counts["validation"], counts.get(HELDOUT, 0))


def from_scratch(params: Params) -> tuple[dict[int, Job], list[Job]]:
    """What needs nothing but the images: the starting weights by seed, and the papers' own models."""
    plan = Plan(params, Pretrain)
    if params.model_preset.weights != "scratch":
        raise UserError(f"params.yaml: model: found {params.model!r}, whose starting weights are fetched, accepted: one from scratch; "
                        "`uv run dvc repro` fetches them and trains the rest")  # fmt: skip
    starts = {seed: plan.training("pretrain", PLAIN, plan.options, seed) for seed in params.starts}
    return starts, [job for room in rooms("compute.plan") if hasattr(room, "from_scratch") for job in room.from_scratch(params)]


def refined(params: Params, pretrained: Path) -> list[Job]:
    """What starts from the starting weights in this folder: every variant, and the models that are trained with exits."""
    plan = Plan(params, Finetune, pretrained=pretrained)
    found = [job for seeds in plan.refinements(params.all_variants).values() for job in seeds.values()]
    return found + [job for room in rooms("compute.plan") if hasattr(room, "refined") for job in room.refined(params, pretrained)]


@contextmanager
def linked(starts: dict[int, Job]) -> Iterator[Path]:
    """A folder of starting weights as stage pretrain leaves it, of finished jobs."""
    with tempfile.TemporaryDirectory() as folder:
        for seed, job in starts.items():
            (place := Path(folder) / f"seed_{seed}").mkdir()
            for file in job.folder.glob("weights*"):
                (place / file.name).symlink_to(file.absolute())
        yield Path(folder)


def expected(params: Params) -> list[str]:
    """How long the trainings of all stages take on known hardware, side by side on the workers that there are, a line each."""
    from lsvit.cost.estimate import format_seconds, stages
    from lsvit.cost.hardware import known_hardware

    found = [stage for stage in stages(params) if any(work.training for job in stage.jobs for work in job)]
    threads = max(stage.threads for stage in found)
    if params.engine == "ray":
        from lsvit.jobs.cluster import slots

        workers = slots(params.device, threads)
    else:
        workers = workers_here(params.device, threads)
    lines = [f"{sum(len(stage.jobs) for stage in found)} trainings of all stages, {workers} side by side; about"]
    for name, hardware in known_hardware().items():
        as_many = hardware.model_copy(update={"gpus": workers if hardware.gpus else 0, "cores": workers * threads})
        whole = found[0]._replace(jobs=[job for stage in found for job in stage.jobs], threads=threads)
        lines.append(f"    {format_seconds(whole.time(as_many)['wall'])} on workers like those of {name}")
    return lines


def fill(params: Params) -> None:
    """Run them all. Raises UserError as :func:`lsvit.jobs.pool.run` does."""
    threads = max(params.resolve(Finetune, name).threads for name in params.all_variants)

    def wave(jobs: Sequence[Job]) -> None:
        run(jobs, params.device, threads=threads, distributed=params.distributed, engine=params.engine)

    starts, own = from_scratch(params)
    wave([*starts.values(), *own])
    with linked(starts) as pretrained:
        wave(refined(params, pretrained))
