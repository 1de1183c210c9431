"""Commands from function signatures: each parameter of a command is one of its options.

A parameter is annotated with its type and a line of help, or with `ARGUMENT` if it is given by its
place and not by its name:

    def collect(study: Annotated[Path, ARGUMENT], out: Annotated[Path, "Folder."]) -> None: ...

Numbers must be in the range of their field type, such as `Count`; a literal type lists the choices;
a sequence takes several values. A parameter without a default is required. A parameter whose type
is a dataclass stands for the fields of that dataclass, so that commands can share groups of
options. The folders of results, prepared datasets and weights are by default those that config.yaml
of the current folder names. Click does the rest; typer would do this, too, but it imports twice as
much and has no ranges that exclude their bounds.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click
from pydantic import ValidationError

from clipnoise.errors import UserError, unknown
from clipnoise.fields import adapter
from clipnoise.files import read_yaml

JsonValues = Mapping[str, Any]  # a JSON object as it is given on the command line
ARGUMENT = object()  # marks a parameter that is given by its place, not by its name


class Ranged(click.ParamType[Any]):
    """A number in the range of a field type."""

    name = "number"

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default
        try:
            number = adapter(self.kind).validate_strings(value)
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            self.fail(f"{problem[0].lower()}{problem[1:]}, got {value!r}", param, ctx)
        if not math.isfinite(number):
            self.fail(f"must be a finite number, got {value!r}", param, ctx)
        return number


class JsonObject(click.ParamType[Any]):
    """A JSON object, such as the hyper-parameters of a method."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default
        try:
            values = json.loads(value)
        except json.JSONDecodeError as error:
            self.fail(f"not valid JSON: {error}", param, ctx)
        if not isinstance(values, dict):
            self.fail("expected a JSON object", param, ctx)
        return values


class ListOption(click.Option):
    """An option whose name may be followed by any number of values, none included.

    This is what a rule of the workflow emits where a list of files may be empty: `--scale` with
    nothing after it is as good as no `--scale`. An option for a list takes several values, and its
    name may also be repeated; any other takes at most one.
    """


