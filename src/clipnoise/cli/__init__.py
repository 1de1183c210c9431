"""The command line: commands grouped into files by what they are about.

Belongs here: arguments, messages, exit codes (2 for a user's mistake, 1 for a fault). Does not:
logic. A command is a function decorated as a `click` command, and its docstring is its help; it
imports what is heavy inside. `program` says which file a command is in. This module imports nothing
but what a command needs that is run by a warm process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from clipnoise.cli.client import OWNER, run_warm


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, in a warm process if the workflow asks for it.

    Args:
        argv: the words after the program's name; None takes them from the process.

    Returns:
        The exit code: 0 for success, 2 for a mistake the user can correct, 1 for a fault.
    """
    owner = os.environ.pop(OWNER, "")
    words = list(sys.argv[1:] if argv is None else argv)
    code = run_warm(words, int(owner)) if owner and words and argv is None else None
    if code is None:
        from clipnoise.cli.program import run

        print_any_text()
        code = run(words)
    return code


def print_any_text() -> None:
    """Let what the locale cannot print, such as ε in Latin-1, be printed as Python writes it."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # it is a file
            stream.reconfigure(errors="backslashreplace")
