"""What makes two jobs the same: the code that they run, its libraries, and the processor."""

import ast
import hashlib
import json
from collections.abc import Callable
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config.params import Engine
from pipeline.jobs.machine import gpus
from pipeline.jobs.portable import cpu_flags, only_avx2

ROOT = Path(__file__).parents[2]
PACKAGES = ("lsvit", "pipeline", "papers")
# What no job runs: configuration, whose values are part of a job's key, and how jobs are told,
# shown and started. Of these rooms three modules count all the same.
NOT_RUN = ("pipeline.config", "pipeline.errors", "pipeline.jobs", "pipeline.tracking")
RUN = ("pipeline.jobs.files", "pipeline.jobs.configs", "pipeline.config.samplers")
IMPORT = ast.Import | ast.ImportFrom
MESSAGES = ("print", "warn")  # functions whose text changes no result
_installed = cache(packages_distributions)  # distributions by what they let a module import
BF16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")  # of /proc/cpuinfo, as torch looks for them


class Module(NamedTuple):
    """What a file says of the jobs that import it."""

    code: str  # what of it can change a result
    imports: set[str]  # modules, and names that may be modules
    libraries: set[str]  # packages whose versions count


def imported_modules(*modules: str, follow: Callable[[str], bool]) -> dict[str, Module]:
    """Read the project's modules that some modules import, directly or not, themselves included.

    Imports for type checkers alone do not count, nor do modules that are not to be followed.
    Nothing is executed.
    """
    found: dict[str, Module] = {}
    todo = list(modules)
    while todo:
        name = todo.pop()
        path = ROOT / name.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name in found or not follow(name) or not path.exists():
            continue
        found[name] = _read(path.read_text("utf-8"), name.endswith((".section", ".configs")))
        todo.append(name.rpartition(".")[0])  # a package's own module runs first
        todo += [each for each in found[name].imports if each.startswith(PACKAGES)]
    return found


@cache
def _read(text: str, declares: bool) -> Module:
    """A module of this text. One that `declares` options has functions beside them."""
    tree = _Executed().visit(ast.parse(text))
    imports: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            imports.add(node.module)
            imports.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
    heads = [node for node in tree.body if isinstance(node, IMPORT)]
    body = [node for node in tree.body if node not in heads]
    libraries = {name.split(".")[0] for name in imports}
    if declares:
        body = _functions(body)
        libraries = set()
    lines = [*sorted(map(ast.dump, heads)), *map(ast.dump, body)]
    return Module("\n".join(lines), imports, libraries)


def is_run(module: str) -> bool:
    """Whether a module can change what a job leaves. A paper's own module only declares it."""
    if module == "papers" or module.rpartition(".")[0] == "papers":
        return False
    return module in RUN or not module.startswith(NOT_RUN)


@cache
def code_digest(*modules: str) -> str:
    """A hash of the code that jobs of these modules run, and of the versions of its libraries.

    Comments, docstrings, formatting, the order of imports and the texts of `raise`, `print` and
    `warn` are no part of it. Of a module of sections only the functions are: the values of their
    fields belong to a job's options.
    """
    digest = hashlib.sha256()
    libraries: set[str] = set()
    for name, module in sorted(imported_modules(*modules, follow=is_run).items()):
        libraries |= module.libraries
        digest.update(f"{name}\n{module.code}".encode())
    names: set[str] = set()
    for library in libraries.difference(PACKAGES):
        names.update(_installed().get(library, ()))  # the standard library is of no distribution
    versions = {name: version(name) for name in sorted(names)}
    digest.update(json.dumps(versions).encode())
    return digest.hexdigest()


def _functions(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements without fields of classes, and without the classes that have nothing else."""
    kept: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.ClassDef):
            node.body = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            if not node.body:
                continue
        kept.append(node)
    return kept


class _Executed(ast.NodeTransformer):
    """Takes out what changes no result: docstrings, messages, imports for type checkers alone."""

    def visit(self, node: ast.AST) -> Any:
        """A node without them."""
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return None
        if isinstance(node, ast.Raise) and node.exc:
            node.exc = _Silent().visit(node.exc)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in MESSAGES:
            node = _Silent().visit(node)
        self.generic_visit(node)
        if isinstance(node, IMPORT):
            node.names.sort(key=lambda alias: alias.name)
        scopes = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, scopes) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        return node


class _Silent(ast.NodeTransformer):
    """Empties texts."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.Constant("")


@cache
def processor(device: str, engine: Engine) -> tuple[str, bool]:
    """The kind of device that a `device:` value means here, and whether it has bf16.

    Where no GPU may be there, no torch is asked. Whether a cluster's GPUs have bf16 is not known.
    """
    if device == "auto" and engine == "ray":
        from pipeline.jobs.ray import has_gpus

        if has_gpus():
            return "cuda", False
        device = "cpu"
    if device in ("auto", "cuda"):
        found = gpus()
        if found.count:
            return "cuda", found.has_bf16
    if device in ("cuda", "mps"):
        return device, False
    return "cpu", not only_avx2() and not cpu_flags().isdisjoint(BF16_FLAGS)
