"""A fingerprint of the code that can change a run's result, and of nothing else.

A run's fingerprint covers the training loop, its dataset, model and method, and what these import
inside the package. Comments, docstrings and layout do not count, so that editing them reruns
nothing; nor do reports, tracking or the command line, which the training loop does not import.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from clipnoise.engine.spec import RunSpec

PACKAGE = "clipnoise"
ROOT = "clipnoise.engine.training"


def fingerprint(spec: RunSpec) -> str:
    """Return the fingerprint of a run: 12 hex digits over every module that can change it.

    Args:
        spec: the run; its datasets, model and method say which plug-ins count.
    """
    parts = (*spec.datasets, spec.model, spec.method)
    return _fingerprint((ROOT, *(type(part).__module__ for part in parts)))


def fingerprint_of(modules: Iterable[str]) -> str:
    """Return the fingerprint of some modules and of what they import: 12 hex digits.

    Args:
        modules: dotted names.
    """
    return _fingerprint(tuple(sorted(set(modules))))


@cache
def _fingerprint(roots: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for module in sorted(closure(roots)):
        digest.update(f"{module}\n{_code(module)}\n".encode())
    return digest.hexdigest()[:12]


def closure(roots: tuple[str, ...]) -> set[str]:
    """Return the modules of the package that some modules import, directly or not.

    Args:
        roots: dotted module names; they are part of the answer.
    """
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting.extend(_imports(module))
    return seen


@cache
def _source(module: str) -> Path | None:
    """Return the file of a module of the package, or None where the name is not a module.

    Found by its place on the disk: asking Python for a module's spec would import its parents.
    """
    top, *rest = module.split(".")
    found = importlib.util.find_spec(top)
    if found is None or found.origin is None:
        return None
    place = Path(found.origin).parent.joinpath(*rest)
    candidates = (place.with_suffix(".py"), place / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


@cache
def _tree(module: str) -> ast.Module:
    path = _source(module)
    assert path is not None, module
    return ast.parse(path.read_text())


@cache
def _code(module: str) -> str:
    """Return the module's code without docstrings, comments and layout."""
    tree = ast.parse(ast.unparse(_tree(module)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and _is_text(
            node.body[:1]
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _is_text(statements: list[ast.stmt]) -> bool:
    return any(
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
        for statement in statements
    )


@cache
def _imports(module: str) -> frozenset[str]:
    """Return the package's modules that a module imports at run time, in functions too."""
    names: set[str] = set()
    for node in _runtime_nodes(_tree(module)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    ours = {name for name in names if name.split(".")[0] == PACKAGE}
    return frozenset(name for name in ours if _source(name) is not None)


def _runtime_nodes(tree: ast.AST) -> list[ast.AST]:
    """Return every node except those below `if TYPE_CHECKING:`."""
    nodes: list[ast.AST] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting.extend(node.orelse)
        else:
            waiting.extend(ast.iter_child_nodes(node))
    return nodes
