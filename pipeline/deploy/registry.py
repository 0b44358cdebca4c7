"""Registers an export in MLflow, as a model that `mlflow models serve` answers with."""

import os
import sqlite3
from importlib.metadata import requires
from pathlib import Path

import mlflow
import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature, infer_signature
from mlflow.types import Schema, TensorSpec

from lsvit.checkpoint import read_spec
from lsvit.predict import load
from pipeline.config.paper import Paper
from pipeline.errors import UserError
from pipeline.jobs.files import finetuned
from pipeline.models.weights import user_errors
from pipeline.tracking.runs import Tracker, experiment_name, paper_of
from pipeline.tracking.store import (
    database_of,
    describe,
    is_sqlite,
    store_uri,
    without_password,
)

REPOSITORY = Path(__file__).parents[2]


def register(folder: Path, papers: tuple[Paper, ...], name: str | None = None) -> str:
    """Register an export as the newest version of a model, linked to its training's run.

    Args:
        folder: what :func:`pipeline.deploy.export.export` wrote of a training in `outs/`.
        papers: whose trainings may be in `outs/`.
        name: of the registered model; None: `<data set>_<model>`, with the variants as aliases.

    Returns:
        The version's URI, `models:/NAME@ALIAS`. Its alias is the variant's name, and moves to it
        from an earlier version.

    Raises:
        UserError: there is no store, or it refuses.
    """
    spec = read_spec(folder)
    uri = store_uri(Path())
    store = database_of(uri)
    if is_sqlite(uri) and not store.is_file():
        raise UserError(
            f"{store}: not found, no MLflow store to register in; `lsvit track sync` makes it, "
            "MLFLOW_TRACKING_URI names another"
        )
    with user_errors():
        model, data, _ = load(str(folder))
    channels = data["input_size"][0]
    pixels = TensorSpec(np.dtype(np.float32), (-1, -1, -1, channels))
    route = {"order": "sequential", "keep": model.num_layers, "seed": 0}
    signature = ModelSignature(Schema([pixels]), params=infer_signature(params=route).params)
    name = name or f"{spec['dataset']}_{spec['model']}"
    training = finetuned(spec["name"], spec["seed"]).parent
    cell = (spec["dataset"], spec["model"], spec["scale"])
    experiment = experiment_name(paper_of(training, papers), cell)
    tracker = Tracker(experiment, Path(), live=False)
    os.environ["MLFLOW_UV_AUTO_DETECT"] = "false"  # the requirements are given
    try:
        client = tracker.client
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment(experiment)
        run = tracker.find(training)
        made = Model.log(  # `log_model` takes no finished run
            None,
            mlflow.pyfunc,
            name=f"{spec['name']}_seed_{spec['seed']}",
            registered_model_name=name,
            run_id=run.info.run_id if run else None,
            python_model=str(REPOSITORY / "pipeline/deploy/served.py"),
            artifacts={"export": str(folder)},
            signature=signature,
            input_example=np.full((1, 8, 8, channels), 128, np.float32),
            code_paths=[str(REPOSITORY / "lsvit")],
            pip_requirements=requires("lsvit"),
        )
        version = str(made.registered_model_version)
        client.set_model_version_tag(name, version, "variant", spec["name"])
        for key in ("seed", "scale", "protocol", "weights_sha256"):
            client.set_model_version_tag(name, version, key, str(spec[key]))
        client.set_registered_model_alias(name, spec["name"], version)
    except (MlflowException, OSError, sqlite3.Error) as error:
        place = without_password(uri)
        raise UserError(
            f"MLflow at {place} does not register {name!r}: {describe(error)}"
        ) from None
    return f"models:/{name}@{spec['name']}"
