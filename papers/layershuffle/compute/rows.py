"""From what evaluations and analyses left to tidy tables. No torch here."""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd

from lsvit.routes import ORDERS
from papers.layershuffle.compute.live import write_live_models
from papers.layershuffle.compute.plan import Analyses, Evaluations
from papers.layershuffle.section import ANALYSIS_NUMBERS, SAMPLER_ROWS, Analysis
from pipeline.config.sections import Finetune
from pipeline.config.variant import BASELINE
from pipeline.files import read_json, write_json
from pipeline.jobs.files import ARRAYS, HISTORY, JUDGES, RESULTS, read_meta
from pipeline.jobs.job import Job
from pipeline.jobs.rows import mean_rows, seed_means, write_results
from pipeline.training.judging import kept_epoch

OUT = Path("outs/analysis")


def protocol_rows(
    rows: dict[str, pd.DataFrame], epochs: dict[tuple[str, str, int], int]
) -> pd.DataFrame:
    """Say which epoch each protocol keeps, and its accuracy with all layers in both orders.

    Rows of what was not trained, such as the logistic regression, are left out.

    Args:
        rows: protocol -> evaluation rows.
        epochs: (protocol, variant, seed) -> epoch kept.

    Returns:
        A row a (protocol, variant, seed).
    """
    keys = ["protocol", "variant", "seed"]
    means = pd.concat({protocol: seed_means(frame) for protocol, frame in rows.items()})
    trained = pd.Series(epochs, name="epoch").rename_axis(keys)
    table = means.rename_axis(keys).join(trained, how="inner").reset_index()
    return table[[*keys, "epoch", *ORDERS]].round(6)


def table_metrics(rows: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Select numbers for `dvc metrics`: variant -> order -> mean accuracy with all layers.

    Models that predict positions also have `position_accuracy`, under arbitrary orders.
    """
    full = mean_rows(rows[rows["keep"] == rows.groupby("variant")["keep"].transform("max")])
    arbitrary = full[full["order"] == "arbitrary"]
    table = seed_means(rows).groupby("variant", sort=False).mean()
    table["position_accuracy"] = arbitrary.groupby("variant")["position_accuracy"].mean()
    return {variant: values.dropna().to_dict() for variant, values in table.round(6).iterrows()}


def summarise_analysis(
    numbers: dict[tuple[str, int], dict[str, dict[str, float]]], options: Analysis
) -> dict[str, Any]:
    """Average every number of the analysis over the seeds, by model.

    Each seed's value stands beside it, with its standard error over the images.
    """
    models: dict[str, Any] = {}
    for (name, seed), values in numbers.items():
        for number, value in values.items():
            models.setdefault(name, {}).setdefault(number, {})[str(seed)] = value
    for of_model in models.values():
        for number, seeds in of_model.items():
            table = pd.DataFrame(seeds).T  # a row a seed: value, error
            of_model[number] = {
                "mean": round(table["value"].mean(), 6),
                "std": round(table["value"].std(), 6) if len(table) > 1 else None,
                "n": len(table),
                "seeds": table["value"].to_dict(),
                "errors": table["error"].to_dict(),
            }
    return {"layer": options.layer, "images": options.images, "models": models}


def keep_evaluations(plan: Evaluations, jobs: dict[tuple[str, str, int], Job]) -> None:
    """Write results/prune_eval.csv (a row a route), samplers.csv, protocols.csv, cell.json,
    metrics.json (means) and what the report runs live."""
    params = plan.params
    rows = {}
    epochs = {}
    for protocol in plan.protocols:
        own_jobs = {key[1:]: job for key, job in jobs.items() if key[0] == protocol}
        rows[protocol] = plan.gather(own_jobs)
        trained = {key: job for key, job in own_jobs.items() if key[0] in params.all_variants}
        for variant, seed in trained:
            history = read_json(plan.weights_of(variant, seed).parent / HISTORY, list)
            best = kept_epoch(history, params.all_variants[variant].route, JUDGES[protocol])
            epochs[protocol, variant, seed] = int(best["epoch"])
        if protocol == params.protocol:
            write_results(plan.gather(trained, SAMPLER_ROWS), RESULTS / "samplers.csv")
    write_results(protocol_rows(rows, epochs), RESULTS / "protocols.csv")
    chosen = rows[params.protocol]
    write_results(chosen, RESULTS / "prune_eval.csv")
    # Without the controls that a scale adds.
    chosen = chosen[chosen["variant"].isin([BASELINE, *params.variants])]
    write_json(RESULTS / "metrics.json", table_metrics(chosen))
    write_json(RESULTS / "cell.json", describe_cell(plan), indent=None)
    write_live_models(plan, RESULTS / "shuffle.json")


def describe_cell(plan: Evaluations) -> dict[str, Any]:
    """Name what the cell was made from: data, model, protocol, seeds."""
    params = plan.params
    meta = read_meta(plan.data)
    latin = [name for name in params.all_variants if params.resolve(Finetune, name).per == "latin"]
    return {
        "dataset": params.dataset,
        "model": params.model,
        "scale": params.cell.scale,
        "protocol": params.protocol,
        "seeds": params.seeds,
        "classes": len(meta["classes"]),
        "images": meta["counts"],
        "latin": latin,
    }


def keep_analyses(plan: Analyses, jobs: dict[tuple[str, int], Job]) -> None:
    """Write outs/analysis/<model>.npz and results/analysis.json (mean and std over the seeds)."""
    OUT.mkdir(parents=True, exist_ok=True)
    numbers = {}
    for (name, seed), job in jobs.items():
        shutil.copyfile(job.folder / ARRAYS, OUT / f"{name}_seed_{seed}.npz")
        numbers[name, seed] = read_json(job.folder / ANALYSIS_NUMBERS)
    write_json(RESULTS / "analysis.json", summarise_analysis(numbers, plan.options))
