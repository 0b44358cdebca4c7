"""Stage prepare-data: verify the raw images and write uint8 arrays."""

from pathlib import Path

from lsvit.data import prepare
from lsvit.errors import one_line_errors
from lsvit.params import load


@one_line_errors()
def main() -> None:
    """data/ -> outs/prepare_data/"""
    params = load()
    meta = prepare(params.dataset, params.dataset_preset, Path("data/fashion_mnist_10k"), Path("outs/prepare_data"))
    print(f"{params.dataset}: {meta['counts']}, images {meta['image_shape']}")


if __name__ == "__main__":
    main()
