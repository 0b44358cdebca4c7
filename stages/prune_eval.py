"""Stage prune-eval: accuracy of every model with k layers kept, sequential and arbitrary, over many routes."""

import json
from pathlib import Path

from lsvit import launch
from lsvit.data import read_meta, sha256
from lsvit.errors import one_line_errors
from lsvit.jobs import EVALUATION_ROWS, WEIGHTS, EvalConfig, run_config
from lsvit.params import Finetune, PruneEval, load
from lsvit.tables import gather_evaluations, summarise, table_metrics
from lsvit.tracking import Tracker

DATA, ROWS, METRICS = Path("outs/prepare_data"), Path("results/prune_eval.csv"), Path("results/metrics.json")


@one_line_errors()
def main() -> None:
    """outs/finetune/ -> results/prune_eval.csv (a row a route), results/metrics.json (means)"""
    launch.warm_up("lsvit.evaluation")
    params = load()
    options = params.resolve(PruneEval)
    jobs = {}
    for name, variant in params.all_variants.items():
        precision = params.resolve(Finetune, name).precision
        for seed in params.seeds:
            weights = Path("outs/finetune") / name / f"seed_{seed}" / WEIGHTS
            run = run_config(params, name, variant, read_meta(DATA)["sha256"], sha256(weights))
            config = EvalConfig(**run, options=options, precision=precision)
            inputs = {"data": DATA, "weights": weights}
            jobs[name, seed] = launch.Job(f"{name} seed {seed}", "lsvit.evaluation:evaluate", config, inputs, total=len(options.keep))
    launch.run(list(jobs.values()), params.device)
    rows = gather_evaluations(params.dataset, params.model, {key: job.folder / EVALUATION_ROWS for key, job in jobs.items()})
    rows.to_csv(ROWS, index=False, lineterminator="\n")
    METRICS.write_text(json.dumps(table_metrics(summarise(rows)), indent=1) + "\n")
    Tracker(f"{params.dataset}/{params.model}", launch.root()).results("prune-eval")


if __name__ == "__main__":
    main()
