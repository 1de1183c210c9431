"""A fingerprint of the code that can change a run's result, and of no other code.

A run's fingerprint covers the training loop, its dataset, model and method, what these import
within the package and the user's own packages and folders, and what a YAML file says of its
datasets. Comments, docstrings and layout do not count, so editing them repeats no run. Reports,
tracking and the command line do not count either: the training loop does not import them. A user's
file counts as it was when it was imported.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

from clipnoise.data.base import Dataset
from clipnoise.data.own import Own
from clipnoise.data.sources import raw_digests
from clipnoise.plugins import imported_text, is_own, own_packages
from clipnoise.run.spec import RunSpec

PACKAGE = "clipnoise"
ROOT = "clipnoise.run.train"
# What can only end a run: the numbers of one that ends well do not depend on it.
GUARDS = frozenset({"clipnoise.gradients.kept"})
BODIES = ("body", "orelse", "finalbody", "handlers", "cases")  # where statements hold statements


def fingerprint(spec: RunSpec) -> str:
    """Return the fingerprint of a run: 12 hex digits over every module that can change it.

    Args:
        spec: the run; the plug-ins of its datasets, model, method, clip rule and noise count.
    """
    facts = json.dumps([type(dataset).facts for dataset in spec.datasets], sort_keys=True)
    return _fingerprint(_roots(spec), facts)


def training_code(spec: RunSpec) -> str:
    """Return the fingerprint of what trains a method, whatever the data and the model are.

    Modules that can only end a run do not count: they cannot change a number that was published.

    Args:
        spec: the run; its method, clip rule and noise count.
    """
    return _fingerprint((ROOT, *(type(part).__module__ for part in spec.choices)), without=GUARDS)


def _roots(spec: RunSpec) -> tuple[str, ...]:
    parts = (*spec.datasets, spec.model, *spec.choices)
    return (ROOT, *(type(part).__module__ for part in parts))


def own_files(spec: RunSpec) -> dict[str, str]:
    """Return the user's files that a run imports, each with 12 hex digits of its SHA-256.

    A file counts as it was when it was imported. Its name is that below its place.
    """
    return _own_files(_roots(spec))


def prepared_from(dataset: Dataset, cache: Path) -> str:
    """Return a digest of the user's files that a dataset is prepared from: its code and raw files.

    Returns:
        12 hex digits; empty where none of them is the user's.
    """
    found = _own_files((type(dataset).__module__,))
    if isinstance(dataset, Own):
        found |= raw_digests(dataset, cache)
    text = json.dumps(found, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12] if found else ""


def _own_files(roots: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for module in sorted(filter(is_own, closure(roots))):
        path, text = _source(module), imported_text(module)
        assert path is not None, module
        package = next(one for one in own_packages() if f"{module}.".startswith(f"{one}."))
        parts = [own_packages()[package].name, *module.removeprefix(package).split(".")[1:]]
        parts = [*parts, path.name] if path.name == "__init__.py" else [*parts[:-1], path.name]
        content = path.read_bytes() if text is None else text
        found["/".join(parts)] = hashlib.sha256(content).hexdigest()[:12]
    return found


def fingerprint_of(modules: Iterable[str]) -> str:
    """Return the fingerprint of modules, by dotted name, and what they import: 12 hex digits."""
    return _fingerprint(tuple(sorted(set(modules))))


def fingerprint_of_names(
    roots: Iterable[tuple[str, str]],
    *,
    folder: str,
    without: Collection[str] = (),
    modules: Iterable[str] = (),
) -> str:
    """Return the fingerprint of some classes and functions and of what they use: 12 hex digits.

    Of the modules in one folder only those definitions count that the roots use by name, directly
    or indirectly. Modules elsewhere count as a whole, as in `fingerprint_of`.

    Args:
        roots: module and name of each class or function.
        folder: dotted name of the folder.
        without: members of classes in the folder that do not count.
        modules: further modules that count as a whole.
    """
    code: dict[str, str] = {}
    whole = set(modules)
    waiting = list(roots)
    while waiting:
        module, name = waiting.pop()
        statement = _definitions(module, frozenset(without)).get(name)
        if statement is None or f"{module}.{name}" in code:
            continue
        code[f"{module}.{name}"] = ast.unparse(statement)
        names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
        waiting += [(module, name.id) for name in names if isinstance(name.ctx, ast.Load)]
        if isinstance(statement, ast.ImportFrom) and f"{statement.module}.".startswith(
            f"{folder}."
        ):
            waiting.append((str(statement.module), statement.names[0].name))
        else:
            whole |= _imports(_statements(statement))
    text = "\n".join(f"{name}\n{code[name]}" for name in sorted(code))
    return hashlib.sha256(f"{text}\n{fingerprint_of(whole)}".encode()).hexdigest()[:12]


@cache
def _definitions(module: str, without: frozenset[str]) -> dict[str, ast.stmt]:
    """Return the statements of a module by the name that they define, imports one name each."""
    found: dict[str, ast.stmt] = {}
    for statement in _tree(module).body:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                found[alias.asname or alias.name.split(".")[0]] = ast.Import([alias])
        elif isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                single = ast.ImportFrom(statement.module, [alias], statement.level)
                found[alias.asname or alias.name] = single
        else:
            if isinstance(statement, ast.ClassDef):
                statement.body = [x for x in statement.body if not without & set(_defined(x))]
            found.update(dict.fromkeys(_defined(statement), statement))
    return found


def _defined(statement: ast.stmt) -> list[str]:
    """Return the names that a statement other than an import defines."""
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            nodes = [node for target in targets for node in ast.walk(target)]
            return [node.id for node in nodes if isinstance(node, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


@cache
def _fingerprint(
    roots: tuple[str, ...], facts: str = "", without: frozenset[str] = frozenset()
) -> str:
    digest = hashlib.sha256(facts.encode())
    for module in sorted(closure(roots) - without):
        digest.update(f"{module}\n{_read(module)[0]}\n".encode())
    return digest.hexdigest()[:12]


def closure(roots: tuple[str, ...]) -> set[str]:
    """Return the roots and the modules of the package that they import, however indirectly."""
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting.extend(_read(module)[1])
    return seen


@cache
def _source(module: str) -> Path | None:
    """Return the file of a module of the package, or None if the name is not a module.

    It is found by its place on the disk, because finding a module's spec would import its parents.
    """
    top, *rest = module.split(".")
    found = importlib.util.find_spec(top)
    if found is None or found.origin is None:
        return None
    place = Path(found.origin).parent.joinpath(*rest)
    for package, folder in own_packages().items():  # the user's folders are elsewhere
        if f"{module}.".startswith(f"{package}."):
            place = folder.joinpath(*module.removeprefix(package).split(".")[1:])
    candidates = (place.with_suffix(".py"), place / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


@cache
def _read(module: str) -> tuple[str, frozenset[str]]:
    """Return a module's code without docstrings, comments and layout, and what it imports.

    These are modules of the package that it imports at run time, also inside functions.
    """
    tree = _tree(module)
    for node in _statements(tree, runtime=False):
        if isinstance(node, ast.ImportFrom) and node.level:  # relative to the module
            up = node.level - (_source(module) or Path()).match("__init__.py")
            package = ".".join(module.split(".")[: -up or None])
            node.module, node.level = ".".join(filter(None, [package, node.module])), 0
    return ast.unparse(tree), _imports(_statements(tree))


def _tree(module: str) -> ast.Module:
    """Return a module without its docstrings."""
    path = _source(module)
    assert path is not None, module
    text = imported_text(module)
    tree = ast.parse(path.read_bytes() if text is None else text)
    for node in list(_statements(tree)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str())), *rest]:
                    node.body = rest or [ast.Pass()]
    return tree


def _imports(statements: Iterable[ast.AST]) -> frozenset[str]:
    names: set[str] = set()
    for node in statements:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    ours = tuple(f"{package}." for package in (PACKAGE, *own_packages()))
    return frozenset(name for name in names if f"{name}.".startswith(ours) and _source(name))


def _statements(tree: ast.AST, *, runtime: bool = True) -> Iterator[ast.AST]:
    """Yield every statement; if those of run time are asked for, none below `if TYPE_CHECKING:`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        typing = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for name in ("orelse",) if runtime and typing else BODIES:
            waiting += getattr(node, name, ())
