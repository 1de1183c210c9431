"""Put the reports of several artefacts into one PDF with a table of contents."""

from __future__ import annotations

import argparse
from pathlib import Path

from clipnoise.cli._options import add_scale


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artefacts", nargs="+", help="names, e.g. dp-pmlf/table1")
    parser.add_argument(
        "--reports", type=Path, default=Path("reports"), help="folder of their PDFs"
    )
    parser.add_argument(
        "--studies", type=Path, default=Path("workflow/studies"), help="folder of study files"
    )
    parser.add_argument(
        "--template", type=Path, default=Path("reports/templates/bundle.typ"), help="Typst file"
    )
    add_scale(parser)
    parser.add_argument("--out", type=Path, required=True, help=".pdf to write")


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.files import write_atomically
    from clipnoise.papers.base import experiment_class
    from clipnoise.report.pdf import bundle
    from clipnoise.studies.scale import read_scale
    from clipnoise.studies.study import load_study

    paths = {name: arguments.reports / f"{name}.pdf" for name in arguments.artefacts}
    files = {name: arguments.studies / f"{name}.yaml" for name in paths}
    titles = {
        name: load_study(file).title if file.is_file() else experiment_class(name).title
        for name, file in files.items()
    }
    watermark = read_scale(arguments.scale).watermark
    write_atomically(arguments.out, bundle(paths, titles, arguments.template, watermark))
    print(f"{arguments.out}: {len(paths)} artefacts")
    return 0
