"""The source of a judged file, read without running it for ways to find out where it runs.

The one threat met here is a file that asks where it runs. The other checks run the method where it
can reach nothing private, and demand the same results, so nothing that a method does wherever it
runs can hide from them.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import pkgutil
import sys
import types
import typing
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from torch import Tensor

from clipnoise.errors import UserError

# What a file may import: none of these tells where it runs.
ALLOWED = """
    __future__ abc annotated_types collections collections.abc dataclasses enum fractions functools
    itertools math numbers numpy numpy.fft numpy.linalg statistics torch torch.fft torch.functional
    torch.linalg torch.nn torch.nn.functional torch.special typing typing_extensions
    clipnoise.core.method clipnoise.core.query clipnoise.core.state clipnoise.data.side_information
    clipnoise.errors clipnoise.fields clipnoise.privacy.queries
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
    "asks for the clock, the threads or the user": """
        datetime64 get_num_threads get_num_interop_threads set_num_threads set_num_interop_threads
        input help
    """,
}
WHY = {name: why for why, names in REASONS.items() for name in names.split()}
EVERYDAY = ("input", "help")  # a file may call something of its own so
# Names without underscores lead from one of these types to the next, and so to all globals.
INNER = (
    *(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType),
    *(types.FrameType, types.TracebackType, types.CodeType),
)
OF_INNER = ("gi_", "cr_", "ag_", "f_", "tb_", "co_")
# Any other name with underscores around it may lead to frames, globals or the file itself.
PLAIN = (
    *("__all__", "__author__", "__class__", "__doc__", "__init__", "__name__", "__post_init__"),
    "__version__",
)
STARRED = "clipnoise.methods.base"  # all names of this module may be imported at once
UNREAD = object()  # a module that is not read, and all that it gives
BOUNDED = ("OwnClipRule", "OwnNoise")  # whatever derives from them, the suite bounds what it does


def read_file(file: Path) -> tuple[str, list[str], list[str]]:
    """Return the text of a file, and what `read_source` says of it.

    Raises:
        UserError: it is not Python, or it has a kind of clip rule or noise, which are not judged.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
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
    bound = _bound(tree)
    problems, unread = [*_names(tree, bound), *_types(tree, bound)], set()
    for line, module, name in _imports(tree):
        if name in BOUNDED:
            raise UserError(
                f"{file}:{line}: clip rules and kinds of noise are not judged, because the suite "
                "bounds what they do. Put them into a file of their own, and judge the method."
            )
        if _allowed(module) or name.startswith("_") or {module.split(".")[0], name} & REFUSED:
            problems.append((line, f"imports {module}{name and f', {name}'}"))
        else:
            unread.add(module)
    said = dict.fromkeys(f"line {line}: it {what}" for line, what in sorted(problems))
    return list(said), sorted(unread)


def _bound(tree: ast.Module) -> Counter[str]:
    """Return how often a file gives each name to something of its own, imports aside."""
    bound: Counter[str] = Counter()
    for node in ast.walk(tree):
        match node:
            case (
                ast.Name(id=name, ctx=ast.Store())
                | (ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.ExceptHandler(name=str(name))
            ):
                bound[name] += 1
    return bound


# What a file imports


def _allowed(module: str) -> bool:
    return module in ALLOWED.split() or f"{module}.".startswith("clipnoise.methods.")


def _read(module: str) -> object:
    """Return a module as it is without the file, or what stands for one that may not be read."""
    try:
        return import_module(module) if _allowed(module) else UNREAD
    except ImportError:
        return UNREAD


def _leads(value: object) -> bool:
    return isinstance(value, ModuleType) and not _allowed(value.__name__)


def _imports(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield what no file may simply import: its line, a module, and a name or "" for all of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, one.name, "") for one in node.names if not _allowed(one.name))
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                if not _allowed(f"{module}.{alias.name}") and not _plain(module, alias.name):
                    yield node.lineno, module, alias.name


def _plain(module: str, name: str) -> bool:
    """Return whether a name is one of a module that is allowed, and leads to no other module."""
    if not _allowed(module) or name == "*":
        return name == "*" and module == STARRED
    found = _read(module)
    return name[0] != "_" and hasattr(found, name) and not _leads(getattr(found, name))


@cache
def _leading() -> Collection[str]:
    """Return the attributes by which what a file may import leads to modules that it may not."""
    found, kept = {*LEADING.split()}, {*dir(Tensor), *dir(dict)}
    found |= {name for kind in INNER for name in dir(kind) if name.startswith(OF_INNER)}
    for place in ALLOWED.split():
        module = import_module(place)
        found |= {name for name, value in vars(module).items() if _leads(value)}
        below = [one.name for one in pkgutil.iter_modules(getattr(module, "__path__", ()))]
        found |= {name for name in below if not _allowed(f"{place}.{name}")}
        kept |= {name for name in vars(module) if _allowed(f"{place}.{name}")}
    return found - kept


# What it names


def _classes(tree: ast.Module) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def _declared(tree: ast.Module) -> Iterator[ast.AnnAssign]:
    parts = (each for kind in _classes(tree) for each in kind.body)
    yield from (each for each in parts if isinstance(each, ast.AnnAssign))


def _is_option(node: ast.expr, fields: Collection[str]) -> bool:
    """Return whether an expression is an option of `self`, or one of an option that has some."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name in fields
        case ast.Attribute(value=holder, attr=name):
            return name in fields and _is_option(holder, fields)
    return False


