"""Plug-ins: a class is registered by being in its folder.

A plug-in folder is a Python package whose modules define frozen dataclasses with an `id`. These
modules import nothing heavy at their top (no torch, timm or transformers), so that listing plug-ins
takes milliseconds. Users have places of their own for plug-ins of any kind: folders, packages that
config.yaml names, and installed packages with an entry point. Each class is checked once, when it
is found.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import textwrap
import threading
import traceback
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import fields
from functools import cache
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from importlib.metadata import entry_points
from itertools import product
from pathlib import Path
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any, TypeVar, cast

from clipnoise.errors import UserError, reason, unknown
from clipnoise.files import read_yaml

P = TypeVar("P")
Describe = Callable[[Path], Iterable[Any]]

OWN = "clipnoise.own"  # what the user's first folder is imported as
GROUP = "clipnoise.plugins"  # the entry points of installed packages with plug-ins
VARIABLE = "CLIPNOISE_PLUGINS"  # the environment variable that names the user's places, one a line
NONE = "-"  # its value where nothing of the user's is imported
NO_PLUGINS = ("test_*.py", "conftest.py")
SLOW_SECONDS = 5.0  # of the import of a user's file, after which a line says what is waited for
LONGEST_ID = 80  # characters: ids name folders
ID = re.compile("[a-z0-9]+(-[a-z0-9]+)*")


def use_places(places: object, root: Path = Path()) -> None:
    """Name the user's folders and packages for this process and those that it starts.

    Args:
        places: one or several paths of folders or dotted names of packages, as in config.yaml; None
            for none. The first may be a folder that is not there yet.
        root: the folder that paths are relative to.

    Raises:
        UserError: another one is neither a folder nor a package.
    """
    given = [places] if isinstance(places, str) else places
    names = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
    found = []
    for number, name in enumerate(names):
        package = not (root / name).is_dir() and _package(name)
        if not (package or number == 0 or (root / name).is_dir()):
            raise UserError(f"config.yaml: plugins: {name!r} is no folder, and no package of that "
                            "name can be imported.")  # fmt: skip
        found.append(name if package else str((root / name).resolve()))
    os.environ[VARIABLE] = "\n".join(found)


def use_no_places() -> None:
    """Import nothing of the user's in this process: neither folders nor installed packages."""
    os.environ[VARIABLE] = NONE


def use_places_of(config: Path) -> None:
    """Use the places that config.yaml names, unless the environment names some already."""
    if VARIABLE not in os.environ and config.is_file():
        with suppress(UserError):  # it may be another program's; who needs it says so
            use_places(read_yaml(config).get("plugins"), config.parent)


def own_folder() -> Path | None:
    """Return the user's first folder, in which new plug-ins are written; None if there is none."""
    (first, *_) = os.environ.get(VARIABLE, "").split("\n")
    if first in ("", NONE):
        return None
    return Path(first) if Path(first).is_dir() or not _package(first) else None


def own_packages() -> Mapping[str, Path]:
    """Return the folder of each package that is the user's, by its dotted name."""
    return _own_packages(os.environ.get(VARIABLE, ""))


def is_own(module: str) -> bool:
    """Return whether a module, by its dotted name, is the user's."""
    return any(f"{module}.".startswith(f"{package}.") for package in own_packages())


def plugins(package: str | None, base: type[P]) -> Mapping[str, type[P]]:
    """Find every concrete plug-in class of a package and of the user's places, once per process.

    A function `described` of a module of the package yields further ones, which files of a folder
    describe.

    Args:
        package: dotted name of the plug-in folder, e.g. `"clipnoise.methods"`; None to look in the
            user's places alone.
        base: the contract class; subclasses that define an `id` are plug-ins. Its attribute `needs`
            names what each must define; without it they are not checked.

    Returns:
        Plug-in classes by id, sorted by id, read-only.

    Raises:
        UserError: a file cannot be imported, a class lacks something, or two classes claim the same
            id; the message names the file and the class.
    """
    places = os.environ.get(VARIABLE, "")
    return cast("Mapping[str, type[P]]", _plugins(package, cast("Any", base), places))


