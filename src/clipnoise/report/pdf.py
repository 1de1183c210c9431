"""Typesetting: a report's content and its template in, a PDF out."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import typst

from clipnoise.errors import UserError
from clipnoise.report.document import document
from clipnoise.studies.comparisons import PUBLISHED
from clipnoise.studies.study import Study


def build_report(
    study: Study,
    runs: pd.DataFrame,
    figures: Path,
    template: Path,
    published: Path = PUBLISHED,
) -> bytes:
    """Make the report of a study.

    Args:
        study: what to show.
        runs: runs.csv.
        figures: folder of the drawn figures, each named by the number of its report item,
            `<number>.svg`; one that is not there is reported as not drawn.
        template: the Typst file.
        published: the folder of published tables.

    Returns:
        The PDF; the same bytes for the same input.

    Raises:
        UserError: the template is missing or does not compile, or two configurations of a table
            share a label, or a published table is missing or wrong.
    """
    names = {number: f"{number}.svg" for number, _ in enumerate(study.report)}
    drawn = {number: name for number, name in names.items() if (figures / name).is_file()}
    images = {name: figures / name for name in drawn.values()}
    return typeset(document(study, runs, drawn, published), template, images)


def typeset(content: Mapping[str, Any], template: Path, images: Mapping[str, Path]) -> bytes:
    """Lay out a report.

    The template reads the content as JSON beside it, so no text of a study is ever markup. Fonts
    are those inside Typst and no packages are fetched: the same input gives the same bytes on
    every machine.

    Args:
        content: what `document` returned.
        template: the Typst file.
        images: the files that the content names.

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
        (root / "content.json").write_text(json.dumps(content, ensure_ascii=False))
        for image, path in images.items():
            shutil.copy(path, root / image)
        try:
            return typst.compile(main, root=root, ignore_system_fonts=True, timestamp=0)
        except typst.TypstError as error:
            raise UserError(f"{template}: {error}") from None