def _names(tree: ast.Module, bound: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield the names by which a method could ask where it runs."""
    fields = {ast.unparse(field.target) for field in _declared(tree)}  # which may have any name
    asked: list[ast.AST] = []  # `type` where it says what something is
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.Attribute() if _is_option(node, fields):
                continue
            case ast.Name(id=name, ctx=ast.Store()) if name in fields:
                continue
            case ast.Call(func=ast.Name(id="type") as kind, args=[given], keywords=[]):
                asked += [] if isinstance(given, ast.Starred) else [kind]
            case ast.Name(id="type") if node not in asked:
                yield node.lineno, "makes a class at run time (type)"
            case ast.Attribute(attr=name) | ast.Name(id=name):
                names = [name]
            case ast.MatchClass(kwd_attrs=names):
                pass
            case ast.ImportFrom(names=aliases):
                names = [alias.name for alias in aliases if alias.name in WHY]
        for name in names:
            line: int = getattr(node, "lineno", 0)
            own = PLAIN if name.startswith("__") else bound
            hidden = name.startswith("_") and name not in own
            its_own = name in EVERYDAY and name in bound and isinstance(node, ast.Name)
            if name in WHY and not its_own:
                yield line, f"{WHY[name]} ({name})"
            elif hidden or (name in _leading() and not isinstance(node, ast.Name)):
                yield line, f"reaches {ast.unparse(node) if isinstance(node, ast.expr) else name}"


# The types that it declares


def _types(tree: ast.Module, bound: Counter[str]) -> Iterator[tuple[int, str]]:
    """Yield the fields of classes whose types may be text, which is run as code when it is read.

    A class inherits fields, so its bases are those of other modules, or classes of the file.
    """
    given = {**vars(builtins), **_imported(tree)}
    given = {name: value for name, value in given.items() if name not in bound}
    kinds = _classes(tree)
    own = {kind.name for kind in kinds if bound[kind.name] == 1 and _stays(kind, given)}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if bound[name] == 1:
                own |= {name} if _is_type(value, given, own) else set()
    for field in _declared(tree):
        if not _is_type(field.annotation, given, own):
            text = ast.unparse(field.annotation)
            yield field.lineno, f"declares a field with a type that is not plain ({text})"
    for kind in kinds:
        heads = [base.value if isinstance(base, ast.Subscript) else base for base in kind.bases]
        if kind.keywords or not all(_is_type(head, given, own) for head in heads):
            yield kind.lineno, f"makes a class at run time ({kind.name})"


def _stays(kind: ast.ClassDef, given: Mapping[str, object]) -> bool:
    """Return whether the name of a class is that class, and not what a decorator makes of it."""
    plain = [one.func if isinstance(one, ast.Call) else one for one in kind.decorator_list]
    return all(_given(one, given) in (dataclasses.dataclass, typing.final) for one in plain)


def _imported(tree: ast.Module) -> dict[str, object]:
    """Return what imports give, by the names that they give it."""
    found: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.split(".")[0]
                found[alias.asname or name] = _read(name)
        elif isinstance(node, ast.ImportFrom):
            module = _read("." * node.level + (node.module or ""))
            for alias in node.names:
                if alias.name == "*":
                    found |= vars(import_module(STARRED))
                else:
                    found[alias.asname or alias.name] = getattr(module, alias.name, UNREAD)
    return found


def _is_type(node: ast.expr, given: Mapping[str, object], own: Collection[str]) -> bool:
    """Return whether an expression is made of types alone, so that it is never a text.

    Args:
        node: the expression.
        given: what the file did not make, by name. Only its members are types: those of the file's
            own classes could be anything.
        own: the names of types that the file makes.
    """
    match node:
        case ast.Name(id=name) if name in own:
            return True
        case ast.Name() | ast.Attribute():
            return not isinstance(_given(node, given), str)
        case ast.Constant(value=value):
            return value is None or value is ...
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_type(left, given, own) and _is_type(right, given, own)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all(_is_type(part, given, own) for part in parts)
        case ast.Subscript(value=head, slice=inner):
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            taken = {"Literal": 0, "Annotated": 1}.get(ast.unparse(head).split(".")[-1])
            plain = all(_is_type(part, given, own) for part in parts[:taken])
            return plain and _is_type(head, given, ())
    return False


def _given(node: ast.expr, given: Mapping[str, object]) -> object:
    """Return what a name or a member of something given is; a text where nothing is given."""
    match node:
        case ast.Name(id=name):
            return given.get(name, "")
        case ast.Attribute(value=holder, attr=member):
            found = _given(holder, given)
            unknown = found is UNREAD or isinstance(found, str)
            return found if unknown else getattr(found, member, "")
    return ""
