"""From the CSV files of a reproduction to its PDF."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from clipnoise.report.figures import canvas
from clipnoise.report.formats import duration, significant
from clipnoise.report.pdf import typeset
from clipnoise.report.reproductions.base import Data, Report

SMALLER = (
    "Smaller than what follows describes: the first settings below replace those that are meant "
    "here. The numbers say nothing about the paper."
)


def build(report: Report, data: Data, template: Path) -> bytes:
    """Make the PDF of a reproduction.

    Args:
        report: what it says and draws.
        data: the folder of its CSV files.
        template: the Typst file.

    Returns:
        The PDF; the same bytes for the same input.

    Raises:
        UserError: a table or the template is missing.
    """
    with tempfile.TemporaryDirectory() as name, canvas.look():
        images: dict[str, Path] = {}
        figures: list[dict[str, str]] = []
        for number, drawing in enumerate(report.drawings(data)):
            image = f"{number}.svg"
            images[image] = Path(name) / image
            images[image].write_bytes(canvas.to_svg(drawing.figure, data.watermark))
            figures.append({"title": drawing.title, "caption": drawing.caption, "image": image})
        content = {
            "title": report.title,
            "name": report.id,
            "source": report.source,
            "setup": [*([SMALLER] if data.watermark else []), *report.setup],
            "figures": figures,
            "remarks": report.remarks(data),
            "comparison": _comparison(data.table("comparison")),
            "watermark": data.watermark,
            "provenance": _provenance(data.run),
            "settings": _settings(data.folder / "settings.yaml"),
        }
        return typeset(content, template, images)


def _comparison(table: pd.DataFrame) -> list[dict[str, str]]:
    return [
        {
            "quantity": str(row["quantity"]),
            **{name: significant(float(row[name])) for name in table.columns[1:3]},
            "difference": _signed(float(row["difference"]), float(row["published"])),
        }
        for _, row in table.iterrows()
    ]


def _signed(difference: float, published: float) -> str:
    """Return a difference with its sign; what is left of rounding in the last bits is 0."""
    if abs(difference) <= 1e-12 * abs(published):
        return "0"
    return f"+{significant(difference, 2)}" if difference > 0 else significant(difference, 2)


def _provenance(run: Mapping[str, Any]) -> list[list[str]]:
    """Return what a report says of the run, as name and value."""
    if not run:
        return []
    versions = [f"{name} {number}" for name, number in run["versions"].items()]
    hardware = run["hardware"]
    return [
        ["Commit", run["git_commit"] or "unknown"],
        ["Versions", ", ".join(versions)],
        ["CPU", f"{hardware['cpu']}, {run['threads']} thread"],
        ["Started", run["started"]],
        ["Wall time", duration(float(run["seconds"]))],
    ]


def _settings(path: Path) -> str:
    return path.read_text() if path.is_file() else ""
