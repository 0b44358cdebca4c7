"""The model card of an export: what was trained, measured and left open."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Template

from lsvit.predict import MODEL, Opened
from pipeline.config.variant import BASELINE
from pipeline.declared import ran_with
from pipeline.files import read_json
from pipeline.jobs.files import FINETUNED, RESULTS, sha256
from pipeline.jobs.rows import read_rows
from pipeline.report.evaluations import summarise
from pipeline.report.statistics import METHOD
from pipeline.report.tables import markdown_table

TEMPLATE = Path(__file__).with_name("card.md")
JUDGES = {"paper": "The reported validation", "heldout": "Held-out"}


def make_card(
    opened: Opened,
    record: dict[str, Any],
    spec: dict[str, Any],
    origin: dict[str, Any],
    notes: list[str],
    stock: bool,
    out: Path,
) -> str:
    """Fill the template.

    Args:
        opened: the model.
        record: what its training was made with, all defaults filled in.
        spec: the export's lsvit.json.
        origin: where the starting weights come from; {}: drawn at random.
        notes: of what stock timm does not run as it is, a sentence each.
        stock: stock timm runs it in its original order.
        out: the export, with the weights.
    """
    cells = measure(spec)
    channels, height, _ = opened.data["input_size"]
    layers = tuple(range(opened.model.num_layers))
    if spec["variant"]["per"] == "latin":
        notes = [
            "its layers ran along Latin orders in training (lsvit.latin), "
            "not one random order a batch as in the paper",
            *notes,
        ]
    template = Template(TEMPLATE.read_text("utf-8"), trim_blocks=True, keep_trailing_newline=True)
    return template.render(
        spec,
        front=describe_front(spec, origin, cells),
        architecture=record["model"]["timm"].partition(".")[0],
        num_layers=len(layers),
        channels=channels,
        height=height,
        num_classes=len(opened.classes),
        start=describe_start(record["model"], origin),
        data_sha256=record["data_sha256"],
        options=describe_options(record, spec),
        accuracy=None if cells is None else describe_accuracy(cells),
        stock=stock,
        backwards=layers[::-1],
        half=layers[::2],
        judge=JUDGES[spec["protocol"]],
        notes=notes,
        digest=sha256(out / MODEL),
    )


def measure(spec: dict[str, Any]) -> pd.DataFrame | None:
    """Accuracy of a training's variant from `results/`, as `summarise` gives it.

    The column `own` has that of its seed alone. None where `results/` is of another data set,
    model, scale, protocol, of other seeds or of an earlier training.
    """
    cell, file = RESULTS / "cell.json", RESULTS / "prune_eval.csv"
    if not cell.is_file() or not file.is_file():
        return None
    ran = read_json(cell)
    if any(ran.get(key) != spec[key] for key in ("dataset", "model", "scale", "protocol")):
        return None
    trained = FINETUNED.with_name(BASELINE) if spec["name"] == BASELINE else FINETUNED
    if not ran_with("prune-eval", str(trained)):
        return None
    rows = read_rows(file)
    rows = rows[rows["variant"] == spec["name"]]
    if "choose" in rows:  # the card has one reading of which layers are kept
        rows = rows[rows["choose"].isin(["all", "random"])]
    own = rows[rows["seed"] == spec["seed"]]
    if own.empty:
        return None
    own = summarise(own)[["order", "keep", "mean"]].rename(columns={"mean": "own"})
    return summarise(rows).merge(own, on=["order", "keep"])


def describe_front(spec: dict[str, Any], origin: dict[str, Any], cells: pd.DataFrame | None) -> str:
    """The front matter that the hub reads."""
    results = []
    for cell in () if cells is None else cells[cells["full"]].itertuples():
        result = EvalResult(
            task_type="image-classification",
            dataset_type=spec["dataset"],
            dataset_name=spec["dataset"],
            metric_type="accuracy",
            metric_name=f"top-1 accuracy (%), {cell.order} order",
            metric_value=round(100 * cell.own, 2),
        )
        results.append(result)
    front = ModelCardData(
        license=origin.get("license"),
        library_name="timm",
        pipeline_tag="image-classification",
        base_model=origin.get("hf_hub_id"),
        tags=["timm", "image-classification", "lsvit"],
        datasets=[spec["dataset"]],
        metrics=["accuracy"],
        model_name=f"{spec['model']}_{spec['name']}",
        eval_results=results or None,
    )
    return front.to_yaml()


def describe_start(preset: dict[str, Any], origin: dict[str, Any]) -> str:
    """Where the starting weights come from."""
    if "sha256" in origin:
        source = origin.get("hf_hub_id") or origin["file"]
        return f"{origin['timm']} ({source}, sha256 `{origin['sha256']}`)"
    made = {key: preset[key] for key in ("kwargs", "init_std", "init_growth") if preset[key]}
    how = "random" if preset["weights"] == "random" else "trained from scratch on the same data"
    return f"{how} ({preset['timm']}, `{json.dumps(made)}`)"


def describe_options(record: dict[str, Any], spec: dict[str, Any]) -> str:
    """A table of every hyper-parameter."""
    options = record["variant"] | record["options"]
    options |= {key: spec[key] for key in ("seed", "head", "protocol")}
    options.pop("finetune", None)  # what it sets stands in the options
    rows = [{"key": key, "value": f"`{json.dumps(value)}`"} for key, value in options.items()]
    return markdown_table(rows)


def describe_accuracy(cells: pd.DataFrame) -> str:
    """A table of the measured accuracies."""
    names = {"keep": "layers kept", "n": "seeds", "low": "from", "high": "to", "own": "this seed"}
    shares = (100 * cells[["mean", "low", "high", "own"]]).map("{:.2f}".format)
    table = cells[["order", "keep", "n", "orders", "images"]]
    table = table.astype({"orders": int, "images": int}).join(shares).rename(columns=names)
    return (
        "Top-1 accuracy in % on the validation images. *mean*: over the seeds, these weights are "
        f"of one; *from*, *to*: {METHOD}; *orders*: different ones behind a seed's mean.\n\n"
        f"{markdown_table(table)}"
    )
