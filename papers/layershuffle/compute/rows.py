"""From what evaluations and analyses left to tidy tables. No torch here."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd

from lsvit.routes import ORDERS
from papers.layershuffle.compute.plan import Analyses, Evaluations
from papers.layershuffle.section import ANALYSIS_NUMBERS, SAMPLER_ROWS, Analysis
from pipeline.config.sections import Finetune
from pipeline.config.variant import BASELINE
from pipeline.jobs.files import ARRAYS, EXECUTION, HISTORY, JUDGES, RESULTS, ROWS, read_meta
from pipeline.jobs.job import Job
from pipeline.jobs.rows import gather_rows, mean_rows, seed_means
from pipeline.training.judging import kept_epoch

OUT = Path("outs/analysis")


def protocol_rows(
    rows: dict[str, pd.DataFrame], epochs: dict[tuple[str, str, int], int]
) -> pd.DataFrame:
    """What each protocol keeps and how it scores: a row a (protocol, variant, seed), accuracy with all layers in both orders.

    Args:
        rows: protocol -> evaluation rows.
        epochs: (protocol, variant, seed) -> epoch kept.
    """
    frames = [
        seed_means(frame).reset_index().assign(protocol=protocol)
        for protocol, frame in rows.items()
    ]
    table = pd.concat(frames, ignore_index=True)
    table["epoch"] = [epochs[c.protocol, c.variant, c.seed] for c in table.itertuples()]
    return table[["protocol", "variant", "seed", "epoch", *ORDERS]].round(6)


def table_metrics(rows: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Few numbers for `dvc metrics` and `dvc exp show`: variant -> order -> mean accuracy with all layers.

    Models that predict positions also have `position_accuracy`, under arbitrary orders.
    """
    full = mean_rows(rows[rows["keep"] == rows.groupby("variant")["keep"].transform("max")])
    metrics: dict[str, dict[str, float]] = {}
    for (variant, order), group in full.groupby(["variant", "order"], sort=False):
        values = metrics.setdefault(str(variant), {})
        values[str(order)] = round(
            float(group.groupby("seed", sort=False)["accuracy"].mean().mean()), 6
        )
        if order == "arbitrary" and group["position_accuracy"].notna().any():
            values["position_accuracy"] = round(float(group["position_accuracy"].mean()), 6)
    return metrics


def summarise_analysis(
    numbers: dict[tuple[str, int], dict[str, dict[str, float]]], options: Analysis
) -> dict[str, Any]:
    """Mean and standard deviation over the seeds of every number of the analysis, by model, and each seed's value with its
    standard error over the images."""
    rows = [
        {"name": name, "seed": str(seed), "number": number, **found}
        for (name, seed), values in numbers.items()
        for number, found in values.items()
    ]
    models: dict[str, Any] = {}
    for (name, number), group in pd.DataFrame(rows).groupby(["name", "number"], sort=False):
        models.setdefault(str(name), {})[str(number)] = {
            "mean": round(float(group["value"].mean()), 6),
            "std": _number(group["value"].std()),
            "n": len(group),
            "seeds": dict(zip(group["seed"], group["value"], strict=True)),
            "errors": dict(zip(group["seed"], group["error"], strict=True)),
        }
    return {"layer": options.layer, "images": options.images, "models": models}


def _number(value: float) -> float | None:
    return None if pd.isna(value) else round(float(value), 6)


def keep_evaluations(plan: Evaluations, jobs: dict[tuple[str, str, int], Job]) -> None:
    """Write results/prune_eval.csv (a row a route), samplers.csv, protocols.csv, cell.json and metrics.json (means)."""
    params, meta = plan.params, read_meta(plan.data)

    def gather(protocol: str, file: str) -> pd.DataFrame:
        files = {key[1:]: job.folder / file for key, job in jobs.items() if key[0] == protocol}
        return gather_rows(params.dataset, params.model, files)

    rows = {protocol: gather(protocol, ROWS) for protocol in plan.protocols}
    rows[params.protocol].to_csv(RESULTS / "prune_eval.csv", index=False, lineterminator="\n")
    gather(params.protocol, SAMPLER_ROWS).to_csv(
        RESULTS / "samplers.csv", index=False, lineterminator="\n"
    )
    epochs = {}
    for protocol, name, seed in jobs:
        history = json.loads((plan.weights_of(name, seed).parent / HISTORY).read_text())
        epochs[protocol, name, seed] = int(
            kept_epoch(history, params.all_variants[name], JUDGES[protocol])["epoch"]
        )
    protocol_rows(rows, epochs).to_csv(RESULTS / "protocols.csv", index=False, lineterminator="\n")
    own = rows[params.protocol]
    shown = own[own["variant"].isin([BASELINE, *params.variants])]  # a scale adds controls
    (RESULTS / "metrics.json").write_text(json.dumps(table_metrics(shown), indent=1) + "\n")
    ran_on = {
        mark.read_text().strip()
        for weights in {plan.weights_of(*key[1:]) for key in jobs}
        for mark in weights.parent.glob(EXECUTION)
    }
    cell = {
        "dataset": params.dataset,
        "model": params.model,
        "scale": params.cell.scale,
        "protocol": params.protocol,
        "seeds": params.seeds,
        "classes": len(meta["classes"]),
        "images": meta["counts"],
        "latin": [
            name for name in params.all_variants if params.resolve(Finetune, name).per == "latin"
        ],
        "hardware": sorted(ran_on),
    }
    (RESULTS / "cell.json").write_text(json.dumps(cell) + "\n")


def keep_analyses(plan: Analyses, jobs: dict[tuple[str, int], Job]) -> None:
    """Write outs/analysis/<model>.npz and results/analysis.json (mean and std over the seeds)."""
    OUT.mkdir(parents=True, exist_ok=True)
    for (name, seed), job in jobs.items():
        shutil.copyfile(job.folder / ARRAYS, OUT / f"{name}_seed_{seed}.npz")
    numbers = {
        key: json.loads((job.folder / ANALYSIS_NUMBERS).read_text()) for key, job in jobs.items()
    }
    (RESULTS / "analysis.json").write_text(
        json.dumps(summarise_analysis(numbers, plan.options), indent=1) + "\n"
    )
