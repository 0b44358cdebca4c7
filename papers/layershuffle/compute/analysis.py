"""What layers put out at which position (LayerShuffle, section 4.3).

UMAP of a layer's output, and the contributions of layers to the class token.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lsvit.routed import RoutedModel, Samples
from lsvit.routes import arbitrary, generator
from papers.layershuffle.section import ANALYSIS_NUMBERS, Analysis, AnalysisConfig
from pipeline.data.splits import Split
from pipeline.errors import UserError
from pipeline.files import write_json
from pipeline.jobs.files import ARRAYS
from pipeline.training.devices import Execution
from pipeline.training.scoring import batches_along, open_model, open_split

BATCH_SIZE = 250
RESAMPLES = 200
RIDGE = 10.0 ** np.arange(-1, 6)  # strengths of the regression that reads positions


class Recording:
    """A tap: the whole output of one layer, and the norms of all layers' contributions.

    A contribution is that to the class token, z_t^0 - z_(t-1)^0. Models without a class token
    classify the mean of their tokens, which is taken instead.
    """

    def __init__(self, model: RoutedModel, layer: int, batch: int) -> None:
        self.class_token = model.has_class_token
        self.layer = layer
        self.norms = torch.zeros(batch, model.num_layers)  # by sample and layer
        self.outputs = torch.empty(batch, 0)  # (B, N * D) once the layer has run

    def __call__(
        self, depth: int, layer: int, before: Tensor, after: Tensor, samples: Samples
    ) -> None:
        """Record what a layer makes of n images; states (n, N, D)."""
        change = after - before
        change = change[:, 0] if self.class_token else change.mean(dim=1)  # (n, D)
        self.norms[samples, layer] = change.float().norm(dim=-1).cpu()
        if layer == self.layer:
            outputs = after.float().flatten(1).cpu()
            if not self.outputs.numel():
                self.outputs = torch.zeros(len(self.outputs), outputs.shape[1])
            self.outputs[samples] = outputs


@torch.inference_mode()
def record(
    model: RoutedModel,
    split: Split,
    chosen: np.ndarray,
    routes: np.ndarray,
    layer: int,
    execution: Execution,
) -> tuple[np.ndarray, np.ndarray]:
    """Run images of a split, each along its own route, as the paper does one by one.

    Args:
        model: of L layers.
        split: of the images.
        chosen: (n,), which images.
        routes: (n, L), a row an image.
        layer: whose output is kept.
        execution: device and precision.

    Returns:
        (outputs of `layer` (n, N * D), contribution norms by layer (n, L)).
    """
    model.eval()
    recordings = []
    batches = batches_along(split, torch.from_numpy(chosen), torch.from_numpy(routes), BATCH_SIZE)
    for _, images, _, route in batches:
        recording = Recording(model, layer, len(images))
        with execution.context():
            model(images, route, [recording])
        recordings.append(recording)
    outputs = torch.cat([recording.outputs for recording in recordings])
    norms = torch.cat([recording.norms for recording in recordings])
    return outputs.numpy(), norms.numpy()


def project(vectors: np.ndarray, options: Analysis) -> np.ndarray:
    """UMAP of (n, N * D) vectors to the plane (n, 2), repeatable: fixed seed, one thread."""
    import warnings

    from sklearn.neighbors import NearestNeighbors
    from umap import UMAP, umap_

    # numba would compile both anew in every process, for 6 s.
    for compiled in (umap_.smooth_knn_dist, umap_.compute_membership_strengths):
        with suppress(RuntimeError):  # no folder to keep them in
            compiled.enable_caching()
    # Exact neighbours from scikit-learn, as umap's own for few points, without 8 s of compilation.
    nearest = NearestNeighbors(n_neighbors=options.neighbors).fit(vectors)
    distances, neighbours = nearest.kneighbors(vectors)
    reducer = UMAP(
        n_neighbors=options.neighbors,
        min_dist=options.min_dist,
        random_state=options.seed,
        n_jobs=1,
        precomputed_knn=(neighbours, distances.astype(np.float32)),
    )
    with warnings.catch_warnings():
        # It warns that new points could not be added later. None are.
        warnings.filterwarnings("ignore", message="precomputed_knn")
        return np.asarray(reducer.fit_transform(vectors), dtype=np.float32)


def tell_positions(vectors: np.ndarray, positions: np.ndarray, linear: bool = False) -> np.ndarray:
    """Predict the positions (n,) of a layer from vectors (n, D), 5-fold cross-validated.

    Regression on the 10 nearest neighbours, or `linear` ridge regression, of which each fold
    chooses the strength on its own images.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.model_selection import KFold, cross_val_predict
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    reader = KNeighborsRegressor(10)
    if linear:
        reader = make_pipeline(StandardScaler(), RidgeCV(alphas=RIDGE))
        vectors = vectors.astype(np.float64)
    folds = KFold(5, shuffle=True, random_state=0)
    return cross_val_predict(reader, vectors, positions, cv=folds)


