"""The command line: one module per command; its name is the command's.

Belongs here: arguments, messages, exit codes (2 for a user's mistake, 1 for a fault). Does not:
logic. A command module has a docstring (its first line is the help text), `configure(parser)` and
`run(arguments) -> int`, and imports what is heavy inside `run`.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType

from clipnoise.errors import UserError, nearest


def commands() -> list[str]:
    """Return the names of all commands, sorted."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return sorted(name.replace("_", "-") for name in names if not name.startswith("_"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after the program's name; None takes them from the process.

    Returns:
        The exit code: 0 done, 2 a mistake the user can mend, 1 a fault.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0
    name = words[0]
    if name not in commands():
        print(
            f"clipnoise: unknown command {name!r}.{nearest(name, commands())} "
            f"Allowed: {', '.join(commands())}.",
            file=sys.stderr,
        )
        return 2
    module = _module(name)
    parser = argparse.ArgumentParser(prog=f"clipnoise {name}", description=module.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.configure(parser)
    try:
        return int(module.run(parser.parse_args(words[1:])))
    except UserError as error:
        print(f"clipnoise {name}: {error}", file=sys.stderr)
        return 2


def overview() -> str:
    """Return the list of commands with a line each."""
    lines = ["usage: clipnoise COMMAND [options]", "", "commands:"]
    width = max(map(len, commands())) + 2
    for name in commands():
        summary = (_module(name).__doc__ or "").strip().splitlines()[0]
        lines.append(f"  {name:<{width}}{summary}")
    return "\n".join([*lines, "", "`clipnoise COMMAND --help` tells more."])


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
