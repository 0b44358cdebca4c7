"""An exported folder in MLflow's model registry, as a `mlflow.pyfunc` model that `mlflow models serve` answers with."""

import os
from importlib.metadata import requires
from pathlib import Path

import mlflow
import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec
from mlflow.types.schema import Array

from pipeline.deploy.export import find_training
from pipeline.deploy.predict import SPEC, open_weights, read_json
from pipeline.deploy.served import EXPORT
from pipeline.errors import UserError
from pipeline.tracking.runs import Tracker, experiment_name, store_uri


def register(folder: Path, name: str | None = None) -> str:
    """Register an export as the newest version of a model, linked to its training's run if that is tracked.

    Args:
        folder: what :func:`pipeline.deploy.export.export` wrote of a training in `outs/`.
        name: of the registered model; None: `<data set>_<model>`, of which the variants are aliases.

    Returns:
        The version's URI, `models:/NAME@ALIAS`; its alias is the variant's name, and moves to it from an earlier version.

    Raises:
        UserError: there is no store, or it refuses.
    """
    spec, uri = read_json(folder / SPEC), store_uri(Path())
    name = name or f"{spec['dataset']}_{spec['model']}"
    if not (store := Path(uri.removeprefix("sqlite:///"))).is_file() and uri.startswith("sqlite:"):
        raise UserError(
            f"{store}: not found, no MLflow store to register in; `lsvit track sync` makes it, MLFLOW_TRACKING_URI names another"
        )
    signature, example = inputs(folder)
    tracker = Tracker(
        experiment_name("layershuffle", (spec["dataset"], spec["model"], spec["scale"])),
        Path(),
        retries=3,
    )
    os.environ |= {
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_UV_AUTO_DETECT": "false",
    }  # the requirements are given
    try:
        client = tracker.client()
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment(tracker.experiment)
        run = tracker.find(find_training(spec["name"], spec["seed"]))
        made = Model.log(  # `log_model` takes no finished run
            None,
            mlflow.pyfunc,
            name=f"{spec['name']}_seed_{spec['seed']}",
            registered_model_name=name,
            run_id=run.info.run_id if run else None,
            python_model=str(Path(__file__).with_name("served.py")),
            artifacts={EXPORT: str(folder)},
            signature=signature,
            input_example=example,
            code_paths=[
                str(Path(__file__).parents[2] / name) for name in ("lsvit", "pipeline", "papers")
            ],
            pip_requirements=requires("lsvit"),
        )
        version = str(made.registered_model_version)
        for key in ("name", "seed", "scale", "protocol", "weights_sha256"):
            client.set_model_version_tag(
                name, version, "variant" if key == "name" else key, str(spec[key])
            )
        client.set_registered_model_alias(name, spec["name"], version)
    except (MlflowException, OSError) as error:
        raise UserError(
            f"MLflow at {uri} does not register {name!r}: {' '.join(str(error).split())[:200]}"
        ) from None
    return f"models:/{name}@{spec['name']}"


def inputs(folder: Path) -> tuple[ModelSignature, np.ndarray]:
    """What an export takes and answers, see :meth:`pipeline.deploy.served.Served.predict`, and a small grey image."""
    model, data, _ = open_weights(str(folder))
    channels = data["input_size"][0]
    route = [
        ParamSpec("order", DataType.string, "sequential"),
        ParamSpec("keep", DataType.long, model.num_layers),
        ParamSpec("seed", DataType.long, 0),
    ]
    pixels = Schema([TensorSpec(np.dtype(np.float32), (-1, -1, -1, channels))])
    names, numbers = Array(DataType.string), Array(Array(DataType.double))
    answer = {"class": names, "probabilities": numbers, "logits": numbers, "classes": names}
    outputs = Schema([ColSpec(kind, column) for column, kind in answer.items()])
    return ModelSignature(pixels, outputs, ParamSchema(route)), np.full(
        (1, 8, 8, channels), 128, np.float32
    )
