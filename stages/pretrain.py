"""Stage pretrain: the starting weights of every variant, trained from scratch or fetched."""

import os
from pathlib import Path

from lsvit import launch
from lsvit.data import read_meta
from lsvit.errors import one_line_errors
from lsvit.jobs import TrainConfig, gather_trainings, run_config, show_options
from lsvit.params import load
from lsvit.processes import root
from lsvit.sections import Pretrain, Variant
from lsvit.shards import sha256
from lsvit.tracking import Tracker

DATA, OUT, TABLE = Path("outs/prepare_data"), Path("outs/pretrain"), Path("results/pretrain.csv")


@one_line_errors()
def main() -> None:
    """outs/prepare_data/ -> outs/pretrain/, results/pretrain.csv"""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # the hub client's retries would drown the one line that helps
    launch.warm_up("lsvit.training")
    params = load()
    options = params.resolve(Pretrain)
    preset, repository = params.model_preset, root()
    scratch, file = preset.weights == "scratch", preset.local_file(repository)
    digest = sha256(file) if file and file.is_file() else None
    run = run_config(params, "pretrain", Variant(route="sequential"), read_meta(DATA)["sha256"], digest)
    config = TrainConfig(**run, options=options, seed=options.seed, **(params.distributed.identity if scratch else {}))
    if scratch:
        show_options("pretrain", config, params.values(Pretrain), "one training")
    function = "lsvit.training:train" if scratch else "lsvit.training:fetch"
    job = launch.Job("pretrain", function, config, {"data": DATA, "weights": file and repository / preset.weights}, total=options.epochs)
    tracker = Tracker(f"{params.dataset}/{params.model}", repository)
    launch.run([job], params.device, lambda job, row: tracker.epoch(job.record(), row), options.threads,
               params.distributed if scratch else None)  # fmt: skip
    gather_trainings({options.seed: job.folder}, OUT, TABLE)
    tracker.training(OUT)


if __name__ == "__main__":
    main()
