"""Build a study's report from the results that are there now, without running anything.

Missing, diverged and damaged runs are counted in every table. While a study runs, this shows how
far it is; after failed jobs, it shows what there is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from clipnoise.cli._options import add_planned, add_published


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "study", type=Path, help="study file, e.g. workflow/studies/quickstart.yaml"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder")
    parser.add_argument(
        "--template", type=Path, default=Path("reports/templates/report.typ"), help="Typst file"
    )
    add_published(parser)
    add_planned(parser)
    parser.add_argument("--out", type=Path, required=True, help=".pdf to write")


def run(arguments: argparse.Namespace) -> int:
    import tempfile

    from clipnoise.files import write_atomically
    from clipnoise.report.figures.kinds import draw_figure
    from clipnoise.report.pdf import build_report
    from clipnoise.report.records import read_curves, read_runs
    from clipnoise.studies.collect import collect
    from clipnoise.studies.study import load_study

    study = load_study(arguments.study, arguments.scale, secure_noise=arguments.secure_noise)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in zip(("runs", "curves"), collect(study, arguments.results), strict=True):
            (folder / f"{file}.csv").write_text(text)
        runs, curves = read_runs(folder / "runs.csv"), read_curves(folder / "curves.csv")
        for number, item in enumerate(study.report):
            if item.drawn:
                figure = draw_figure(item, runs, curves, study.watermark)
                (folder / f"{number}.svg").write_bytes(figure)
        report = build_report(study, runs, folder, arguments.template, arguments.published)
        write_atomically(arguments.out, report)
    done = int((runs["status"] == "completed").sum())
    print(f"{arguments.out}: {done} of {len(runs)} planned runs completed")
    return 0
