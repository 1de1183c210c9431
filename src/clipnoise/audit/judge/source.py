"""The source of the judged file, read without running it: what a method has no business with."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clipnoise.errors import UserError

# What a file may import: none of these leads to private data, to the machine or to other objects.
ALLOWED = """
    __future__ abc annotated_types collections collections.abc dataclasses enum fractions functools
    itertools math numbers numpy statistics torch torch.fft torch.linalg torch.nn
    torch.nn.functional torch.special typing typing_extensions clipnoise.core.method
    clipnoise.core.query clipnoise.core.state clipnoise.data.side_information clipnoise.errors
    clipnoise.fields clipnoise.privacy.queries
"""
# What refutes it; any other import is named as not followed. The first ones are also attributes of
# modules that may be imported.
LEADING = """
    builtins ctypes gc importlib inspect io multiprocessing os pathlib pickle random subprocess sys
    threading traceback types weakref
"""
FORBIDDEN = """
    asyncio atexit clipnoise code codeop concurrent copyreg datetime dis faulthandler fcntl getpass
    glob http linecache marshal mmap opacus pkgutil platform posix pty requests resource runpy
    secrets select shelve shutil signal site sklearn snakemake socket sqlite3 sysconfig tempfile
    time tracemalloc unittest urllib uuid
"""
REASONS = {
    "reads other objects than it is given": """
        _getframe _current_frames currentframe f_back f_locals f_globals f_builtins tb_frame
        gi_frame cr_frame ag_frame gi_yieldfrom __traceback__ __globals__ __closure__ __code__
        __builtins__ __dict__ __subclasses__ __mro__ __bases__ __base__ __loader__ __spec__
        __self__ __wrapped__ __file__ cell_contents get_objects get_referrers get_referents globals
        locals vars _SEALED attrgetter methodcaller
    """,
    "runs code that the judge cannot read": """
        eval exec compile __import__ import_module load_library cpp_extension breakpoint
    """,
    "reads or writes outside of the run": """
        open load save fromfile tofile memmap loadtxt genfromtxt savetxt savez from_file environ
        getenv argv hub load_state_dict_from_url
    """,
    "looks at a random stream": """
        Generator default_generator default_rng RandomState manual_seed initial_seed get_rng_state
        set_rng_state fork_rng
    """,
    "changes what is not its own": """
        setattr delattr __setattr__ __delattr__ __getattribute__ __set_name__ __class_getitem__
        __torch_function__ __torch_dispatch__ TorchFunctionMode TorchDispatchMode register_hook
        set_default_dtype set_num_threads get_num_threads
    """,
}
WHY = {name: why for why, names in REASONS.items() for name in names.split()}
CHANGES = """
    add append appendleft clear discard extend insert pop popitem popleft remove reverse rotate
    setdefault sort update __setitem__
"""
BOUNDED = ("OwnClipRule", "OwnNoise")  # whatever derives from them, the suite bounds what it does
CONTAINERS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.Call)


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
    """Read a method's file for what a method has no business with.

    Reading finds what is there to be read: what the code does is for the other checks.

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
            if top in f"{FORBIDDEN} {LEADING}".split() or name.startswith("_"):
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
    problems += [found for node in ast.walk(tree) for found in _replaced(node, set(imported))]
    problems += [
        (node.lineno, f"reaches {ast.unparse(node)}")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in LEADING.split()
        and _root(node) in imported
    ]
    problems += list(_kept(tree))
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
    """Yield the names in a node that lead where a method has no business."""
    names: list[str] = []
    if isinstance(node, ast.Attribute):
        names = [node.attr]
    elif isinstance(node, ast.Name):
        names = [node.id]
    elif isinstance(node, ast.ImportFrom):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.FunctionDef):
        names = [node.name] if node.name.startswith("__") else []
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        names = [node.value] if node.value in WHY and "_" in node.value else []
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        literal = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
        if node.func.id == "getattr" and not literal:
            yield node.lineno, "reads an attribute whose name it computes (getattr)"
    elif isinstance(node, ast.Global | ast.Nonlocal):
        yield node.lineno, f"keeps {', '.join(node.names)} outside of its state"
    for name in names:
        if name in WHY:
            yield getattr(node, "lineno", 0), f"{WHY[name]} ({name})"


def _replaced(node: ast.AST, imported: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the attributes of imported modules and classes that a statement replaces."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    for target in targets:
        for inner in ast.walk(target):
            if not isinstance(inner, ast.Attribute) or isinstance(inner.ctx, ast.Load):
                continue
            if _root(inner) in imported:
                yield inner.lineno, f"replaces {ast.unparse(inner)}"


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _kept(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield where a function changes a container that outlives the step, other than its state."""
    lasting: set[str] = set()
    for statement in ast.walk(tree):
        body = statement.body if isinstance(statement, ast.Module | ast.ClassDef) else []
        for each in body:
            if isinstance(each, ast.Assign | ast.AnnAssign) and isinstance(each.value, CONTAINERS):
                targets = each.targets if isinstance(each, ast.Assign) else [each.target]
                lasting |= {target.id for target in targets if isinstance(target, ast.Name)}
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.Lambda):
            continue
        defaults = [*function.args.defaults, *filter(None, function.args.kw_defaults)]
        if any(isinstance(default, CONTAINERS[:-1]) for default in defaults):
            yield function.lineno, "has a default argument that can keep what a step leaves in it"
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute):
                changes = node.attr in CHANGES.split()
            elif isinstance(node, ast.Subscript):
                changes = not isinstance(node.ctx, ast.Load)
            else:
                continue
            if not changes:
                continue
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else _root(owner)
            if name in lasting:
                yield node.lineno, f"keeps something in {name}, outside of its state"
