"""What a training, an evaluation and an analysis depend on, and how their files are gathered. No torch here."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any, Literal

from lsvit.errors import UserError
from lsvit.inversion_sections import ClassImages, Descent, InversionMeasure, Part, Transplant
from lsvit.params import Params, Value
from lsvit.presets import ModelPreset, Preset
from lsvit.routes import Order, training_order
from lsvit.sections import Analysis, BranchTraining, Optimisation, PruneEval, Section, SmoothingProfiles, Variant

Row = dict[str, float]  # one epoch's metrics, names {suite}/{metric}
WEIGHTS, HISTORY, FINAL, CONFIG = "weights.safetensors", "history.json", "final.json", "config.json"
EXIT_ROWS, EXIT_ARRAYS, EXIT_WEIGHTS, EXIT_COSTS = "rows.csv", "arrays.npz", "exits.safetensors", "costs.json"
EXITS_IN_USE = "exits.json"  # beside the weights of a backbone's exits: those worth using, with their costs
LAST_EXIT = "final"  # the model's own head, beside the names of the branches
EXECUTION = "execution.txt"  # the processor, and what `auto` picked on it
EVALUATION_ROWS, SAMPLER_ROWS, ANALYSIS_ARRAYS, ANALYSIS_NUMBERS = "rows.csv", "samplers.csv", "arrays.npz", "numbers.json"
PROFILE = "profile.json"
INVERSION_ROWS, INVERSION_ARRAYS = "rows.csv", "arrays.npz"
JUDGES = {"paper": "validation", "heldout": "heldout"}  # protocol -> the split whose loss chooses the epoch


class RunConfig(Section):
    """What every job depends on; the digests stand for the data and the weights."""

    title: str  # the variant's name
    dataset: str
    model_name: str
    model: ModelPreset
    variant: Variant
    device: str
    deterministic: bool = False
    data_sha256: str
    weights_sha256: str | None


class TrainConfig(RunConfig):
    """One training; `weights` are the starting weights."""

    options: Optimisation
    seed: int
    world_size: int = 1  # processes of one training
    routes: Literal["shared", "own"] = "shared"  # by the processes

    @property
    def precision(self) -> str:
        """Of the training."""
        return self.options.precision


class EvalConfig(RunConfig):
    """One evaluation; `seed` is the training's, so that every seed is evaluated on routes of its own."""

    seed: int
    options: PruneEval
    precision: str


class AnalysisConfig(RunConfig):
    """The analysis of one model."""

    options: Analysis
    precision: str


class ExitConfig(RunConfig):
    """Early exits on one frozen backbone; `seed` is the backbone's training's, and of the branches'."""

    options: BranchTraining
    tuning: Optimisation
    precision: str
    seed: int


class ProfileConfig(RunConfig):
    """The smoothness of one model along routes in one order; `seed` is the training's, or of a random initialisation."""

    options: SmoothingProfiles
    precision: str
    order: Order
    seed: int


class InversionConfig(RunConfig):
    """Inversions of one model along routes in one order; `seed` is the training's, or of a random initialisation."""

    options: InversionMeasure
    descent: Descent
    alone: bool  # invert layers alone too
    order: Order
    ablation: list[Part]  # taken out of every block
    transplant: list[Transplant]  # taken over from the donor
    donor_sha256: str | None = None
    precision: Literal["fp32"] = "fp32"  # distances fall below what half precision can tell
    seed: int


class ClassImagesConfig(RunConfig):
    """The class-maximising inputs of one model; another training of it tells what it takes them for."""

    options: ClassImages
    judge_sha256: str | None
    precision: Literal["fp32"] = "fp32"
    seed: int


ModelConfig = TrainConfig | EvalConfig | AnalysisConfig | ExitConfig | ProfileConfig | InversionConfig | ClassImagesConfig


def run_config(
    params: Params, title: str, variant: Variant, data_sha256: str, weights_sha256: str | None, preset: ModelPreset | None = None
) -> dict[str, Any]:  # fmt: skip
    """The fields of a RunConfig for one variant of the chosen model and data set; `preset` stands in for the model's own.

    Overrides of sections are left out: a job's own options hold their effect, and others must not change its key.
    """
    model = (preset or params.model_preset).model_copy(update={key: {} for key in Preset.model_fields})
    variant = variant.model_copy(update={"finetune": {}})
    return {
        "title": title, "dataset": params.dataset, "model_name": params.model, "model": model, "variant": variant,
        "device": params.device, "deterministic": params.deterministic, "data_sha256": data_sha256, "weights_sha256": weights_sha256,
    }  # fmt: skip


