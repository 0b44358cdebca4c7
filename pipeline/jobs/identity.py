"""What makes work the same work: a digest of the code that a job runs, which comments, docstrings and formatting do not change."""

import ast
import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("lsvit", "pipeline", "papers")
# How a user's mistake is told, and what a paper declares to the pipeline: no job runs these.
NOT_CODE = {"pipeline.errors", "papers", "pipeline.config.paper"}


def imported_modules(module: str) -> dict[str, ast.Module]:
    """The project's modules that a module imports, directly or not, itself included, with their syntax trees (nothing is run)."""
    found: dict[str, ast.Module] = {}
    todo = [module]
    while todo:
        name = todo.pop()
        path = ROOT / name.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name in found or name in NOT_CODE or name.rpartition(".")[0] == "papers":
            continue
        if not path.exists():
            continue
        _Executed().visit(tree := ast.parse(path.read_text()))
        found[name] = tree
        todo += name.rpartition(".")[:1]  # a package's own module runs first
        for node in ast.walk(found[name]):
            if isinstance(node, ast.ImportFrom) and node.module:
                todo += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                todo += [alias.name for alias in node.names]
        todo = [each for each in todo if each.split(".")[0] in PACKAGES]
    return found


@cache
def code_digest(module: str) -> str:
    """A hash of the code that a job of this module runs, and of the libraries' versions.

    Left out is what cannot change a result: comments, docstrings, formatting, the order of imports, and the fields of the typed
    sections, whose effective values are part of a job's identity.
    """
    modules = imported_modules(module)
    classes = [
        (c.name, {ast.unparse(base) for base in c.bases})
        for tree in modules.values()
        for c in ast.walk(tree)
        if isinstance(c, ast.ClassDef)
    ]
    sections = {"Section"}
    while more := {name for name, bases in classes if name not in sections and bases & sections}:
        sections |= more
    digest = hashlib.sha256(f"torch {version('torch')} timm {version('timm')}".encode())
    for name, tree in sorted(modules.items()):
        imports = sorted(
            ast.dump(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)
        )
        code = [
            node
            for node in _WithoutFields(sections).visit(tree).body
            if not isinstance(node, ast.Import | ast.ImportFrom)
        ]
        digest.update("\n".join([name, *imports, *map(ast.dump, code)]).encode())
    return digest.hexdigest()


class _Executed(ast.NodeTransformer):
    """Takes out what is not executed: docstrings, and imports for type checkers alone."""

    def visit(self, node: ast.AST) -> ast.AST:
        """A node without them."""
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return ast.Pass()
        self.generic_visit(node)
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names.sort(key=lambda alias: alias.name)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
        return node


class _WithoutFields(ast.NodeTransformer):
    """Takes the fields out of typed sections, and which of them have no effect."""

    def __init__(self, sections: set[str]) -> None:
        self.sections = sections

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """A class without its fields, if it is a section."""
        self.generic_visit(node)
        if node.name in self.sections:
            node.body = [each for each in node.body if not _is_field(each)]
        return node


def merged(recorded: Any, wanted: Any) -> Any:
    """Recorded options, as JSON, and those of the wanted ones that they lack."""
    if isinstance(recorded, dict) and isinstance(wanted, dict):
        return recorded | {
            key: merged(recorded[key], value) if key in recorded else value
            for key, value in wanted.items()
        }
    return recorded


def agree(recorded: Any, wanted: Any) -> bool:
    """Whether two sets of options, as JSON, have the same values where both have one."""
    if isinstance(recorded, dict) and isinstance(wanted, dict):
        return all(agree(recorded[key], wanted[key]) for key in recorded.keys() & wanted.keys())
    if isinstance(recorded, list) and isinstance(wanted, list):
        return len(recorded) == len(wanted) and all(map(agree, recorded, wanted))
    return recorded == wanted


def _is_field(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name == "without_effect"
    return isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)
