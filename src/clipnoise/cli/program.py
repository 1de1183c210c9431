"""The program `clipnoise`: which commands there are, in which files, and how one is run."""

from __future__ import annotations

import errno
import importlib
import select
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from clipnoise.cli.options import CommandGroup
from clipnoise.errors import ENDED_BY_CODE, UserError, naming_extras, out_of_memory, printable


def _files(**names: str) -> dict[str, str]:
    """Return the file of each command, sorted by command, from the commands of each file."""
    return dict(sorted((name, file) for file, line in names.items() for name in line.split()))


USERS = _files(
    audit="audit reaccount selfcheck",
    claims="claims",
    doctor="doctor",
    inventory="data methods models weights",
    keys="report-items",
    judge="judge",
    league="league",
    mlflow="mlflow-sync mlflow-ui",
    new="new",
    predict="predict",
    privacy="account calibrate registry samplers",
    reports="papers partial-report",
    studies="archive check diagnose schema status verify",
    train="replay train",
)
WORKFLOW = _files(
    reports="bundle compare figure publish report reproduce reproduction-report table",
    studies="collect select",
)
COMMANDS = {**USERS, **WORKFLOW}
GONE = {"mlflow-init": "it is no longer needed: `clipnoise mlflow-sync --study FILE` does it, too"}


class LazyGroup(CommandGroup):
    """The commands of `clipnoise`; the file of one is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in GONE:
            raise UserError(f"{args[0]}: {GONE[args[0]]}.")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"clipnoise.cli.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def sections(self, ctx: click.Context) -> dict[str, Iterable[str]]:
        shown: dict[str, Iterable[str]] = {"Commands": USERS}
        if ctx.params["everything"]:
            shown["Commands that the workflow calls"] = WORKFLOW
        return shown


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, a quota, the largest allowed file
INTERRUPTED, UNREAD = 130, 141  # as a shell reports Ctrl-C and a closed pipe
SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 100}


PAGE = """# Commands

`clipnoise` alone lists these commands; `clipnoise --all` lists those that the workflow calls, too.
The exit code is 0 for success, 2 for a mistake that you can correct, and 1 for a
fault or a check that failed.
"""


@click.group(
    cls=LazyGroup, invoke_without_command=True, add_help_option=False, context_settings=SETTINGS
)
@click.option("--all", "everything", is_flag=True, help="Also list the workflow's own commands.")
@click.option("--markdown", type=Path, help="Write the page of the documentation on all commands.")
@click.option("-h", "--help", "wants_help", is_flag=True, help="Show this message.")
@click.pass_context
def program(
    context: click.Context, everything: bool, markdown: Path | None, wants_help: bool
) -> None:
    """Benchmark differentially private optimizers.

    `clipnoise COMMAND --help` explains a command.
    """
    if markdown is not None:
        from clipnoise.files import write_atomically

        write_atomically(markdown, "".join([PAGE, *_sections(context, USERS)]))
        click.echo(markdown)
        context.exit()
    if context.invoked_subcommand is None or wants_help:
        click.echo(context.get_help())
        context.exit()


def _sections(context: click.Context, names: Iterable[str]) -> Iterator[str]:
    """Yield what the help of each command says, and of those below it, for the documentation."""
    assert isinstance(context.command, click.Group)
    for name in names:
        command = context.command.get_command(context, name)
        assert command is not None
        words = f"{context.command_path} {name}"
        own = click.Context(command, info_name=name, parent=context, terminal_width=100)
        yield f"\n## {words}\n\n```text\n{command.get_help(own)}\n```\n"
        if isinstance(command, click.Group):
            yield from _sections(own, command.list_commands(own))


def run(words: list[str]) -> int:
    """Run one command in this process.

    Args:
        words: the words after the program's name.

    Returns:
        The exit code: 0 for success, 2 for a mistake the user can correct, 1 for a fault, and as
        shells report them 130 for Ctrl-C and 141 for a closed output pipe.
    """
    from clipnoise.plugins import use_places_of

    called = ["clipnoise", *(word for word in words[:1] if word in COMMANDS)]
    try:
        with naming_extras():
            use_places_of(Path("config.yaml"))
            code = program.main(words, prog_name="clipnoise", standalone_mode=False)
        print(end="", flush=True)
    except BrokenPipeError:
        return UNREAD
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except (UserError, click.ClickException) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else error
        print(printable(f"{' '.join(called)}: {message}"), file=sys.stderr)
        return 2
    except click.Abort:
        return INTERRUPTED
    except Exception as error:
        said = _no_room(error)
        if said is None:
            raise
        print(f"{' '.join(called)}: {said}", file=sys.stderr)
        return 1
    except SystemExit as error:  # no command ends so: with status 0 it would count as done
        if isinstance(error.__context__, BrokenPipeError) or _unread():  # rich ends it, or click
            return UNREAD
        print(f"{' '.join(called)}: {ENDED_BY_CODE}", file=sys.stderr)
        return 1
    return int(code or 0)


def _unread() -> bool:
    """Return whether the output is a pipe whose reader has closed it, as `| head` does."""
    output = select.poll()
    output.register(1, select.POLLOUT)
    return any(event & select.POLLERR for _, event in output.poll(0))


def _no_room(error: Exception) -> str | None:
    """Say in a line that memory or a disk is full; None where something else is wrong."""
    if out_of_memory(error):
        traceback.clear_frames(error.__traceback__)  # so that there is room for the line itself
        return f"there is not enough memory. {error}".rstrip()
    if not isinstance(error, OSError) or error.errno not in FULL:
        return None
    file = f" {error.filename}" if error.filename else ""
    return f"the disk or its quota is full: cannot write{file} ({error.strerror})."
