"""What MLflow shows of inversion over steps, with a slider."""

from collections.abc import Iterator

import numpy as np

from papers.inversion.gallery import INVERTED, Gallery, picture_of
from papers.inversion.section import NO_EDIT
from papers.inversion.tables import FIRST, PATCHES


def images() -> Iterator[tuple[str, int, np.ndarray]]:
    """An image and the input found for its state in a model as it is: a key a model, a step a number of first layers (0: embedding).

    Yields:
        Key, step and picture, uint8 (H, 2 W) or (H, 2 W, 3), the original on the left. Nothing where the arrays are not checked out.
    """
    if not INVERTED.is_dir():
        return
    for keys, arrays in Gallery(INVERTED).find(edit=NO_EDIT, order="sequential"):
        for point, found in zip(map(str, arrays["points"]), arrays["found"], strict=True):
            if point == PATCHES or point.startswith(FIRST):
                pair = [picture_of(each[0]) for each in (arrays["originals"], found)]
                step = 0 if point == PATCHES else int(point.removeprefix(FIRST))
                yield (
                    f"{keys['family']} {keys['weights']} {keys['optimiser']}",
                    step,
                    (255 * np.hstack(pair)).round().astype(np.uint8),
                )
