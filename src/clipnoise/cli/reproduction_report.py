"""Make the PDF of an exact experiment from its CSV files, and write its comparison beside it."""

from __future__ import annotations

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", help="e.g. adadps/fig3")
    parser.add_argument(
        "--data", type=Path, required=True, help="folder written by clipnoise reproduce"
    )
    parser.add_argument("--template", type=Path, default=Path("reports/templates/reproduction.typ"))
    parser.add_argument("--out", type=Path, required=True, help="PDF to write")


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.files import write_atomically
    from clipnoise.papers.base import ExperimentFiles, experiment_class
    from clipnoise.papers.report import build

    files = ExperimentFiles(arguments.data)
    pdf = build(experiment_class(arguments.experiment), files, arguments.template)
    comparison = files.table("comparison")
    if files.watermark:
        comparison = comparison.assign(warning=files.watermark)
    text = comparison.to_csv(index=False, lineterminator="\n")
    write_atomically(arguments.out.with_suffix(".csv"), text)
    write_atomically(arguments.out, pdf)
    print(f"{arguments.out}: {len(files.comparison)} quantities")
    return 0
