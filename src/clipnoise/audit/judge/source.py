"""The source of a judged file, read without running it for ways to find out where it runs.

The other checks run the method where it can reach nothing private, and demand the same results.
They see through a method only if it behaves the same wherever it runs. So a file must not be able
to tell the difference.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clipnoise.errors import UserError

# What a file may import: none of these tells where it runs.
ALLOWED = """
    __future__ abc annotated_types collections collections.abc dataclasses enum fractions functools
    itertools math numbers numpy statistics torch torch.fft torch.linalg torch.nn
    torch.nn.functional torch.special typing typing_extensions clipnoise.core.method
    clipnoise.core.query clipnoise.core.state clipnoise.data.side_information clipnoise.errors
    clipnoise.fields clipnoise.privacy.queries
"""
# Importing one of these, or any other module of Python itself, refutes the file. The judgement
# names all other imports as modules that were not read.
FORBIDDEN = ("clipnoise", "opacus", "sklearn", "snakemake")
# torch and numpy have these modules as attributes, so a file could reach them without an import.
LEADING = """
    builtins ctypes gc importlib inspect io multiprocessing os pathlib pickle random subprocess sys
    threading traceback types weakref
"""
REASONS = {
    "runs code that the judge cannot read": """
        eval exec compile __import__ __builtins__ cpp_extension
    """,
    "reads or writes outside of the run": """
        open load save fromfile tofile memmap loadtxt genfromtxt savetxt savez from_file hub
        load_state_dict_from_url
    """,
    "looks at a random stream": """
        Generator default_generator default_rng RandomState manual_seed initial_seed get_rng_state
        set_rng_state fork_rng
    """,
}
WHY = {name: why for why, names in REASONS.items() for name in names.split()}
BOUNDED = ("OwnClipRule", "OwnNoise")  # whatever derives from them, the suite bounds what it does


@dataclass(frozen=True)
class Source:
    """What the source says.

    Attributes:
        problems: what refutes it, each with its line.
        followed: modules that it imports and that are not followed.
        bounded: lines that import the base of a clip rule or of a kind of noise.
    """

    problems: tuple[str, ...]
    followed: tuple[str, ...]
    bounded: tuple[int, ...] = ()


def read_file(file: Path) -> tuple[str, Source]:
    """Return the text of a file and what it says.

    Raises:
        UserError: it is not Python, or it has a kind of clip rule or noise, which are not judged.
    """
    try:
        text = file.read_text(encoding="utf-8")
        source = read_source(text)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}.") from None
    except SyntaxError as error:
        raise UserError(f"{file}:{error.lineno}: {error.msg}.") from None
    except ValueError:
        raise UserError(f"{file}: is not a text file.") from None
    if source.bounded:
        raise UserError(
            f"{file}:{source.bounded[0]}: clip rules and kinds of noise are not judged, because "
            "the suite bounds what they do. Put them into a file of their own, and judge the "
            "method."
        )
    return text, source


def read_source(text: str) -> Source:
    """Read a method's file for what tells a method where it runs.

    Raises:
        SyntaxError: it is not Python.
    """
    tree = ast.parse(text)
    imported: dict[str, str] = {}
    problems, followed, bounded = [], set(), []
    for node in ast.walk(tree):
        for module, name in _imports(node):
            top = module.split(".")[0]
            if _allowed(module) and not name.startswith("_"):
                continue
            if name in BOUNDED:
                bounded.append(node.lineno)  # type: ignore[attr-defined]
            if top in {*FORBIDDEN, *sys.stdlib_module_names} or name.startswith("_"):
                problems.append((node.lineno, f"imports {module}{name and f', {name}'}"))  # type: ignore[attr-defined]
            else:
                followed.add(module)
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                imported[(alias.asname or alias.name).split(".")[0]] = alias.name
    fields = hyper_parameters(tree)
    problems += [
        found for node in ast.walk(tree) if not _is_field(node, fields) for found in _words(node)
    ]
    problems += [
        (node.lineno, f"reaches {ast.unparse(node)}")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in LEADING.split()
        and _root(node) in imported
    ]
    said = dict.fromkeys(f"line {line}: it {what}" for line, what in sorted(problems))
    return Source(tuple(said), tuple(sorted(followed)), tuple(bounded))


def _allowed(module: str) -> bool:
    return module in ALLOWED.split() or f"{module}.".startswith("clipnoise.methods.")


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import; the name is empty where a module is imported."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, "") for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            inner = f"{module}.{alias.name}"
            yield (inner, "") if _allowed(inner) else (module, alias.name)


def hyper_parameters(tree: ast.Module) -> set[str]:
    """Return the names that classes declare with a type: a hyper-parameter may have any name."""
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {
        each.target.id
        for body in bodies
        for each in body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def _is_field(node: ast.AST, fields: set[str]) -> bool:
    """Return whether a node declares a hyper-parameter, or reads it from `self`."""
    if isinstance(node, ast.Attribute):
        return node.attr in fields and isinstance(node.value, ast.Name) and node.value.id == "self"
    return isinstance(node, ast.Name) and node.id in fields and isinstance(node.ctx, ast.Store)


def _words(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the names in a node by which a method could ask where it runs."""
    names: list[str] = []
    if isinstance(node, ast.Attribute):
        names = [node.attr]
    elif isinstance(node, ast.Name):
        names = [node.id]
    elif isinstance(node, ast.ImportFrom):
        names = [alias.name for alias in node.names]
    for name in names:
        if name in WHY:
            yield getattr(node, "lineno", 0), f"{WHY[name]} ({name})"


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