def analysis_numbers(
    plane: np.ndarray,
    vectors: np.ndarray,
    positions: np.ndarray,
    norms: np.ndarray,
    layer: int,
) -> dict[str, dict[str, float]]:
    """Compute the numbers of one model, each with its standard error over the images.

    The error is that of a bootstrap of 200 resamples of images, each with its own order.

    Args:
        plane: (n, 2).
        vectors: (n, N * D), what the plane is a projection of.
        positions: (n, L), where each layer ran.
        norms: (n, L), of its contribution.
        layer: whose outputs the plane shows.

    Returns:
        Number -> `value` and `error`. `position_r2` is how well the plane tells where `layer` ran,
        R^2 of :func:`tell_positions`, and `position_r2_whole` how well the whole outputs do,
        linearly. `early_detached` is how far the points of positions in the
        first quarter stand apart in the plane: their mean silhouette, 1 far away from all others, 0
        among them. See :func:`contribution_numbers` for the others.
    """
    from sklearn.metrics import r2_score, silhouette_samples

    places = positions[:, layer]
    from_plane = tell_positions(plane, places)
    from_whole = tell_positions(vectors, places, linear=True)
    is_early = places < max(1, norms.shape[1] // 4)
    apart = silhouette_samples(plane, is_early)

    def compute(images: np.ndarray) -> dict[str, float]:
        numbers = {
            "position_r2": float(r2_score(places[images], from_plane[images])),
            "position_r2_whole": float(r2_score(places[images], from_whole[images])),
            "early_detached": float(apart[images][is_early[images]].mean()),
        }
        return numbers | contribution_numbers(positions[images], norms[images])

    rng = generator("analysis bootstrap")
    count = len(plane)
    resampled = [compute(rng.integers(count, size=count)) for _ in range(RESAMPLES)]
    numbers = {}
    for name, value in compute(np.arange(count)).items():
        error = float(np.std([resample[name] for resample in resampled], ddof=1))
        numbers[name] = {"value": round(value, 6), "error": round(error, 6)}
    return numbers


def contribution_numbers(positions: np.ndarray, norms: np.ndarray) -> dict[str, float]:
    """Compute the numbers behind figures 4c and 4d.

    Args:
        positions: (n, L), where each layer ran for each image.
        norms: (n, L), of its contribution.

    Returns:
        `distance_spearman`: mean over layers of Spearman's correlation of |position - original
        place| with the norm. The paper says negative for LayerShuffle.
        `near_far_ratio`: mean norm within 1 of the original place over mean norm at least half the
        depth away. The paper says above 1.
        `slope_late_minus_early`: Spearman's correlation of position with the norm, mean of the last
        quarter of the layers minus the first quarter. Positive where each layer gives most near its
        own end.
    """
    num_layers = norms.shape[1]
    distance = np.abs(positions - np.arange(num_layers))
    slopes = _spearman(positions, norms)
    quarter = max(1, num_layers // 4)
    relative = norms / norms.mean(axis=0)
    near = relative[distance <= 1].mean()
    far = relative[distance >= num_layers // 2].mean()
    return {
        "distance_spearman": float(np.mean(_spearman(distance, norms))),
        "near_far_ratio": float(near / far),
        "slope_late_minus_early": float(slopes[-quarter:].mean() - slopes[:quarter].mean()),
    }


def _spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's correlation of each column (n, L) with the other's: (L,)."""
    from scipy.stats import rankdata, zscore

    return (zscore(rankdata(a, axis=0)) * zscore(rankdata(b, axis=0))).mean(axis=0)


def analyse(
    config: AnalysisConfig, data: Path, weights: Path, folder: Path, report: Callable[[dict], None]
) -> None:
    """Analyse one model. Images and orders come from the section's seed, the same for all models.

    Writes `arrays.npz` (plane (n, 2), positions (n, L), norms (n, L)) and `numbers.json`.
    """
    torch.set_num_threads(1)
    options = config.options
    model, execution = open_model(config, data, weights)
    report({"text": f"runs on {execution}"})
    split = open_split(config, data, "validation", model)
    if options.images > len(split):
        raise UserError(
            f"analysis.images: found {options.images}, "
            f"accepted: at most the {len(split)} validation images"
        )
    chosen = generator("analysis", options.seed).permutation(len(split))[: options.images]
    generators = [generator("analysis", options.seed, image) for image in range(options.images)]
    routes = np.array([arbitrary(rng, model.num_layers) for rng in generators])
    vectors, norms = record(model, split, chosen, routes, options.layer, execution)
    report({"cell": f"{len(chosen)} images recorded"})
    positions = np.argsort(routes, axis=1)  # positions[i, layer]: where the layer ran for image i
    plane = project(vectors, options)
    numbers = analysis_numbers(plane, vectors, positions, norms, options.layer)
    np.savez(folder / ARRAYS, plane=plane, positions=positions.astype(np.int16), norms=norms)
    write_json(folder / ANALYSIS_NUMBERS, numbers)
