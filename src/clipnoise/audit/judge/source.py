"""The source of a judged file, read without running it for ways to find out where it runs.

The other checks run the method where it can reach nothing private, and demand the same results.
They see through a method only if it behaves the same wherever it runs. So a file must not be able
to tell the difference.
"""

from __future__ import annotations

import ast
import builtins
import pkgutil
import sys
from collections.abc import Collection, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from torch import Tensor

from clipnoise.errors import UserError

# What a file may import: none of these tells where it runs.
ALLOWED = """
    __future__ abc annotated_types collections collections.abc dataclasses enum fractions functools
    itertools math numbers numpy statistics torch torch.fft torch.linalg torch.nn
    torch.nn.functional torch.special typing typing_extensions clipnoise.core.method
    clipnoise.core.query clipnoise.core.state clipnoise.data.side_information clipnoise.errors
    clipnoise.fields clipnoise.privacy.queries
"""
# Importing one of these refutes the file, even from a module that is allowed. The judgement names
# all other imports as modules that were not read.
REFUSED = {"clipnoise", "opacus", "sklearn", "snakemake", *sys.stdlib_module_names}
# Modules have these as attributes, so a file could reach them without an import of its own: these
# and all that `_leading` finds.
LEADING = """
    builtins ctypes gc importlib inspect io multiprocessing os pathlib pickle random subprocess sys
    threading traceback types weakref
"""
REASONS = {
    "runs code that the judge cannot read": """
        eval exec compile __import__ __builtins__ cpp_extension getattr setattr delattr globals
        locals vars format format_map get_type_hints ForwardRef make_dataclass runstring rundocs
        singledispatch singledispatchmethod attrgetter methodcaller load_library breakpoint
    """,
    "reads or writes outside of the run": """
        open load save fromfile tofile memmap loadtxt genfromtxt savetxt savez from_file hub
        load_state_dict_from_url dump fromregex DataSource
    """,
    "looks at a random stream": """
        Generator default_generator default_rng RandomState manual_seed initial_seed get_rng_state
        set_rng_state fork_rng
    """,
}
WHY = {name: why for why, names in REASONS.items() for name in names.split()}
# Any other name with underscores around it may lead to frames, globals or the file itself.
PLAIN = ("__all__", "__class__", "__doc__", "__init__", "__name__", "__post_init__")
BOUNDED = ("OwnClipRule", "OwnNoise")  # whatever derives from them, the suite bounds what it does


def read_file(file: Path) -> tuple[str, list[str], list[str]]:
    """Return the text of a file, and what `read_source` says of it.

    Raises:
        UserError: it is not Python, or it has a kind of clip rule or noise, which are not judged.
    """
    try:
        text = file.read_text(encoding="utf-8")
        return text, *read_source(text, file)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}.") from None
    except SyntaxError as error:
        raise UserError(f"{file}:{error.lineno}: {error.msg}.") from None
    except ValueError:
        raise UserError(f"{file}: is not a text file.") from None


def read_source(text: str, file: Path = Path()) -> tuple[list[str], list[str]]:
    """Read a method's file for what tells a method where it runs.

    Returns:
        What refutes it, each with its line, and the modules that it imports and that are not read.

    Raises:
        SyntaxError: it is not Python.
        UserError: it has a kind of clip rule or noise.
    """
    tree = ast.parse(text)
    problems, unread = [], set()
    for node in ast.walk(tree):
        for module, name in _imports(node):
            line: int = node.lineno  # type: ignore[attr-defined]
            if name in BOUNDED:
                raise UserError(
                    f"{file}:{line}: clip rules and kinds of noise are not judged, because the "
                    "suite bounds what they do. Put them into a file of their own, and judge the "
                    "method."
                )
            if _allowed(module) or name.startswith("_") or {module.split(".")[0], name} & REFUSED:
                problems.append((line, f"imports {module}{name and f', {name}'}"))
            else:
                unread.add(module)
    fields, own = hyper_parameters(tree), _own(tree)
    problems += [*_unreadable_types(tree), *_made_types(tree)]
    problems += [
        found
        for node in ast.walk(tree)
        if not _is_field(node, fields)
        for found in _words(node, own)
    ]
    said = dict.fromkeys(f"line {line}: it {what}" for line, what in sorted(problems))
    return list(said), sorted(unread)