def weights_file(judge: str) -> str:
    """File name of the weights of the epoch that a split, "validation" or "heldout", chose."""
    return WEIGHTS if judge == "validation" else f"weights_{judge}.safetensors"


def starting_weights(folder: Path = Path("outs/pretrain")) -> Path:
    """The weights that stage pretrain left: of the epoch that held-out images chose, if some are held out.

    Raises:
        UserError: there are none.
    """
    for judge in ("heldout", "validation"):
        found = sorted(folder.glob(f"seed_*/{weights_file(judge)}"))
        if found:
            return found[0]
    raise UserError(f"{folder}: no weights; `dvc repro pretrain` makes them")


def judging_loss(judge: str, variant: Variant) -> str:
    """The metric that chooses the epoch on the judging split: the loss that is trained for, in the order that is trained for."""
    return f"{judge}/{training_order(variant.route)}/{'objective' if variant.exits else 'loss'}"


def kept_epoch(history: list[Row], variant: Variant, judge: str = "validation") -> Row:
    """The epoch whose weights were kept: lowest :func:`judging_loss`, last of equals."""
    return min(reversed(history), key=lambda row: row[judging_loss(judge, variant)])


def gather_trainings(folders: dict[int, Path], out: Path, table: Path, judge: str = "validation") -> None:
    """Copy finished trainings, by seed, to `out/seed_<n>/`, add `final.json`, and write all epochs to one CSV table.

    `final.json` holds the validation metrics of the epoch that the judging split chose.
    """
    rows: list[dict[str, Any]] = []
    for seed, folder in folders.items():
        target = out / f"seed_{seed}"
        target.mkdir(parents=True, exist_ok=True)
        for path in [*folder.glob("weights*"), folder / HISTORY, folder / CONFIG, *folder.glob(EXECUTION)]:
            shutil.copyfile(path, target / path.name)
        history = json.loads((folder / HISTORY).read_text())
        config = json.loads((folder / CONFIG).read_text())
        kept = kept_epoch(history, Variant.model_validate(config["variant"]), judge) if history else {}
        final = {key.replace("validation/", ""): value for key, value in kept.items() if key.startswith(("validation/", "epoch"))}
        (target / FINAL).write_text(json.dumps(final, indent=1) + "\n")
        rows += [{"seed": seed, **row} for row in history]
    table.parent.mkdir(parents=True, exist_ok=True)
    with open(table, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["seed", "epoch"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def show_values(title: str, values: dict[str, Value]) -> None:
    """Print every effective value of a section and the place it comes from."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table("key", "value", "from", title=title, box=SIMPLE_HEAD, title_justify="left")
    for key, (value, source) in values.items():
        table.add_row(key, str(value), source)
    Console(width=None if Console().is_terminal else 110).print(table)


def show_options(title: str, config: TrainConfig, values: dict[str, Value], count: str) -> None:
    """Print the one table of every effective hyper-parameter and the place it comes from."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table("key", "value", "from", title=f"{title}: {count}", box=SIMPLE_HEAD, title_justify="left")
    model = {"dataset": config.dataset, "model": config.model_name, "device": config.device, "deterministic": config.deterministic}
    preset = config.model.model_dump(include={"timm", "weights", "init_std", "num_classes", "head"}) | config.model.kwargs
    for key, value in model.items():
        table.add_row(key, str(value), key)
    for key, value in preset.items():
        table.add_row(key, str(value), f"models.{config.model_name}")
    if config.world_size > 1:
        table.add_row("processes", f"{config.world_size}, routes {config.routes}", "distributed")
    for key, value in config.variant.model_dump(exclude_none=True, exclude={"finetune"}).items():
        if value != {}:
            table.add_row(key, str(value), title if title in ("baseline", "pretrain") else f"variants.{title}")
    hidden = {"baseline_epochs"} | (set() if config.variant.position.predict else {"position_weight"})
    for key, (value, source) in values.items():
        if key not in hidden:
            table.add_row(key, str(value), source)
    Console(width=None if Console().is_terminal else 110).print(table)
