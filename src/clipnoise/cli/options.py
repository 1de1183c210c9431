"""What the commands share: kinds of options, and options that several commands take."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import ValidationError

from clipnoise.errors import UserError, unknown
from clipnoise.fields import adapter

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
TRACKING = click.Choice(("live", "after", "sync", "off"))
STUDIES = Path("workflow/studies")
TEMPLATES = Path("reports/templates")


class Ranged(click.ParamType[Any]):
    """A number in the range of a field type, such as `Ranged(Count)`."""

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


class ListOption(click.Option):
    """An option whose name may be followed by any number of values, none included.

    This is what a rule of the workflow emits where a list of files may be empty: `--scale` with
    nothing after it is as good as no `--scale`. With `multiple=True` it takes several values, and
    its name may also be repeated; otherwise it takes at most one.
    """


class Command(click.Command):
    """A command that may have list options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        lists = [option for option in self.params if isinstance(option, ListOption)]
        most = {name: None if o.multiple else 1 for o in lists for name in o.opts}
        return super().parse_args(ctx, list(_repeat_names(args, most)))


def _repeat_names(words: list[str], most: dict[str, int | None]) -> Iterator[str]:
    """Turn `--runs a b` into `--runs a --runs b`, and `--runs` without a value into nothing.

    Args:
        words: the command line.
        most: how many values an option may take, by its name; None for any number.
    """
    name, left = "", 0.0
    for word in words:
        if word in most:
            name, left = word, most[word] or math.inf
        elif word.startswith("--"):
            name, left = "", 0.0
            yield word
        elif left > 0:
            left -= 1
            yield from (name, word)
        else:
            yield word


class CommandGroup(click.Group):
    """A group of commands that suggests the nearest name for an unknown one."""

    command_class = Command

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


def command(name: str | None = None) -> Callable[[Callable[..., Any]], Command]:
    """Return the decorator that makes a function a command, by its own name unless told another."""
    return click.command(name, cls=Command)


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Make one decorator of several options, listed by `--help` in this order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def folder(name: str, text: str) -> Callable[[F], F]:
    """Return the option for a folder that is called like the option unless the user says so."""
    return click.option(f"--{name}", type=PATH, default=Path(name), help=text)


results = folder("results", "Folder of result files.")
cache = click.option("--cache", type=PATH, default=Path("data"), help="Prepared datasets.")
weights = folder("weights", "Folder of pretrained weights.")
threads = click.option("--threads", type=int, default=1, help="CPU threads of a run.")
scale = click.option(
    "--scale",
    cls=ListOption,
    type=PATH,
    help="Scale file that makes the study smaller, e.g. workflow/scales/smoke.yaml.",
)
secure_noise = click.option(
    "--secure-noise", is_flag=True, help="What config.yaml may ask for: secure noise in all runs."
)


def hyperparameters(*, required: bool) -> Callable[[F], F]:
    """Return the option for a method's hyper-parameters; none by default."""
    return click.option(
        "--hyperparameters",
        default=None if required else "{}",
        required=required,
        callback=lambda context, option, text: _json_object(text),
        help="JSON object of the method's hyper-parameters, named as in a run spec.",
    )


def template(name: str) -> Callable[[F], F]:
    """Return the option for a Typst template."""
    file = TEMPLATES / name
    return click.option("--template", type=PATH, default=file, help="Layout.")


def out(text: str, *, required: bool = True) -> Callable[[F], F]:
    """Return the option for what is written."""
    return click.option("--out", type=PATH, required=required, help=text)


def limit_threads(threads: int) -> None:
    """Limit the CPU threads of numerical libraries that have not been imported yet."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)


def _json_object(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"--hyperparameters: not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError("--hyperparameters: expected a JSON object.")
    return values