@cache
def _plugins(package: str | None, base: Any, places: str) -> Mapping[str, Any]:
    """Find what `plugins` returns; `places` only tells the cache that the user's have changed."""
    found, describe = ({}, ()) if package is None else _package_plugins(package, base)
    classes = dict(found)
    _add_plugins(classes, _own_modules(), base)
    _add_described(classes, own_packages().values(), describe, base)
    return MappingProxyType(dict(sorted(classes.items())))


def package_plugins(package: str, base: type[P]) -> Mapping[str, type[P]]:
    """Find the plug-in classes of a package alone, as `plugins` does."""
    return cast("Mapping[str, type[P]]", _package_plugins(package, cast("Any", base))[0])


@cache
def _package_plugins(package: str, base: Any) -> tuple[Mapping[str, Any], tuple[Describe, ...]]:
    """Find the classes of a plug-in folder alone, and its functions that read descriptions."""
    places = importlib.import_module(package).__path__
    names = [found.name for found in pkgutil.walk_packages(places, f"{package}.")]
    modules = list(map(_imported, names))
    describe = tuple(vars(module)["described"] for module in modules if "described" in vars(module))
    classes: dict[str, Any] = {}
    _add_plugins(classes, modules, base)
    _add_described(classes, map(Path, places), describe, base)
    return MappingProxyType(classes), describe


def _add_plugins(classes: dict[str, Any], modules: Iterable[ModuleType], base: Any) -> None:
    """Add the plug-in classes that modules define, by id."""
    for module in modules:
        for value in vars(module).values():
            if not (inspect.isclass(value) and issubclass(value, base) and value is not base):
                continue
            if value.__module__ != module.__name__ or not _is_plugin(value):
                continue
            _add(classes, value, base)


def _add_described(
    classes: dict[str, Any], folders: Iterable[Path], describe: Iterable[Describe], base: Any
) -> None:
    """Add the plug-ins that files of some folders describe."""
    for folder, described in product(folders, describe):
        for value in described(folder):
            _add(classes, value, base)


def _add(classes: dict[str, Any], value: Any, base: Any) -> None:
    problems = list(_problems(value)) if hasattr(base, "needs") else []
    if problems:
        raise UserError(f"{place_of(value)}: {'; '.join(problems)}.")
    other = classes.setdefault(vars(value)["id"], value)
    if other is not value:
        raise UserError(f"{place_of(value)}: its id {other.id!r} is that of {place_of(other)}.")


class _FromText(SourceFileLoader):
    """Imports a user's file from its text, and keeps the text.

    Python's compiled copies are not used: they count as current if size and time are those of the
    file, as they also are after an edit that is undone at once.
    """

    text: bytes | None = None

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        self.text = self.get_data(path)
        code: CodeType = self.source_to_code(self.text, path)
        return code


def imported_text(module: str) -> bytes | None:
    """Return the text that a user's module was imported from, whatever its file holds by now.

    None for a module that has not been imported, or is not the user's.
    """
    loader = getattr(sys.modules.get(module), "__loader__", None)
    return loader.text if isinstance(loader, _FromText) else None


def _import_from_text(folder: Path) -> None:
    """Import what is in a folder, and below it, from the texts of its files."""
    compiled = (ExtensionFileLoader, EXTENSION_SUFFIXES)
    for place in {folder, *(path.parent for path in folder.rglob("*.py"))}:
        sys.path_importer_cache[str(place)] = FileFinder(
            str(place), (_FromText, SOURCE_SUFFIXES), compiled
        )


@cache
def _own_packages(places: str) -> Mapping[str, Path]:
    """Find the user's packages. Folders become packages; those of other places are forgotten."""
    for name in [name for name in sys.modules if f"{name}.".startswith((f"{OWN}.", f"{OWN}_"))]:
        del sys.modules[name]
    importlib.invalidate_caches()
    found: dict[str, Path] = {}
    if places == NONE:
        return MappingProxyType(found)
    for number, place in enumerate(filter(None, places.split("\n"))):
        folder = Path(place)
        if not folder.is_dir() and (package := _package(place)):
            found[place] = package
            continue
        name = OWN if number == 0 else OWN + "_" + re.sub(r"\W", "_", folder.name)
        if name in found:
            raise UserError(f"{folder}: {found[name]} has the same name; rename one of them.")
        sys.modules[name] = module = ModuleType(name)
        module.__path__ = [str(folder)]
        found[name] = folder
    for point in entry_points(group=GROUP):
        if not (package := _package(point.value)):
            raise UserError(f"entry point {point.name!r} in the group {GROUP}: there is no package "
                            f"{point.value!r}.")  # fmt: skip
        found.setdefault(point.value, package)
    for folder in found.values():
        _import_from_text(folder)
    return MappingProxyType(found)


