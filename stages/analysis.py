"""Stage analysis: UMAP of a layer's output and class-token contributions, for the starting weights and for LayerShuffle."""

import json
import shutil
from pathlib import Path

from lsvit import launch
from lsvit.data import read_meta
from lsvit.errors import one_line_errors
from lsvit.jobs import ANALYSIS_ARRAYS, ANALYSIS_NUMBERS, JUDGES, AnalysisConfig, run_config, starting_weights, weights_file
from lsvit.params import load
from lsvit.processes import root
from lsvit.sections import Analysis, Finetune, Pretrain, Variant
from lsvit.shards import sha256
from lsvit.tables import summarise_analysis
from lsvit.tracking import Tracker

DATA, OUT, SUMMARY = Path("outs/prepare_data"), Path("outs/analysis"), Path("results/analysis.json")


@one_line_errors()
def main() -> None:
    """outs/pretrain/, outs/finetune/ -> outs/analysis/<model>.npz, results/analysis.json (mean and std over the seeds)"""
    launch.warm_up("lsvit.analysis")
    params = load()
    options = params.resolve(Analysis)
    models = {("pretrained", params.resolve(Pretrain).seed): (starting_weights(), Variant(route="sequential"))}
    for name in options.variants:
        for seed in params.seeds:
            weights = Path("outs/finetune") / name / f"seed_{seed}" / weights_file(JUDGES[params.protocol])
            models[name, seed] = (weights, params.all_variants[name])
    jobs = {}
    for (name, seed), (weights, variant) in models.items():
        run = run_config(params, name, variant, read_meta(DATA)["sha256"], sha256(weights))
        config = AnalysisConfig(**run, options=options, precision=params.resolve(Finetune).precision)
        inputs = {"data": DATA, "weights": weights}
        jobs[name, seed] = launch.Job(f"{name} seed {seed}", "lsvit.analysis:analyse", config, inputs)
    launch.run(list(jobs.values()), params.device)
    OUT.mkdir(parents=True, exist_ok=True)
    for (name, seed), job in jobs.items():
        shutil.copyfile(job.folder / ANALYSIS_ARRAYS, OUT / f"{name}_seed_{seed}.npz")
    summary = summarise_analysis({key: json.loads((job.folder / ANALYSIS_NUMBERS).read_text()) for key, job in jobs.items()}, options)
    SUMMARY.write_text(json.dumps(summary, indent=1) + "\n")
    Tracker(f"{params.dataset}/{params.model}", root()).results("analysis")


if __name__ == "__main__":
    main()
