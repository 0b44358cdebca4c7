"""Which faults, planted at random in the modules that results depend on, the tests of these modules
find.

    uv run python benchmarks/mutations.py [--count 300] [--seed 0]
        adds a run to benchmarks/mutations.json
    uv run python benchmarks/mutations.py --again
        plants once more what was not found, but for what has a reason

A fault changes one operator, number, truth value, keyword or statement. A process that has imported
torch forks for each of them and runs the tests named below, slow ones too. They find it if one of
them fails, if they do not start, or if they take SLOWER times what they take without a fault, and
AT_LEAST seconds: a fault may loop. What was not found is listed. Whoever has looked at it, and seen
that no result changes, writes beside it, by hand, `why`.
"""

import argparse
import ast
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from machine import machine, write

ROOT = Path(__file__).parent.parent
FILE = Path(__file__).with_suffix(".json")
SLOWER, AT_LEAST = 4, 60  # times; seconds
DEVICES = ("tests/test_pretended_gpu.py",)  # has the word where they pass
MODULES = {  # -> the tests whose work it is to find its faults
    "lsvit/routes.py": ("tests/lsvit/test_routes.py", "tests/lsvit/test_routed.py"),
    "lsvit/latin.py": (
        "tests/lsvit/test_latin.py",
        "tests/pipeline/training/test_latin.py",
        "tests/lsvit/test_routes.py",
        "tests/pipeline/config/test_per.py",
    ),
    "lsvit/routed.py": (
        "tests/lsvit",
        "tests/papers/painters/test_painters.py",
        "tests/papers/exits/test_branches.py",
    ),
    "lsvit/stacked.py": (
        "tests/lsvit/test_latin.py",
        "tests/lsvit",
    ),
    "lsvit/position.py": ("tests/lsvit",),
    "lsvit/shuffled.py": (
        "tests/lsvit/test_shuffle.py",
        "tests/lsvit/test_library.py",
    ),
    "lsvit/reordered.py": ("tests/lsvit/test_shuffle.py",),
    "lsvit/evaluation.py": (
        "tests/lsvit/test_evaluate.py",
        "tests/lsvit/test_calls.py",
        "tests/lsvit/test_scan.py",
        "tests/lsvit/test_shuffle.py",
    ),
    "lsvit/taps.py": (
        "tests/lsvit",
        "tests/papers/inversion/test_ablation.py",
    ),
    "papers/exits/branches.py": ("tests/papers/exits/test_branches.py",),
    "papers/smoothing/talking_heads.py": (
        "tests/lsvit",
        "tests/papers/exits/test_flops.py",
        "tests/papers/smoothing/test_training.py",
    ),
    "papers/exits/training.py": (
        "tests/papers/exits/test_frozen.py",
        "tests/papers/smoothing/test_training.py",
    ),
    "papers/smoothing/augmentation.py": ("tests/papers/smoothing/test_augmentation.py",),
    "papers/smoothing/losses.py": ("tests/papers/smoothing/test_losses.py",),
    "papers/smoothing/training.py": (
        "tests/papers/smoothing/test_training.py",
        "tests/papers/smoothing/test_augmentation.py",
    ),
    "pipeline/config/samplers.py": (
        "tests/lsvit/test_routes.py",
        "tests/pipeline/config/test_per.py",
    ),
    "pipeline/training/objectives.py": (
        "tests/pipeline/training/test_loop.py",
        "tests/pipeline/training/test_plain_loop.py",
        "tests/papers/smoothing/test_losses.py",
    ),
    "pipeline/training/step.py": (
        "tests/pipeline/training",
        "tests/papers/smoothing/test_training.py",
    ),
    "pipeline/training/loop.py": (
        "tests/pipeline/training",
        "tests/papers/exits/test_frozen.py",
        "tests/papers/smoothing/test_training.py",
        "tests/lsvit/test_weights.py",
    ),
    "pipeline/training/optimisation.py": (
        "tests/pipeline/training/test_loop.py",
        "tests/pipeline/training/test_plain_loop.py",
    ),
    "pipeline/training/judging.py": ("tests/pipeline/training/test_loop.py",),
    "pipeline/training/scoring.py": (
        "tests/papers/layershuffle/test_evaluation.py",
        "tests/pipeline/training/test_loop.py",
    ),
    "papers/layershuffle/compute/evaluation.py": ("tests/papers/layershuffle",),
    "papers/layershuffle/compute/analysis.py": ("tests/papers/layershuffle",),
    "papers/exits/compute/counting.py": ("tests/papers/exits/test_counting.py",),
    "papers/exits/compute/flops.py": (
        "tests/papers/exits/test_flops.py",
        "tests/papers/exits/test_frozen.py",
    ),
    "papers/exits/compute/budgets.py": ("tests/papers/exits/test_budgets.py",),
    "papers/exits/compute/dynamic.py": (
        "tests/papers/exits",
        "tests/papers/exits/test_branches.py",
    ),
    "papers/exits/compute/frozen.py": ("tests/papers/exits/test_frozen.py",),
    "papers/inversion/compute/ablation.py": ("tests/papers/inversion/test_ablation.py",),
    "papers/inversion/compute/descent.py": ("tests/papers/inversion/test_descent.py",),
    "papers/inversion/compute/class_images.py": ("tests/papers/inversion",),
    "papers/nodes/compute/simulation.py": ("tests/papers/nodes",),
    "papers/nodes/compute/scheduler.py": ("tests/papers/nodes",),
    "papers/nodes/compute/evaluation.py": ("tests/papers/nodes",),
    "papers/questions/compute/merging.py": ("tests/papers/questions",),
    "papers/questions/compute/passes.py": ("tests/papers/questions",),
    "papers/questions/compute/pruning.py": ("tests/papers/questions",),
    "papers/painters/compute/strategies.py": ("tests/papers/painters",),
    "papers/smoothing/compute/measures.py": ("tests/papers/smoothing/test_measures.py",),
    "pipeline/report/statistics.py": ("tests/pipeline/report/test_statistics.py",),
    "pipeline/report/ledger.py": (
        "tests/pipeline/report/test_ledger.py",
        "tests/pipeline/report/test_claims.py",
    ),
}
OPERATORS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
}
Fault = tuple[str, int, str, str]  # file, line, right, wrong


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """The node with one fault, in each way there is."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        yield ast.Compare(
            node.left, [OPERATORS[type(node.ops[0])](), *node.ops[1:]], node.comparators
        )
    elif (
        isinstance(node, ast.BinOp)
        and type(node.op) in OPERATORS
        and not isinstance(node.left, ast.Constant | ast.JoinedStr)
    ):
        yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(OPERATORS[type(node.op)](), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        yield ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()
    elif isinstance(node, ast.Call):
        for i, keyword in enumerate(node.keywords):
            if keyword.arg not in (None, "strict"):  # which checks what holds anyway
                yield ast.Call(node.func, node.args, node.keywords[:i] + node.keywords[i + 1 :])


def walked(node: ast.AST) -> Iterator[ast.AST]:
    """What is executed of a module.

    No annotations, docstrings, messages of errors, or parts of format strings.
    """
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns") or (
            isinstance(node, ast.Raise | ast.JoinedStr | ast.AnnAssign) and name != "value"
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from walked(child)


def faults(file: str) -> Iterator[tuple[Fault, str]]:
    """Every fault of a module, and the module with it."""
    source = (ROOT / file).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in walked(ast.parse(source)):
        if isinstance(node, ast.expr | ast.stmt):
            begin, end = (
                starts[node.lineno - 1] + node.col_offset,
                starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0),
            )
            for wrong in variants(node):
                text = ast.unparse(ast.fix_missing_locations(wrong))
                text = f"({text})" if isinstance(wrong, ast.expr) else text
                changed = source[:begin] + text.encode() + source[end:]
                yield (file, node.lineno, source[begin:end].decode(), text), changed.decode()


def outcome(copy: Path, tests: tuple[str, ...], limit: int = 3600) -> str:
    """Of the tests in a process of its own.

    `passed`, or how the fault was found; `limit`: in seconds.
    """
    child = os.fork()
    if not child:
        os.setsid()
        os.chdir(copy)
        sys.path[0] = str(copy)
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        import pytest
        import torch

        torch.set_num_threads(1)  # not before the fork, which breaks torch's pool of threads
        os._exit(
            int(
                pytest.main(["-x", "-q", "-n0", "-p", "no:cacheprovider", "--assert=plain", *tests])
            )
        )
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(child, signal.SIGKILL))
    signal.alarm(limit)
    _, status = os.waitpid(child, 0)
    signal.alarm(0)
    return {0: "passed", 1: "a test failed", -signal.SIGKILL: "did not end"}.get(
        os.waitstatus_to_exitcode(status), "tests do not start"
    )


def plant(out: Path, drawn: list[tuple[Fault, str]]) -> None:
    """One fault after another in a clone; writes what came of each."""
    rows: list[dict[str, Any]] = []
    limits: dict[tuple[str, ...], int] = {}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        subprocess.run(["git", "clone", "-q", ROOT, copy], check=True)
        for tests in sorted({MODULES[fault[0]] for fault, _ in drawn} | {DEVICES}):
            begun = time.monotonic()
            assert (found := outcome(copy, tests)) == "passed", (
                f"{' '.join(tests)} without a fault: {found}"
            )
            limits[tests] = max(AT_LEAST, round(SLOWER * (time.monotonic() - begun)))
        for stamp, ((file, line, right, wrong), changed) in enumerate(drawn):
            path, text = copy / file, (copy / file).read_text("utf-8")
            path.write_text(changed, "utf-8")
            os.utime(
                path, (stamp, stamp)
            )  # else bytecode of the same second and size would be taken for it
            found = outcome(copy, MODULES[file], limits[MODULES[file]])
            found = outcome(copy, DEVICES, limits[DEVICES]) if found == "passed" else found
            path.write_text(text, "utf-8")
            rows.append(
                {"file": file, "line": line, "right": right, "wrong": wrong, "outcome": found}
            )
            print(rows[-1], flush=True)
    out.write_text(json.dumps(rows), "utf-8")


def plant_all(drawn: list[tuple[Fault, str]]) -> list[dict[str, Any]]:
    """What came of each fault; two processes side by side."""
    for name in ("matplotlib.pyplot", "pandas", "scipy.stats", "timm", "transformers"):
        importlib.import_module(name)  # once, for all children
    context = get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        drawn = sorted(drawn)  # by file: each process runs the tests of its files alone
        half = -(-len(drawn) // 2)
        parts = {
            Path(folder) / name: part for name, part in (("0", drawn[:half]), ("1", drawn[half:]))
        }
        started = [context.Process(target=plant, args=part) for part in parts.items()]
        for process in started:
            process.start()
        for process in started:
            process.join()
        return [row for part in parts for row in json.loads(part.read_text("utf-8"))]


def name(row: dict[str, Any]) -> Fault:
    """A fault as it is written in the file."""
    return row["file"], row["line"], row["right"], row["wrong"]


def main() -> None:
    """Draw faults and plant them, or those again that no test has found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    runs: list[dict[str, Any]] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else []
    every = [fault for file in MODULES for fault in faults(file)]
    if options.again:
        known = {name(row) for run in runs for row in run["not_found"] if "why" not in row}
        found = {
            name(row): row["outcome"] != "passed"
            for row in plant_all([fault for fault in every if fault[0] in known])
        }
        for run in runs:  # what was not planted, as its line has moved, stays
            still = [row for row in run["not_found"] if not found.get(name(row))]
            run["found_since"] += len(run["not_found"]) - len(still)
            run["not_found"] = still
    else:
        rows = plant_all(random.Random(options.seed).sample(every, options.count))
        passed = [
            {key: row[key] for key in ("file", "line", "right", "wrong")}
            for row in rows
            if row["outcome"] == "passed"
        ]
        runs.append(
            {
                "machine": machine(),
                "seed": options.seed,
                "possible": len(every),
                "planted": len(rows),
                "found": len(rows) - len(passed),
                "did_not_end": sum(row["outcome"] == "did not end" for row in rows),
                "found_since": 0,
                "not_found": sorted(passed, key=name),
            }
        )
    write(FILE, runs)


if __name__ == "__main__":
    main()