def _own_modules() -> Iterator[ModuleType]:
    """Import the modules of the user's packages, tests left out."""
    for package, folder in own_packages().items():
        folders = package.startswith(OWN)
        if not folders:
            yield _imported(package, folder / "__init__.py")
        for path in sorted(folder.glob("*.py") if folders else folder.rglob("*.py")):
            if path.name != "__init__.py" and not any(map(path.match, NO_PLUGINS)):
                parts = path.relative_to(folder).with_suffix("").parts
                yield _imported(".".join([package, *parts]), path)


def _package(name: str) -> Path | None:
    """Return the folder of a package that can be imported; None for a module or for nothing."""
    with suppress(ImportError, ValueError):
        found = importlib.util.find_spec(name)
        if found is not None and found.origin and found.origin.endswith("__init__.py"):
            return Path(found.origin).parent
    return None


def _imported(name: str, path: Path | None = None) -> ModuleType:
    """Import a module; where it is the user's, name its file and the line that fails.

    What the user's code prints goes to standard error, because commands print results.
    """
    if path is None:
        return importlib.import_module(name)
    try:
        with redirect_stdout(sys.stderr), _said_if_slow(path):
            return importlib.import_module(name)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else next(reversed(lines), None)
        what = error.msg if isinstance(error, SyntaxError) else reason(error)
        place = f"{path}:{line}" if line else path
        raise UserError(f"{place}: {type(error).__name__}: {what}.") from error


