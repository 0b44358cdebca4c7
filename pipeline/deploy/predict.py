"""Opens trained weights of this repository and exported ones, and shows predictions."""

import sys
from pathlib import Path
from typing import Any

from lsvit.checkpoint import CONFIG, SPEC, read_about, read_spec
from lsvit.predict import Opened, find_weights, open_export
from lsvit.routed import RoutedModel
from lsvit.text import plain
from pipeline.config.presets import ModelPreset
from pipeline.config.samplers import ORDERLESS
from pipeline.config.variant import read_variant
from pipeline.data.resize import pixels_of
from pipeline.declared import changed
from pipeline.errors import UserError
from pipeline.files import read_json
from pipeline.jobs.files import DATA, sha256
from pipeline.models.weights import attach, build, input_size, normalisation, user_errors


def open_weights(where: str) -> Opened:
    """Open an exported folder, ``hf-hub:<repository>``, or the weights of a training of `outs/`.

    Raises:
        UserError: there is nothing to open, or it is no model that this project can run.
    """

    def attach_variant(backbone: Any, variant: dict[str, Any]) -> RoutedModel:
        try:
            read = read_variant({"route": "sequential"} | variant)
        except ValueError:
            raise UserError(f"{file.parent / SPEC}: variant: not of this version") from None
        return attach(backbone, read)

    with user_errors():
        file = find_weights(where)
        if read_about(file.parent) is not None:
            return open_export(file, attach_variant)
    return open_training(file)


def training_sha256(where: str) -> str:
    """The sha256 of a training's weights, also of those that were exported from it.

    Raises:
        UserError: there are none.
    """
    with user_errors():
        file = find_weights(where)
        spec = read_spec(file.parent)
    return spec["weights_sha256"] if spec else sha256(file)


def open_training(file: Path) -> Opened:
    """Open the weights of a finished training, of `outs/`.

    Raises:
        UserError: a file is missing, or other images than it was trained on lie in
            `outs/prepare_data/`.
    """
    record = read_json(file.parent / CONFIG)
    try:
        preset = ModelPreset.model_validate(record["model"])
        variant = read_variant(record["variant"])
        data_sha256 = record["data_sha256"]
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{file.parent / CONFIG}: neither of an export nor of a training of this version"
        ) from None
    meta = read_json(DATA / "meta.json") if (DATA / "meta.json").is_file() else {}
    if meta.get("sha256") != data_sha256:
        raise UserError(
            f"{DATA}: not the images that {file} was trained on; "
            "`dvc repro` or `dvc checkout` brings them"
        )
    if changed(file):
        print(
            f"warning: {file}: not as its stage left it, by what DVC noted; "
            "`dvc checkout` brings that back",
            file=sys.stderr,
        )
    if variant.route in ORDERLESS:
        raise UserError(
            f"{file}: trained with route {variant.route}, "
            "accepted: a variant that runs each of its layers once"
        )
    model = build(preset, len(meta["classes"]), variant, file).eval()
    in_chans, size = input_size(model, preset)
    mean, std = normalisation(preset, meta)
    if len(mean) != in_chans:  # grey images are repeated over the channels
        mean, std = mean * in_chans, std * in_chans
    data = {
        "input_size": (in_chans, size, size),
        "mean": mean,
        "std": std,
        "crop_mode": "center",
        "crop_pct": 1.0,
        "interpolation": "bilinear",
    }
    if meta.get("resize") == "timm":
        cfg = pixels_of(preset)
        for key in ("crop_pct", "crop_mode", "interpolation"):
            data[key] = getattr(cfg, key)
    return Opened(model, data, meta["classes"])


def show(found: dict[str, Any]) -> None:
    """Print what :func:`lsvit.predict.predict` found, with image, weights, order and keep.

    Names of files and classes are others' words: neither rich nor the terminal obeys them.
    """
    from rich.markup import escape
    from rich.table import Table

    from pipeline.report.tables import console

    names = [escape(plain(row["class"])) for row in found["top"]]
    image, weights = escape(plain(found["image"])), escape(plain(found["weights"]))
    title = f"{image}: {weights}, {found['order']}, {found['keep']} layers"
    if "exit" in found:
        exit = found["exit"]
        title += f", {exit['branch']} after {exit['depth']} of them, {exit['flops']:.4g} FLOPs"
        if "latency_ms" in exit:
            title += f", {exit['latency_ms']:.3g} ms"
    table = Table("class", "probability")
    if found["orders"] > 1:
        table.add_column("std over orders")
        table.caption = f"{names[0]} is the answer in {found['agree']} of {found['orders']} orders"
    for name, row in zip(names, found["top"], strict=True):
        std = [] if row["std"] is None else [f"{row['std']:.4f}"]
        table.add_row(name, f"{row['probability']:.4f}", *std)
    out = console(80)
    out.print(title)
    out.print(table)
