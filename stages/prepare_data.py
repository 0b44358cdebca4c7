"""Stage prepare-data: verify the raw images and decode them once."""

from pathlib import Path

from papers import PAPERS
from pipeline.config.checks import check
from pipeline.config.load import load_checked
from pipeline.config.remarks import describe_lowered
from pipeline.data.prepare import prepare
from pipeline.jobs.processes import stage_process


@stage_process()
def main() -> None:
    """data/, or the data set's folder -> outs/prepare_data/"""
    params = load_checked(papers=PAPERS)
    embedded, out = Path("data/fashion_mnist_10k"), Path("outs/prepare_data")

    def check_sizes(*sizes: int) -> None:
        counted = params.with_sizes(*sizes)
        check(counted)
        if params.sizes is None:  # else check-params has said so
            for line in describe_lowered(counted):
                print(line)

    meta = prepare(
        params.dataset, params.dataset_preset, embedded, out, params.model_preset, check_sizes
    )
    print(f"{params.dataset}: {meta['counts']}, images {meta['image_shape']}")


if __name__ == "__main__":
    main()
