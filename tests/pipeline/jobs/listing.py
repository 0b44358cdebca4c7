"""Every job of every plan that can be listed without running one."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from papers.exits.compute.plan import Plan as Exits
from papers.inversion.compute.plan import Plan as Inversion
from papers.layershuffle.compute.plan import Analyses, Evaluations
from papers.layershuffle.section import LOGISTIC
from papers.nodes.compute.plan import Plan as Nodes
from papers.painters.compute.plan import Plan as Painters
from papers.questions.compute.plan import Plan as Questions
from papers.smoothing.compute.plan import Plan as Smoothing
from pipeline.config.params import Params
from pipeline.config.sections import Finetune, Pretrain
from pipeline.files import write_json
from pipeline.jobs.job import Job
from pipeline.jobs.plan import Plan

Listed = dict[str, dict[str, Job]]  # kind -> title -> job


def listed(params: Params) -> Listed:
    """The jobs by kind and title, but those that start from another of their stage."""
    refine = Plan(params, Finetune)
    exits, smoothing, inversion = Exits(params), Smoothing(params), Inversion(params)
    branches = exits.options.branches
    steps = [*exits.control(), *exits.at_placements("end_to_end", branches)]
    steps += exits.at_placements("layer_wise", exits.options.layer_wise_branches)
    profiled = [*smoothing.references(), *smoothing.refined()]
    evaluations = Evaluations(params)
    questions = Questions(params)
    questions.options = questions.options.model_copy(update={"common": {}})
    asked: dict[str, list[Job]] = {}
    for (part, _, _), job in questions.jobs().items():
        asked.setdefault(part, []).append(job)
    found: dict[str, Iterable[Job | None]] = {
        "pretrain": Plan(params, Pretrain).starting().values(),
        "finetune": of_seeds(refine.refinements(params.all_variants)),
        "evaluation": [job for (_, name, _), job in evaluations.jobs().items() if name != LOGISTIC],
        "regression": [evaluations.regress()],
        "analysis": Analyses(params).jobs().values(),
        "branches": exits.frozen().values(),
        "costs": [exits.costs()],
        "exits": [job for each in steps for job in each.jobs],
        "head": [exits.head_for(seed) for seed in exits.seeds],
        "smoothing": [smoothing.trained(model).job for model in smoothing.models()],
        "profiles": [each.job for each in smoothing.profiles(profiled)],
        "inversion trainings": of_seeds(inversion.trainings()),
        "inversion": inversion.inversions([]).values(),
        "painters": Painters(params).jobs().values(),
        "nodes": Nodes(params).jobs().values(),
        "passes": asked["passes"],
        "pruning": asked["pruning"],
        "merges": asked["separate"],
        "class images": inversion.class_images([]).values(),
    }
    return {kind: _by_title([job for job in jobs if job]) for kind, jobs in found.items()}


def of_seeds(jobs: dict[str, dict[int, Job]]) -> list[Job]:
    return [job for of_variant in jobs.values() for job in of_variant.values()]


def _by_title(jobs: list[Job]) -> dict[str, Job]:
    """Titles are made unique: the two protocols evaluate under one."""
    named: dict[str, Job] = {}
    for job in jobs:
        title = job.title
        while title in named and named[title].key != job.key:
            title += " again"
        named[title] = job
    return named


def leave(params: Params, folder: Path, *others: str) -> None:
    """What the stages before would have left, of `others` than the variants too: small files."""
    assert params.sizes
    counts = dict(zip(("train", "validation", "heldout"), params.sizes, strict=True))
    classes = [str(i) for i in range(params.dataset_preset.num_classes)]
    names = [*params.all_variants, *others]
    for name in ("prepare_data", "pretrain", *names):
        place = "" if name in ("prepare_data", "pretrain", "baseline") else "finetune"
        for seed in params.starts if name == "pretrain" else params.seeds:
            weights = folder / "outs" / place / name / f"seed_{seed}"
            weights.mkdir(parents=True)
            for file in ("weights.safetensors", "weights_heldout.safetensors"):
                content = f"{name} {seed} {file}".encode()
                save_file({"content": np.frombuffer(content, np.uint8)}, weights / file)
    meta = {"sha256": "5" * 64, "counts": counts, "classes": classes}
    write_json(folder / "outs/prepare_data/meta.json", meta)
    rows = ["dataset,model,variant,seed,order,keep,routes,accuracy"]
    for name in names:
        for seed in params.seeds:
            rows += [f"d,m,{name},{seed},{order},12,1,0.5" for order in ("sequential", "arbitrary")]
    (folder / "results").mkdir()
    (folder / "results/prune_eval.csv").write_text("\n".join([*rows, ""]))
