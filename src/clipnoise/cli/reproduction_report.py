"""Make the PDF of an exact experiment from its CSV results, and write its comparison beside it."""

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
    from clipnoise.papers.base import Results, experiment_class
    from clipnoise.papers.report import build

    results = Results(arguments.data)
    pdf = build(experiment_class(arguments.experiment), results, arguments.template)
    comparison = results.table("comparison")
    if results.watermark:
        comparison = comparison.assign(warning=results.watermark)
    text = comparison.to_csv(index=False, lineterminator="\n")
    write_atomically(arguments.out.with_suffix(".csv"), text)
    write_atomically(arguments.out, pdf)
    print(f"{arguments.out}: {len(results.comparison)} quantities")
    return 0
