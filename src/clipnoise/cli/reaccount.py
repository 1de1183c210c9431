"""Compute published ε again: what the text's algorithm costs, and what the released code costs.

At equal δ, with the assumptions beside each number. Writes a CSV, and a PDF with --report.
"""

from __future__ import annotations

import argparse
from pathlib import Path

FILE = Path("reports/published/reaccounting.yaml")
TEMPLATE = Path("reports/templates/audit.typ")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--published", type=Path, default=FILE, help="published results (YAML)")
    parser.add_argument("--out", type=Path, required=True, help="CSV to write")
    parser.add_argument("--report", type=Path, help="PDF to write")
    parser.add_argument("--template", type=Path, default=TEMPLATE, help="Typst file of the PDF")


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.audit.reaccounting import reaccount, read_published, to_csv
    from clipnoise.files import write_atomically
    from clipnoise.report.audits import build_reaccounting_report

    rows = [reaccount(result) for result in read_published(arguments.published)]
    write_atomically(arguments.out, to_csv(rows))
    for row in rows:
        print(
            f"{row.paper}, {row.result}: published {row.published:g}, at δ = {row.delta:.3g} "
            f"text {row.text:.2f}, released code {row.released:.2f} "
            f"(tight: {row.text_tight:.2f}, {row.released_tight:.2f})"
        )
    if arguments.report is not None:
        pdf = build_reaccounting_report(arguments.out, arguments.template)
        write_atomically(arguments.report, pdf)
    return 0
