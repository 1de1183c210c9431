"""PDFs: a report's content and its template in, a PDF out; and many reports in one PDF."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
import pikepdf
import typst

from clipnoise.errors import UserError
from clipnoise.report.document import document
from clipnoise.report.figures.canvas import without_mark
from clipnoise.studies.fidelity import fidelity_files, read_fidelity
from clipnoise.studies.study import PUBLISHED, Study

SHARED = "shared.typ"  # beside every template, for what it shares with others


def build_report(
    study: Study,
    runs: pd.DataFrame,
    curves: pd.DataFrame,
    figures: Path,
    template: Path,
    published: Path = PUBLISHED,
) -> bytes:
    """Make the report of a study.

    Args:
        study, runs, curves: what to show.
        figures: folder of the drawn figures, each named by the number of its report item,
            `<number>.svg`; a missing one is reported as not drawn.
        template: how to lay it out.
        published: the folder of published tables, and of what papers leave open.

    Returns:
        The PDF; the same bytes for the same input.

    Raises:
        UserError: the template is missing or does not compile, two configurations of a table
            share a label, or a published table is missing or wrong.
    """
    images = {f"{number}.svg": figures / f"{number}.svg" for number, _ in enumerate(study.report)}
    images = {name: path for name, path in images.items() if path.is_file()}
    return typeset(document(study, runs, curves, images, published), template, images)


def typeset(content: object, template: Path, images: Mapping[str, Path]) -> bytes:
    """Lay out a report.

    The template reads the content from a JSON file, so no text of a study is ever interpreted as
    markup. Only the fonts inside Typst are used and no packages are fetched, so that the same
    input gives the same bytes on every machine.

    Args:
        content: what the template reads: plain data, or dataclasses, whose fields are keys.
        template: the Typst file.
        images: the files that the content names; the page has the watermark, figures have none.

    Returns:
        The PDF.

    Raises:
        UserError: the template is missing or does not compile.
    """
    if not template.is_file():
        raise UserError(f"{template}: no such template.")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        main = Path(shutil.copy(template, root / "report.typ"))
        (root / "content.json").write_text(
            json.dumps(content, ensure_ascii=False, default=plain), encoding="utf-8"
        )
        shared = template.with_name(SHARED)
        for file, path in {**images, **({SHARED: shared} if shared.is_file() else {})}.items():
            drawn = path.read_bytes()
            (root / file).write_bytes(without_mark(drawn) if path.suffix == ".svg" else drawn)
        try:
            return packed(typst.compile(main, root=root, ignore_system_fonts=True, timestamp=0))
        except typst.TypstError as error:
            raise UserError(f"{template}: {error}") from None


def plain(value: Any) -> dict[str, object]:
    """Return a dataclass as a template reads it."""
    return {**({"kind": value.kind} if hasattr(value, "kind") else {}), **vars(value)}


def packed(pdf: bytes) -> bytes:
    """Return the same PDF with its objects compressed.

    Typst compresses the content of pages, but not the tags that say what is a heading, a table or a
    cell. In a report with large tables they are more than half of the file.
    """
    smaller = io.BytesIO()
    with pikepdf.open(io.BytesIO(pdf)) as opened:
        opened.save(
            smaller,
            object_stream_mode=pikepdf.ObjectStreamMode.generate,
            deterministic_id=True,
        )
    return smaller.getvalue()


def bundle(
    artefacts: Mapping[str, Path],
    titles: Mapping[str, str],
    template: Path,
    published: Path = PUBLISHED,
    watermark: str = "",
) -> bytes:
    """Put the reports of several artefacts into one PDF, a chapter per paper.

    A chapter ends with all that its paper leaves open.

    Args:
        artefacts: their PDFs by name, `<paper>/<artefact>`.
        titles: their titles by name.
        template: how to lay it out.
        published: the folder with what each paper leaves open.
        watermark: printed on the first page, too.

    Returns:
        The PDF; the same bytes for the same input. Pages are taken over unchanged, watermarks
        included.

    Raises:
        UserError: a file is missing or not a PDF.
    """
    files = {name: f"{number}.pdf" for number, name in enumerate(artefacts)}
    fidelity = fidelity_files(published, artefacts)
    papers = {paper: read_fidelity(path) for paper, path in fidelity.items()}
    chapters = [
        {
            "title": papers[paper].title if paper in papers else paper,
            "open-settings": papers[paper].rows() if paper in papers else [],
            "artefacts": [
                {
                    "name": name,
                    "title": titles[name],
                    "file": files[name],
                    "pages": pages(artefacts[name]),
                }
                for name in names
            ],
        }
        for paper, names in groupby(sorted(artefacts), key=lambda name: name.split("/")[0])
    ]
    title = chapters[0]["title"] if len(chapters) == 1 else "Tables and figures of the papers"
    content = {"title": title, "watermark": watermark, "chapters": chapters}
    return typeset(content, template, {files[name]: path for name, path in artefacts.items()})


def pages(pdf: Path) -> int:
    """Return how many pages a report has.

    Raises:
        UserError: it is missing or not a PDF.
    """
    try:
        with pikepdf.open(pdf) as opened:
            return len(opened.pages)
    except FileNotFoundError:
        raise UserError(f"{pdf}: no such file.") from None
    except pikepdf.PdfError as error:
        raise UserError(f"{pdf}: not a PDF: {error}") from None
