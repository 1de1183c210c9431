"""List the methods: family, privacy, sensitivity, passes per step, needs and source.

With --markdown, write the page of the documentation instead, with formulas.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--markdown", type=Path, help="write the documentation page to this file")


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.files import write_atomically
    from clipnoise.methods.catalogue import method_page

    if arguments.markdown is not None:
        write_atomically(arguments.markdown, method_page())
        print(arguments.markdown)
        return 0
    _print_table()
    return 0


def _print_table() -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from clipnoise.methods.catalogue import catalogue

    columns = ("id", "family", "privacy", "adjacency", "sensitivity", "passes", "needs", "source")
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for entry in catalogue():
        table.add_row(*(str(getattr(entry, column)) for column in columns))
    console = Console()
    Console(width=None if console.is_terminal else 220).print(table)
