"""Look at results, check a run, use models. The pipeline itself runs with `uv run dvc repro`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lsvit.cli import WEIGHTS, WEIGHTS_HELP
from pipeline.errors import UserError, one_line_errors

LOOK, CHECK, USE, KEEP = (  # the groups of `lsvit --help`
    "Look at results",
    "Check before or after a run",
    "Use models",
    "Keep the stores",
)
app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__
)
track = typer.Typer(no_args_is_help=True, help="The MLflow store.")
data = typer.Typer(no_args_is_help=True, help="The embedded images.")
app.add_typer(track, name="track", rich_help_panel=KEEP)
app.add_typer(data, name="data", rich_help_panel=KEEP)
Overrides = Annotated[
    list[str] | None, typer.Option("-S", help="KEY=VALUE of params.yaml, as of `dvc exp run`.")
]


@app.command(rich_help_panel=CHECK)
def smoke(
    keep: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Run in this new folder and leave it there."),
    ] = None,
) -> None:
    """Run the whole pipeline on tiny presets, in a copy of the repository, and print its table."""
    import tempfile

    from pipeline.smoke import run

    with tempfile.TemporaryDirectory(prefix="lsvit-smoke-") as temporary:
        folder = keep or Path(temporary)
        run(folder)
        table(folder / "results" / "table1.csv")


@app.command(rich_help_panel=LOOK)
def table(
    file: Annotated[Path, typer.Argument(help="A table1.csv of the pipeline.")] = Path(
        "results/table1.csv"
    ),
) -> None:
    """Print Table 1: this repository's figures beside the published ones."""
    from papers.layershuffle.tables import TABLE1, others_table, paper_table
    from pipeline.jobs.rows import read_rows

    if not file.is_file():
        raise UserError(f"{file}: not found; `dvc repro` makes it, or run in the repository's root")
    rows = read_rows(file)
    missing = [column for column in TABLE1 if column not in rows]
    if missing:
        raise UserError(
            f"{file}: found no column {missing[0]!r}, accepted: a table1.csv of the pipeline"
        )
    title = "Top-1 validation accuracy in %, mean ± standard deviation over seeds"
    print_table(paper_table(rows), title)
    print_table(others_table(rows), "Beside the paper's approaches, in %")


@app.command(rich_help_panel=CHECK)
def claims(
    against: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="A claims.json of another run of the cell; default: the committed one.",
        ),
    ] = None,
    paper: Annotated[
        str | None, typer.Option(help="Print the claims of one, as layershuffle. All are checked.")
    ] = None,
    verdict: Annotated[
        str | None, typer.Option(help="Print those with one, as 'does not hold'.")
    ] = None,
) -> None:
    """Print the reproduction ledger, claim by claim, and check it.

    Ends with exit code 1 if it contradicts the committed ledger, or another one: both decide a
    claim, by the same rule, and differ. Also if a result file was changed by hand. Other verdicts
    that moved are listed.
    """
    from papers import PAPERS
    from pipeline.report.check import check_ledger

    findings = check_ledger(Path("results/claims.json"), PAPERS, against, paper, verdict)
    for note in findings.notes:
        print(note, file=sys.stderr)
    for problem in findings.problems:
        print(f"error: {problem}", file=sys.stderr)
    if findings.problems:
        raise SystemExit(1)
    print("the ledger is what the result files give")
    if findings.compared:
        print(f"it contradicts {against or 'the committed ledger'} nowhere")


@app.command(rich_help_panel=LOOK)
def why(
    target: Annotated[
        str, typer.Argument(help="A claim's id, a figure's name, or a file of results/.")
    ],
    conditions: Annotated[
        list[str] | None,
        typer.Argument(help="Of a file's rows: column=value ..., as results/table1.csv variant=ls"),
    ] = None,
) -> None:
    """Trace a number, a claim, a table or a figure to rows, stage, command, inputs and commit."""
    from papers import PAPERS
    from pipeline.report.why import why

    print("\n".join(why(target, PAPERS, conditions or [])))


@app.command(rich_help_panel=CHECK)
def cost(overrides: Overrides = None) -> None:
    """Print what params.yaml asks for: trainings, images, FLOPs, and time on known hardware."""
    from papers import PAPERS
    from pipeline.config.load import overridden
    from pipeline.cost import known_hardware, show
    from stages.check_params import read_weights_folder

    show(read_weights_folder(overridden(overrides or [], PAPERS)), known_hardware())


@app.command(rich_help_panel=LOOK)
def grid() -> None:
    """Collect Table 1 of the workspace and of all experiments in results/grid.{csv,md,tex}."""
    from papers.layershuffle.grid import TABLE, collect, experiments, write

    if not Path("dvc.yaml").is_file():
        raise UserError(f"{Path.cwd()}: not the root of a clone of the repository")
    cells = collect(experiments())
    if cells.empty:
        raise UserError(
            f"{TABLE}: not found, neither here nor in an experiment; "
            "`dvc repro` or `dvc exp run` makes it"
        )
    print_table(
        write(cells, Path("results")),
        "Top-1 validation accuracy in %, mean ± standard deviation over n seeds",
    )


