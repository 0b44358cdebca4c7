"""Stage prune-eval: accuracy of every model with k layers kept, sequential and arbitrary, over many routes and samplers."""

import json
from pathlib import Path

import pandas as pd

from lsvit import launch
from lsvit.data import read_meta
from lsvit.errors import one_line_errors
from lsvit.jobs import EVALUATION_ROWS, JUDGES, SAMPLER_ROWS, EvalConfig, kept_epoch, run_config, weights_file
from lsvit.params import load
from lsvit.processes import root
from lsvit.sections import Finetune, PruneEval
from lsvit.shards import sha256
from lsvit.tables import gather_evaluations, protocol_rows, summarise, table_metrics
from lsvit.tracking import Tracker

DATA, RESULTS = Path("outs/prepare_data"), Path("results")


@one_line_errors()
def main() -> None:
    """outs/finetune/ -> results/prune_eval.csv (a row a route), samplers.csv, protocols.csv, cell.json, metrics.json (means)"""
    launch.warm_up("lsvit.evaluation")
    params = load()
    options, data = params.resolve(PruneEval), read_meta(DATA)
    protocols = [protocol for protocol, judge in JUDGES.items() if judge in data["counts"]]
    jobs, epochs = {}, {}
    for name, variant in params.all_variants.items():
        precision = params.resolve(Finetune, name).precision
        for seed in params.seeds:
            folder = Path("outs/finetune") / name / f"seed_{seed}"
            history = json.loads((folder / "history.json").read_text())
            for protocol in protocols:
                weights = folder / weights_file(JUDGES[protocol])
                run = run_config(params, name, variant, data["sha256"], sha256(weights))
                config = EvalConfig(**run, options=options, precision=precision, seed=seed)
                inputs = {"data": DATA, "weights": weights}
                job = launch.Job(f"{name} seed {seed}", "lsvit.evaluation:evaluate", config, inputs, total=len(options.keep) + 1)
                jobs[protocol, name, seed] = job
                epochs[protocol, name, seed] = int(kept_epoch(history, variant, JUDGES[protocol])["epoch"])
    # Where both protocols chose the same epoch they share the job.
    launch.run(list({job.key: job for job in jobs.values()}.values()), params.device)

    def gather(protocol: str, file: str) -> pd.DataFrame:
        files = {key[1:]: job.folder / file for key, job in jobs.items() if key[0] == protocol}
        return gather_evaluations(params.dataset, params.model, files)

    rows = {protocol: gather(protocol, EVALUATION_ROWS) for protocol in protocols}
    rows[params.protocol].to_csv(RESULTS / "prune_eval.csv", index=False, lineterminator="\n")
    gather(params.protocol, SAMPLER_ROWS).to_csv(RESULTS / "samplers.csv", index=False, lineterminator="\n")
    protocol_rows(rows, epochs).to_csv(RESULTS / "protocols.csv", index=False, lineterminator="\n")
    cells = summarise(rows[params.protocol])
    (RESULTS / "metrics.json").write_text(json.dumps(table_metrics(cells), indent=1) + "\n")
    cell = {"dataset": params.dataset, "model": params.model, "protocol": params.protocol, "seeds": params.seeds,
            "classes": len(data["classes"]), "images": data["counts"]}  # fmt: skip
    (RESULTS / "cell.json").write_text(json.dumps(cell) + "\n")
    Tracker(f"{params.dataset}/{params.model}", root()).results("prune-eval")


if __name__ == "__main__":
    main()