@cache
def _leading() -> Collection[str]:
    """Return the attributes by which what a file may import leads to modules that it may not."""
    found, allowed = {*LEADING.split()}, {"linalg", *dir(Tensor), *dir(dict)}
    for place in ALLOWED.split():
        module = import_module(place)
        members = {name: value for name, value in vars(module).items() if name[0] != "_"}
        found |= {
            name
            for name, value in members.items()
            if isinstance(value, ModuleType) and not _allowed(value.__name__)
        }
        names = [one.name for one in pkgutil.iter_modules(getattr(module, "__path__", ()))]
        found |= {name for name in names if not _allowed(f"{place}.{name}")}
        allowed |= {name for name in members if _allowed(f"{place}.{name}")}
    return found - allowed


def _allowed(module: str) -> bool:
    return module in ALLOWED.split() or f"{module}.".startswith("clipnoise.methods.")


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield what no file may simply import: a module and a name, empty where all of it is."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, "") for alias in node.names if not _allowed(alias.name))
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            whole = alias.name == "*" and module != "clipnoise.methods.base"
            leads = alias.name in sys.stdlib_module_names or alias.name in _leading()
            plain = not (whole or leads or alias.name[0] == "_")
            if not _allowed(f"{module}.{alias.name}") and not (_allowed(module) and plain):
                yield module, alias.name


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


def _unreadable_types(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the fields of classes whose types may be text, which is run as code when it is read."""
    types: set[str] = {*dir(builtins), *_imported(tree)}
    bound = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and _stored(node)]
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name, decorator_list=[]) if name not in bound:
                types.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if bound.count(name) == 1 and _is_type(value, types):
                    types.add(name)
    for name in bound:
        if bound.count(name) > 1:
            types.discard(name)
    for kind in ast.walk(tree):
        for field in kind.body if isinstance(kind, ast.ClassDef) else ():
            if isinstance(field, ast.AnnAssign) and not _is_type(field.annotation, types):
                text = ast.unparse(field.annotation)
                yield field.lineno, f"declares a field with a type that is not plain ({text})"


def _made_types(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield where `type` does more than say the type of something: it could make a class."""
    asked = {
        id(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
        if not isinstance(node.args[0], ast.Starred)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "type" and id(node) not in asked:
            yield node.lineno, "makes a class at run time (type)"


def _stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield the names that imports give."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield (alias.asname or alias.name).split(".")[0]
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*" and node.module:
            yield from dir(import_module(node.module)) if _allowed(node.module) else ()


def _is_type(node: ast.expr, types: Collection[str]) -> bool:
    """Return whether an expression is made of types alone, so that it is never a text."""
    match node:
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name)):
            return name in types
        case ast.Constant(value=value):
            return value is None or value is ...
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_type(left, types) and _is_type(right, types)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all(_is_type(part, types) for part in parts)
        case ast.Subscript(value=head, slice=inner):
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            taken = {"Literal": 0, "Annotated": 1}.get(ast.unparse(head).split(".")[-1])
            return _is_type(head, types) and all(_is_type(part, types) for part in parts[:taken])
    return False


def _own(tree: ast.Module) -> set[str]:
    """Return the names that the file gives to functions, variables and arguments of its own."""
    nodes = list(ast.walk(tree))
    return {
        *(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)),
        *(
            node.id
            for node in nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ),
        *(node.arg for node in nodes if isinstance(node, ast.arg)),
    }


def _words(node: ast.AST, own: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the names in a node by which a method could ask where it runs."""
    names: list[str] = []
    if isinstance(node, ast.Attribute):
        names = [node.attr]
    elif isinstance(node, ast.MatchClass):
        names = node.kwd_attrs
    elif isinstance(node, ast.Name):
        names = [node.id]
    elif isinstance(node, ast.ImportFrom):
        names = [alias.name for alias in node.names]
    for name in names:
        line = getattr(node, "lineno", 0)
        hidden = name not in (PLAIN if name.startswith("__") else own) and name.startswith("_")
        leads = name in _leading() and isinstance(node, ast.Attribute | ast.MatchClass)
        if name in WHY:
            yield line, f"{WHY[name]} ({name})"
        elif (hidden and not isinstance(node, ast.ImportFrom)) or leads:
            yield line, f"reaches {ast.unparse(node) if isinstance(node, ast.expr) else name}"