@contextmanager
def _said_if_slow(path: Path) -> Iterator[None]:
    """Say what is waited for if the block takes long."""
    text = f"clipnoise: {path} is being imported, for more than {SLOW_SECONDS:g} s."
    timer = threading.Timer(SLOW_SECONDS, print, [text], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def place_of(kind: type) -> str:
    """Return the file and the name of a class, for error messages."""
    described = vars(kind).get("described_in")
    if described is not None:
        return f"{described}: datasets.{vars(kind)['id']}"
    return f"{inspect.getfile(kind)}: class {kind.__name__}"


def _is_plugin(kind: type) -> bool:
    """Return whether a class is a plug-in: it has an id, or is the user's and has no subclass."""
    last = not kind.__subclasses__() and not kind.__name__.startswith("_")
    return "id" in vars(kind) or (last and is_own(kind.__module__))


def _problems(kind: type) -> Iterator[str]:
    """Yield what a plug-in lacks, in words."""
    members, annotated = vars(kind), inspect.get_annotations(kind)
    bases = kind.__mro__[1:]
    identifier = members.get("id")
    if not isinstance(identifier, str) or not ID.fullmatch(identifier):
        yield f"it needs an id of lower-case letters, digits and -, such as {_as_id(kind)!r}"
    elif len(identifier) > LONGEST_ID:
        yield f"its id has {len(identifier)} characters, at most {LONGEST_ID} are allowed"
    if "__dataclass_params__" not in members:
        yield "it needs @dataclass(frozen=True, kw_only=True) above it"
    inherited = {field.name for base in bases if "__dataclass_fields__" in vars(base)
                 for field in fields(cast("Any", base))}  # fmt: skip
    for name, value in members.items():
        known = any(name in vars(base) or name in inspect.get_annotations(base) for base in bases)
        plain = not (name.startswith("_") or callable(value) or hasattr(value, "__get__"))
        if plain and name not in annotated and (name in inherited or not known):
            yield f"{name} needs a type, such as {name}: {type(value).__name__} = {value!r}"
    if is_own(kind.__module__):
        yield from _unfit(kind, bases)
    asking = [base for base in kind.__mro__ if "needs" in vars(base)]
    for base in asking:
        for name, annotation in inspect.get_annotations(base).items():
            if "ClassVar" in str(annotation) and name != "id" and not hasattr(kind, name):
                yield f"it has no {name}"
    for name in getattr(kind, "needs", ()):
        value, asked = (inspect.getattr_static(one, name) for one in (kind, asking[0]))
        if value is asked:
            yield f"it has no {name}"
        elif inspect.isclass(value):
            yield f"its {name} must be a value, such as {value.__name__}()"
        elif name in members and isinstance(value, FunctionType) and _returns_nothing(value, asked):
            yield f"its {name} returns nothing"


def _unfit(kind: type, bases: tuple[type, ...]) -> Iterator[str]:
    """Yield what of a user's class could not be used: types of options, and ways to be called."""
    try:
        inspect.get_annotations(kind, eval_str=True)
    except NameError as error:
        for name, annotation in inspect.get_annotations(kind).items():
            if "ClassVar" not in annotation and re.search(rf"\b{error.name}\b", annotation):
                yield (
                    f"{name}: its type {error.name!r} is not defined. Import it, and outside of "
                    "`if TYPE_CHECKING`"
                )
    except Exception as error:
        yield f"the type of an option is none: {reason(error)}"
    for name, value in vars(kind).items():
        over = next((vars(base)[name] for base in bases if name in vars(base)), None)
        if isinstance(value, FunctionType) and isinstance(over, FunctionType) and name[:2] != "__":
            given = [one.name for one in inspect.signature(over).parameters.values()
                     if one.kind is one.POSITIONAL_OR_KEYWORD]  # fmt: skip
            try:
                inspect.signature(value).bind(*given)
            except TypeError:
                yield f"its {name} must take ({', '.join(given)})"


def _as_id(kind: type) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", kind.__name__).lower()


def _returns_nothing(function: FunctionType, asked: FunctionType) -> bool:
    """Return whether a function returns no value, where the one that it overrides has to."""
    if inspect.get_annotations(asked).get("return") == "None" or not is_own(function.__module__):
        return False
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    ends = [node for node in ast.walk(definition) if isinstance(node, ast.Return | ast.Raise)]
    return not any(isinstance(end, ast.Raise) or end.value is not None for end in ends)


def lookup(
    package: str, base: type[P], kind: str, name: str, *, file: str | None = None
) -> type[P]:
    """Return the plug-in class with an id.

    Args:
        package, base: as in `plugins`.
        kind: the word for an error message, e.g. `"dataset"`.
        name: the id.
        file: that the id was read from, for the error message.

    Raises:
        UserError: no such plug-in; the message lists the valid ids and the nearest one.
    """
    known = plugins(package, base)
    if name not in known:
        raise or_no_folder(unknown(kind, name, known, file=file, key=f"{kind}.id"))
    return known[name]


def or_no_folder(error: UserError) -> UserError:
    """Return an error about an unknown plug-in, with the user's folder if it is not there."""
    folder = own_folder()
    if folder is None or folder.is_dir():
        return error
    return UserError(f"{error} The folder of plug-ins, {folder}, is not there.")


def require_sealed(kind: type) -> None:
    """Refuse a class that redefines what privacy rests on: itself, or by a class that it mixes in.

    Each class of the package that users derive from names such attributes in `sealed`.

    Raises:
        TypeError: it names the class and the attribute.
    """
    if type(kind) not in (type, ABCMeta):
        raise TypeError(f"{kind.__name__}: its metaclass {type(kind).__name__} is not allowed")
    for name in ("__getattribute__", "__getattr__"):
        if _found(kind, name) is not _found(object, name):
            raise TypeError(f"{kind.__name__}.{name}: only the suite decides what attributes are")
    for base in reversed(kind.__mro__):
        names = vars(base).get("sealed", ())
        for name in names if isinstance(names, tuple) else ():
            if _found(kind, name) is not _found(base, name):
                raise TypeError(f"{kind.__name__}.{name}: only the suite decides this")


def _found(kind: type, name: str) -> Any:
    """Return an attribute as it is found in a class and its bases, without calling anything."""
    return inspect.getattr_static(kind, name, None)