class Command(click.Command):
    """A command that may have list options, and folders that config.yaml names."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        usual = {str(one.name) for one in self.params if one.default in FOLDERS.values()}
        if usual:
            ctx.default_map = _folders(Path("config.yaml"), usual)
        lists = [option for option in self.params if isinstance(option, ListOption)]
        most = {name: math.inf if o.multiple else 1 for o in lists for name in o.opts}
        return super().parse_args(ctx, list(_repeat_names(args, most)))


def _folders(config: Path, names: Collection[str]) -> dict[str, str]:
    """Return those of some folders that config.yaml of the current folder names, if it is there."""
    if not config.is_file():
        return {}
    try:
        values = read_yaml(config)
    except UserError:  # it may be another program's; who needs it says so
        return {}
    return {name: str(values[name]) for name in names if isinstance(values.get(name), str)}


def _repeat_names(words: list[str], most: Mapping[str, float]) -> Iterator[str]:
    """Turn `--runs a b` into `--runs a --runs b`, and `--runs` without a value into nothing.

    `most` says how many values an option may take, by its name.
    """
    name, left = "", 0.0
    for word in words:
        if word.startswith("--"):
            name, left = word, most.get(word, 0)
            if word not in most:
                yield word
        elif left > 0:
            left -= 1
            yield from (name, word)
        else:
            yield word


class CommandGroup(click.Group):
    """A group of commands that suggests the nearest name for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None:
            raise unknown("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def sections(self, ctx: click.Context) -> dict[str, Iterable[str]]:
        """Return the commands that help lists, by heading."""
        return {"Commands": self.list_commands(ctx)}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List each command with the first line of its help, which is never cut."""
        for title, names in self.sections(ctx).items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl(
                    [(name, (c.help or "").partition("\n")[0]) for name, c in commands if c]
                )


def command(
    group: click.Group | None = None, *, name: str | None = None
) -> Callable[[Callable[..., Any]], Command]:
    """Return the decorator that makes a function a command.

    Args:
        group: the command that it belongs to, as `fetch` belongs to `data`.
        name: its name if it is not called like the function.
    """

    def decorate(function: Callable[..., Any]) -> Command:
        hints = get_type_hints(function, include_extras=True)
        shared = {key: kind for key, kind in hints.items() if is_dataclass(kind)}

        def callback(**values: Any) -> Any:
            for key, kind in shared.items():
                given = {field.name: values.pop(field.name) for field in fields(kind)}
                values[key] = kind(**given)  # type: ignore[operator]
            return function(**values)

        made = Command(
            name or function.__name__.replace("_", "-"),
            callback=callback,
            params=list(_parameters(function, hints)),
            help=inspect.getdoc(function),
        )
        if group is not None:
            group.add_command(made)
        return made

    return decorate


def _parameters(
    function: Callable[..., Any], hints: Mapping[str, object]
) -> Iterator[click.Parameter]:
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        if is_dataclass(kind):
            of_fields = get_type_hints(kind, include_extras=True)
            for field in fields(kind):
                empty = field.default is MISSING
                default = inspect.Parameter.empty if empty else field.default
                yield _parameter(field.name, of_fields[field.name], default)
        else:
            yield _parameter(name, kind, parameter.default)


def _parameter(name: str, hint: Any, default: Any) -> click.Parameter:
    """Return one option or argument; a required one has the default `inspect.Parameter.empty`."""
    kind, *markers = get_args(hint) if get_origin(hint) is Annotated else [hint]
    plain = _plain(kind)
    several = get_origin(plain) is Sequence
    element = get_args(plain)[0] if several else hint
    given = [marker for marker in markers if isinstance(marker, click.ParamType)]
    settings: dict[str, Any] = {
        "type": given[0] if given else _type(_plain(element), element),
        "required": default is inspect.Parameter.empty,
    }
    if ARGUMENT in markers:
        return click.Argument([name], nargs=-1 if several else 1, **settings)
    if not settings["required"]:
        settings["default"] = default
    if plain is bool:
        settings["is_flag"] = True
    form = ListOption if several or ListOption in markers else click.Option
    text = next((marker for marker in markers if isinstance(marker, str)), None)
    # A name that is a word of Python ends in an underscore: `from_` is --from.
    words = [f"--{name.rstrip('_').replace('_', '-')}", name]
    return form(words, multiple=several, help=text, **settings)


def _plain(kind: Any) -> Any:
    """Return a type without annotations and without None."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(option for option in get_args(kind) if option is not type(None))
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _type(plain: Any, annotated: Any) -> Any:
    """Return the click type for a type; `annotated` is the type with a number's range."""
    if plain is Path:
        return click.Path(path_type=Path)
    if get_origin(plain) is Literal:
        return click.Choice(get_args(plain))
    return Ranged(annotated) if plain in (int, float) else plain


def require_form(file: Path, forms: Iterable[str]) -> None:
    """Raise UserError where a file is not there, or its name ends in none of some suffixes."""
    if not file.is_file():
        raise UserError(f"{file}: no such file.")
    if file.suffix not in forms:
        raise UserError(f"{file}: its name must end in one of {', '.join(forms)}.")


def aligned(rows: Sequence[Sequence[str]], left: Iterable[int]) -> list[str]:
    """Return rows with their columns aligned, to the left where said."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            word.ljust(width) if place in left else word.rjust(width)
            for place, (word, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def limit_threads(threads: int) -> None:
    """Limit the CPU threads of numerical libraries that have not been imported yet."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)


NO_HYPERPARAMETERS: JsonValues = types.MappingProxyType({})
Hyperparameters = Annotated[
    JsonValues,
    JsonObject(),
    "JSON object of the method's hyper-parameters, as in a run spec.",
]
Results = Annotated[Path, "Folder of result files."]
Markdown = Annotated[Path | None, "Write the documentation page to this file."]
Cache = Annotated[Path, "Folder of prepared datasets."]
Weights = Annotated[Path, "Folder of pretrained weights."]
Template = Annotated[Path, "File with the layout."]
Threads = Annotated[int, "CPU threads of a run."]
Scale = Annotated[
    Path | None, ListOption, "Scale file that makes a study smaller: workflow/scales/smoke.yaml."
]
SecureNoise = Annotated[bool, "Secure noise in all private runs, as config.yaml may ask for."]

RESULTS, CACHE, WEIGHTS = Path("results"), Path("data"), Path("weights")
FOLDERS = {"results": RESULTS, "cache": CACHE, "weights": WEIGHTS}  # which config.yaml may set
STUDIES, TEMPLATES = Path("workflow/studies"), Path("reports/templates")
