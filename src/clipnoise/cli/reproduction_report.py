"""Make the PDF of a reproduction from its CSV files, and put its comparison beside it."""

from __future__ import annotations

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reproduction", help="e.g. adadps/fig3")
    parser.add_argument(
        "--data", type=Path, required=True, help="folder written by clipnoise reproduce"
    )
    parser.add_argument("--template", type=Path, default=Path("reports/templates/reproduction.typ"))
    parser.add_argument("--out", type=Path, required=True, help="PDF to write")


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.files import write_atomically
    from clipnoise.report.reproductions.base import Data, find_report
    from clipnoise.report.reproductions.build import build

    data = Data(arguments.data)
    pdf = build(find_report(arguments.reproduction), data, arguments.template)
    comparison = data.table("comparison")
    if data.watermark:
        comparison = comparison.assign(warning=data.watermark)
    text = comparison.to_csv(index=False, lineterminator="\n")
    write_atomically(arguments.out.with_suffix(".csv"), text)
    write_atomically(arguments.out, pdf)
    print(f"{arguments.out}: {len(data.comparison)} quantities")
    return 0
