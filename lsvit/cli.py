"""The `lsvit` command: `predict` and `scan`. In a clone it has all of `stages.commands`."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lsvit.output import drop_output, flushed, is_reader_gone
from lsvit.text import plain

CLONE = Path(__file__).parents[1]
WEIGHTS = "ls_micro"  # of `lsvit predict`, where none are named
WEIGHTS_HELP = (
    f"default: {WEIGHTS}, LayerShuffle's model of ten kinds of clothes (Fashion-MNIST: 28 pixels, "
    "grey); others: baseline_micro, an exported folder, hf-hub:<repository>"
)


def main() -> None:
    """Run the command of this process's arguments."""
    if (CLONE / "stages" / "commands.py").is_file():
        from stages.commands import main as run_in_clone

        run_in_clone()
    else:
        streams: tuple[Any, ...] = (sys.stdout, sys.stderr)
        for stream in filter(None, streams):  # whatever the locale; None where it is closed
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
        run(sys.argv[1:])


def run(words: Sequence[str], **more: Any) -> None:
    """Run the command of these words. Exits with code 2 at a user's mistake.

    If the reader of its output is gone, such as `head`, it exits with 141, as a shell has for that.
    `more` goes to :func:`lsvit.scanning.scan_folder`.
    """
    try:
        with flushed():
            options = make_parser().parse_args(words)
            action = options.action
            del options.action
            action(options, **more)
    except (Exception, SystemExit) as error:
        if is_reader_gone(error):
            code = 141
        elif isinstance(error, ValueError | OSError):  # a file may not be read, a disk is full
            print(plain(f"error: {error}"), file=sys.stderr)
            code = 2
        else:
            raise
        drop_output()
        raise SystemExit(code) from None


def make_parser() -> argparse.ArgumentParser:
    """Declare the commands and their options."""
    parser = argparse.ArgumentParser("lsvit", description="Transformers in any order of layers.")
    commands = parser.add_subparsers(required=True)
    predict = commands.add_parser("predict", help="classes of images, over orders of the layers")
    predict.set_defaults(action=print_predictions)
    predict.add_argument("images", nargs="+", type=Path, help="image files")
    predict.add_argument("--weights", default=WEIGHTS, help=WEIGHTS_HELP)
    predict.add_argument(
        "--order", default="sequential", help="sequential, arbitrary, reversed, or layers: 2,0,1"
    )
    predict.add_argument("--keep", type=int, help="run so many random layers")
    predict.add_argument("--orders", type=int, default=20, help="how many random orders to draw")
    predict.add_argument("--top", type=int, default=5, help="how many classes to show")
    predict.add_argument("--seed", type=int, default=0, help="of the random orders")
    predict.add_argument("--json", action="store_true", help="print JSON")
    scan = commands.add_parser("scan", help="how much the order of its layers matters to a model")
    scan.set_defaults(action=print_scan)
    scan.add_argument(
        "model", help="ls_micro, exported folder, hf-hub:<repository>, or a name of timm"
    )
    scan.add_argument("--data", required=True, type=Path, help="folder with images", dest="folder")
    scan.add_argument("--images", type=int, default=128, help="how many to take at most")
    scan.add_argument("--orders", type=int, default=3, help="random orders for a number of layers")
    scan.add_argument("--seed", type=int, default=0, help="of the random orders")
    scan.add_argument("--figure", type=Path, default="scan.png", help="where to write the figure")
    scan.add_argument("--blocks", help="where the list of blocks is, if the model has several")
    return parser


def print_scan(options: argparse.Namespace, **more: Any) -> None:
    """Print how much the order of its layers matters to a model, and write the figure.

    Raises:
        ValueError: the model, an image or an option is not what is accepted.
    """
    check_least(options, images=1, orders=1, seed=0)

    from lsvit.scanning import scan_folder

    scan_folder(**vars(options), **more)


def check_least(options: argparse.Namespace, **least: int) -> None:
    """Raise ValueError if an option is less than it may be."""
    for name, accepted in least.items():
        number = getattr(options, name)
        if number < accepted:
            raise ValueError(f"--{name}: found {number}, accepted: at least {accepted}")


def print_predictions(options: argparse.Namespace) -> None:
    """Print what is on images, and how much the answer depends on the order.

    Raises:
        ValueError: the weights, an image or an option is not what is accepted.
    """
    check_least(options, orders=1, top=1, seed=0)

    from lsvit.predict import choose_routes, load, open_image, predict

    images = [open_image(path) for path in options.images]
    opened = load(options.weights)
    routes = choose_routes(opened.model, options.order, options.keep, options.orders, options.seed)
    answers = []
    for path, image in zip(options.images, images, strict=True):
        answer = predict(opened, opened.transform(image), routes, options.top)
        question = {"image": plain(str(path)), "weights": options.weights, "order": options.order}
        answers.append(question | answer)
    if options.json:
        print(json.dumps(answers, indent=1))
        return
    for answer in answers:
        print(
            f"{answer['image']}: {answer['weights']}, {answer['order']}, {answer['orders']} orders"
        )
        for row in answer["top"]:
            spread = "" if row["std"] is None else f" ± {row['std']:.4f}"
            print(f"  {row['probability']:.4f}{spread}  {plain(row['class'])}")


if __name__ == "__main__":
    main()
