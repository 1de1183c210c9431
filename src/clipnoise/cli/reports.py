"""Tables, figures and reports of studies, and the papers' experiments that need no dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from clipnoise.cli import options
from clipnoise.errors import UserError, unknown
from clipnoise.studies.comparisons import PUBLISHED

study_file = click.option("--study", type=options.PATH, required=True, help="Study file.")
runs_table = click.option(
    "--runs", type=options.PATH, required=True, help="The study's runs.csv, from collect."
)
published_tables = click.option(
    "--published",
    type=options.PATH,
    default=PUBLISHED,
    help="Folder of published tables.",
)
experiment_name = click.argument("experiment", metavar="PAPER/ARTEFACT")


@options.command()
@study_file
@click.option("--panel", required=True, help="Panel of the study to show.")
@runs_table
@options.scale
@options.out("File name without ending; .csv, .md and .tex are added.")
def table(study: Path, panel: str, runs: Path, scale: Path | None, out: Path) -> None:
    """Make the table of one panel of a study, as CSV, Markdown and LaTeX.

    It shows mean ± standard deviation over seeds, from whatever runs there are. Failed and missing
    runs are counted in it.
    """
    from dataclasses import replace

    from clipnoise.files import write_atomically
    from clipnoise.report.records import read_runs
    from clipnoise.report.tables.costs import cost_table
    from clipnoise.report.tables.export import to_csv, to_latex, to_markdown
    from clipnoise.report.tables.results import build_table
    from clipnoise.studies.study import load_study

    plan = load_study(study, scale)
    if panel not in plan.panels:
        raise unknown("panel", panel, plan.panels, file=str(study))
    shown = [item for item in plan.report if item.kind == "table" and item.panel == panel]
    title, caption = (shown[0].title, shown[0].caption) if shown else ("", "")
    rows = read_runs(runs)
    costs = cost_table(rows, panel) if any(item.costs for item in shown) else None
    made = build_table(rows, panel, title=title, caption=caption)
    made = replace(made, watermark=plan.watermark, costs=costs)
    for ending, text in ((".csv", to_csv), (".md", to_markdown), (".tex", to_latex)):
        write_atomically(out.with_name(out.name + ending), text(made))
    print(f"{out}: .csv, .md and .tex")


@options.command()
@study_file
@click.option("--item", type=int, required=True, help="Number of the report item, counted from 0.")
@runs_table
@click.option(
    "--curves", type=options.PATH, required=True, help="The study's curves.csv, from collect."
)
@options.scale
@options.out("SVG file to write.")
def figure(study: Path, item: int, runs: Path, curves: Path, scale: Path | None, out: Path) -> None:
    """Draw one figure of a study's report as SVG.

    It draws the runs that there are, and names in the figure those that are missing.
    """
    from clipnoise.files import write_atomically
    from clipnoise.report.figures.kinds import draw_figure
    from clipnoise.report.records import read_curves, read_runs
    from clipnoise.studies.study import load_study

    plan = load_study(study, scale)
    figures = [number for number, shown in enumerate(plan.report) if shown.drawn]
    if item not in figures:
        raise UserError(
            f"{study}: report: item {item} is not a figure. "
            f"Allowed: {', '.join(map(str, figures)) or 'none'}."
        )
    shown = plan.report[item]
    write_atomically(out, draw_figure(shown, read_runs(runs), read_curves(curves), plan.watermark))
    print(f"{out}: {shown.kind} of {shown.panel}")


@options.command()
@study_file
@runs_table
@published_tables
@options.scale
@options.out("CSV file to write.")
def compare(study: Path, runs: Path, published: Path, scale: Path | None, out: Path) -> None:
    """Compare a study's results with published numbers: their difference and its standard error.

    A published number for which there are no runs has a line, too.
    """
    from clipnoise.files import write_atomically
    from clipnoise.report.comparison import compare as compare_runs
    from clipnoise.report.comparison import to_csv
    from clipnoise.report.records import read_runs
    from clipnoise.studies.comparisons import comparisons
    from clipnoise.studies.study import load_study

    plan, rows = load_study(study, scale), read_runs(runs)
    tables = comparisons(plan, published)
    if not tables:
        raise UserError(
            f"{study}: no published table: its report names none, and there is no "
            f"{published / plan.name}.csv."
        )
    compared = [compare_runs(rows, item, table) for item, table in tables.items()]
    write_atomically(out, to_csv(compared, plan.watermark))
    pairs = [pair for comparison in compared for pair in comparison.pairs]
    measured = sum(pair.ours is not None and pair.ours.sample.n > 0 for pair in pairs)
    print(f"{out}: {measured} of {len(pairs)} published numbers have a measured one beside them")


@options.command()
@study_file
@runs_table
@click.option(
    "--figures", type=options.PATH, required=True, help="Folder of figures, named <item>.svg."
)
@options.template("report.typ")
@published_tables
@options.scale
@options.out("PDF to write.")
def report(
    study: Path,
    runs: Path,
    figures: Path,
    template: Path,
    published: Path,
    scale: Path | None,
    out: Path,
) -> None:
    """Typeset the report of a study as PDF, from its runs and its drawn figures.

    Tables are computed from the runs; figures are taken from their folder. Missing, diverged and
    damaged runs are listed, and so are missing figures.
    """
    from clipnoise.files import write_atomically
    from clipnoise.report.pdf import build_report
    from clipnoise.report.records import read_runs
    from clipnoise.studies.study import load_study

    plan = load_study(study, scale)
    write_atomically(out, build_report(plan, read_runs(runs), figures, template, published))
    print(f"{out}: {plan.title}")


@options.command("partial-report")
@click.argument("study", type=options.PATH)
@options.results
@options.template("report.typ")
@published_tables
@options.scale
@options.secure_noise
@options.out("PDF to write.")
def partial_report(
    study: Path,
    results: Path,
    template: Path,
    published: Path,
    scale: Path | None,
    secure_noise: bool,
    out: Path,
) -> None:
    """Build a study's report from the results that there are now, without running anything.

    Missing, diverged and damaged runs are counted in every table. While a study runs, this shows
    its progress; after failed jobs, it shows what was completed.
    """
    import tempfile

    from clipnoise.files import write_atomically
    from clipnoise.report.figures.kinds import draw_figure
    from clipnoise.report.pdf import build_report
    from clipnoise.report.records import read_curves, read_runs
    from clipnoise.studies.collect import collect
    from clipnoise.studies.study import load_study

    plan = load_study(study, scale, secure_noise=secure_noise)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in zip(("runs", "curves"), collect(plan, results), strict=True):
            (folder / f"{file}.csv").write_text(text)
        runs, curves = read_runs(folder / "runs.csv"), read_curves(folder / "curves.csv")
        for number, item in enumerate(plan.report):
            if item.drawn:
                image = draw_figure(item, runs, curves, plan.watermark)
                (folder / f"{number}.svg").write_bytes(image)
        write_atomically(out, build_report(plan, runs, folder, template, published))
    done = int((runs["status"] == "completed").sum())
    print(f"{out}: {done} of {len(runs)} planned runs completed")


@options.command()
@click.argument("artefacts", nargs=-1, required=True)
@click.option(
    "--reports",
    type=options.PATH,
    default=Path("reports"),
    help="Folder of their PDFs.",
)
@click.option(
    "--studies",
    type=options.PATH,
    default=options.STUDIES,
    help="Folder of study files.",
)
@options.template("bundle.typ")
@options.scale
@options.out("PDF to write.")
def bundle(
    artefacts: Sequence[str],
    reports: Path,
    studies: Path,
    template: Path,
    scale: Path | None,
    out: Path,
) -> None:
    """Join the reports of artefacts, e.g. dp-pmlf/table1, into one PDF with a table of contents."""
    from clipnoise.files import write_atomically
    from clipnoise.papers.base import experiment_class
    from clipnoise.report.pdf import bundle as join
    from clipnoise.studies.scale import read_scale
    from clipnoise.studies.study import load_study

    paths = {name: reports / f"{name}.pdf" for name in artefacts}
    files = {name: studies / f"{name}.yaml" for name in artefacts}
    titles = {
        name: load_study(file).title if file.is_file() else experiment_class(name).title
        for name, file in files.items()
    }
    write_atomically(out, join(paths, titles, template, read_scale(scale).watermark))
    print(f"{out}: {len(paths)} artefacts")


@options.command()
@experiment_name
@click.option(
    "--settings", type=options.PATH, required=True, help="YAML file of the experiment's settings."
)
@click.option(
    "--published", type=options.PATH, required=True, help="CSV file of the published numbers."
)
@options.out("Folder for the CSV files.")
@options.scale
@options.threads
def reproduce(
    experiment: str,
    settings: Path,
    published: Path,
    out: Path,
    scale: Path | None,
    threads: int,
) -> None:
    """Run an exact experiment of a paper, and compare it with the published numbers.

    Writes raw data and comparison.csv (quantity, published, measured, difference) into a folder.
    """
    options.limit_threads(threads)
    import yaml

    from clipnoise.files import write_atomically, write_json
    from clipnoise.papers.base import load, read_published, write
    from clipnoise.run.provenance import Provenance
    from clipnoise.studies.scale import read_scale

    provenance, changed = Provenance("cpu"), read_scale(scale)
    changes = changed.reproductions.get(experiment, {})
    result = load(experiment, settings, changes).run()
    write(result, read_published(published), out)
    text = settings.read_text()
    if changes:
        text = f"# Replaced below\n{yaml.safe_dump(changes, sort_keys=False)}\n{text}"
    write_atomically(out / "settings.yaml", text)
    facts = {
        "seconds": provenance.seconds,
        "threads": threads,
        "watermark": changed.watermark if changes else "",
    }
    write_json(out / "run.json", {**provenance.as_mapping(), **facts})
    print(f"{out}: {experiment}")


@options.command("reproduction-report")
@experiment_name
@click.option(
    "--data", type=options.PATH, required=True, help="Folder written by clipnoise reproduce."
)
@options.template("reproduction.typ")
@options.out("PDF to write.")
def reproduction_report(experiment: str, data: Path, template: Path, out: Path) -> None:
    """Make the PDF of an exact experiment from its CSV files, and copy its comparison beside it."""
    from clipnoise.files import write_atomically
    from clipnoise.papers.base import Results, experiment_class
    from clipnoise.papers.report import build

    results = Results(data)
    pdf = build(experiment_class(experiment), results, template)
    comparison = results.table("comparison")
    if results.watermark:
        comparison = comparison.assign(warning=results.watermark)
    text = comparison.to_csv(index=False, lineterminator="\n")
    write_atomically(out.with_suffix(".csv"), text)
    write_atomically(out, pdf)
    print(f"{out}: {len(results.comparison)} quantities")