@app.command(rich_help_panel=USE)
def export(
    variant: Annotated[str, typer.Argument(help="A variant of params.yaml, or baseline.")],
    seed: Annotated[int, typer.Option(help="The training's seed.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write; default: exports/<data set>_<model>_<variant>_seed_<n>."
        ),
    ] = None,
    register: Annotated[
        bool,
        typer.Option(
            "--register", help="Put it into MLflow's model registry too; alias: the variant."
        ),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(help="With --register: the registered model; default: <data set>_<model>."),
    ] = None,
) -> None:
    """Write a training's weights as a folder that timm and the hub take, with a model card."""
    from papers import PAPERS
    from pipeline.deploy.export import export

    if name and not register:
        raise UserError(f"--name: found {name!r}, accepted with --register alone")
    folder, notes = export(variant, seed, out, papers=PAPERS)
    for line in (f"{folder}: written", *notes):
        print(line)
    if register:
        from pipeline.deploy import registry

        print(f"{registry.register(folder, PAPERS, name)}: registered")


@app.command(rich_help_panel=USE)
def predict(
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    weights: Annotated[
        str,
        typer.Option(
            help=f"{WEIGHTS_HELP}, or outs/finetune/<variant> or outs/baseline, "
            "/seed_<n>/weights.safetensors."
        ),
    ] = WEIGHTS,
    order: Annotated[
        str, typer.Option(help="sequential | arbitrary | reversed | layers, as in 2,0,1.")
    ] = "sequential",
    keep: Annotated[int | None, typer.Option(help="Run so many random layers.")] = None,
    orders: Annotated[
        int, typer.Option(min=1, help="Random orders to draw, where the order is random.")
    ] = 20,
    top: Annotated[int, typer.Option(min=1, help="Classes to show.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random orders.")] = 0,
    exits: Annotated[
        Path | None,
        typer.Option(
            help="Early exits: outs/exits/classifier_wise/<variant>/seed_<n>, with a budget."
        ),
    ] = None,
    flops: Annotated[
        float | None, typer.Option(help="Budget of an image; one multiply-add is 2.")
    ] = None,
    latency: Annotated[
        float | None,
        typer.Option(help="Budget of an image in ms, measured on this machine."),
    ] = None,
    average: Annotated[
        bool,
        typer.Option(
            "--average", help="The FLOPs hold on average: images leave when the model is sure."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what is on images, and how much the answer depends on the order of the layers."""
    import json

    from lsvit.predict import choose_routes, open_image
    from lsvit.predict import predict as answer
    from lsvit.text import plain
    from papers.exits.compute.dynamic import Budget, deploy
    from papers.exits.compute.dynamic import answer as answer_early
    from pipeline.deploy.predict import open_weights, show, training_sha256
    from pipeline.models.weights import user_errors

    with user_errors():
        photos = [open_image(image) for image in images]
        opened = open_weights(weights)
        routes = choose_routes(opened.model, order, keep, orders, seed)
    budget = Budget(flops, latency, average)
    if not exits and budget != Budget(None, None, False):
        raise UserError(
            "--flops, --latency, --average: accepted with --exits, which says what exits there are"
        )
    deployed = deploy(opened.model, exits, training_sha256(weights)) if exits else None
    answers = []
    for path, photo in zip(images, photos, strict=True):
        image = opened.transform(photo)
        name = plain(str(path))
        asked = {"image": name, "weights": weights, "order": order, "keep": len(routes[0])}
        if deployed:
            found = answer_early(opened, deployed, image, routes, budget, top)
        else:
            found = answer(opened, image, routes, top)
        answers.append(asked | found)
    if as_json:
        print(json.dumps(answers, indent=1))
    else:
        for found in answers:
            show(found)


@app.command(
    add_help_option=False,  # lsvit.cli has the options
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    rich_help_panel=USE,
)
def scan(context: typer.Context) -> None:
    """Say how much the order of its layers matters to a model, without training it."""
    from lsvit.cli import run
    from lsvit.scanning import open_model
    from pipeline.deploy.predict import open_weights

    def open_any(where: str) -> Any:
        return open_weights(where) if Path(where).exists() else open_model(where)

    run(["scan", *context.args], opener=open_any)


@track.command("sync")
def track_sync() -> None:
    """Fill the MLflow store from the files of finished stages. What is there stays."""
    from papers import PAPERS
    from pipeline.tracking.sync import sync

    print(f"{sync(PAPERS)} runs added")


@data.command()
def subset(
    source: Annotated[Path, typer.Option(help="Folder of the four original files.")] = Path(
        "/usr/share/datasets/fashion-mnist"
    ),
    out: Annotated[Path, typer.Option(help="Where to write.")] = Path("data/fashion_mnist_10k"),
    train: Annotated[int, typer.Option(min=1)] = 10_000,
    validation: Annotated[int, typer.Option(min=1)] = 2_000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Make the embedded class-balanced subset of Fashion-MNIST from the original files."""
    from pipeline.data.sources import write_subset

    write_subset(source, out, {"train": train, "validation": validation}, seed)


def print_table(paper: Any, title: str) -> None:
    """Print a data frame of texts."""
    from rich.table import Table

    from pipeline.report.tables import console

    printed = Table(*paper.columns, title=title)
    for row in paper.itertuples(index=False):
        printed.add_row(*row)
    console(200).print(printed)


@one_line_errors()
def main() -> None:
    """Entry point of the `lsvit` command."""
    try:
        app()
    except SystemExit as ended:
        if ended.code == 130:  # typer's, for Ctrl-C
            print("interrupted", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()
