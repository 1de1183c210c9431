"""Many reports in one PDF, with a table of contents."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from clipnoise.errors import UserError
from clipnoise.report.pdf import typeset

PAPERS = {
    "adadps": "Private Adaptive Optimization with Side Information (AdaDPS)",
    "design-principles": "On Design Principles for Private Adaptive Optimizers",
    "dp-adambc": "DP-AdamBC: Your DP-Adam Is Actually DP-SGD",
    "dp-pmlf": "Enhancing DPSGD via Per-Sample Momentum and Low-Pass Filtering (DP-PMLF)",
}


def bundle(
    artefacts: Mapping[str, Path], titles: Mapping[str, str], template: Path, watermark: str = ""
) -> bytes:
    """Put the reports of artefacts into one PDF, a chapter per paper.

    Args:
        artefacts: their PDFs by name, `<paper>/<artefact>`.
        titles: their titles by name.
        template: the Typst file.
        watermark: what stands on the first page, too; empty for none.

    Returns:
        The PDF; the same bytes for the same input. Pages are taken over as they are, so a watermark
        stays on each.

    Raises:
        UserError: a PDF is missing or was not made by this suite.
    """
    numbers = {name: number for number, name in enumerate(artefacts)}
    chapters = [
        {
            "title": PAPERS.get(paper, paper),
            "artefacts": [
                {
                    "name": name,
                    "title": titles[name],
                    "file": f"{numbers[name]}.pdf",
                    "pages": pages(artefacts[name]),
                }
                for name in names
            ],
        }
        for paper, names in groupby(sorted(artefacts), key=lambda name: name.split("/")[0])
    ]
    images = {f"{numbers[name]}.pdf": path for name, path in artefacts.items()}
    content = {"title": _heading(chapters), "watermark": watermark, "chapters": chapters}
    return typeset(content, template, images)


def pages(pdf: Path) -> int:
    """Return how many pages a report has.

    Raises:
        UserError: it is missing or was not made by this suite.
    """
    if not pdf.is_file():
        raise UserError(f"{pdf}: no such file.")
    found = re.search(rb"/Type\s*/Pages\s*/Count (\d+)", pdf.read_bytes())
    if found is None:
        raise UserError(f"{pdf}: not a report of this suite.")
    return int(found[1])


def _heading(chapters: Sequence[Mapping[str, Any]]) -> str:
    return str(chapters[0]["title"]) if len(chapters) == 1 else "Tables and figures of the papers"
