"""Downloads that show how far they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clipnoise.data.remote import RawFiles


def fetch(files: RawFiles) -> Path:
    """Download files into their folder, with a bar for each on standard error.

    Returns:
        The folder.

    Raises:
        UserError: a file cannot be had; the message says how to get it by hand.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=Console(stderr=True)) as progress:
        bars = {file.name: progress.add_task(file.name, total=None) for file in files.files}

        def report(name: str, done: int, total: int | None) -> None:
            progress.update(bars[name], completed=done, total=total)

        return files.fetch(report)
