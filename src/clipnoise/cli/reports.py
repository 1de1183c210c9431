"""Reports of studies, the papers' experiments that need no dataset, and a page for each paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from clipnoise.cli import options
from clipnoise.errors import UserError, unknown
from clipnoise.files import json_text, write_atomically, write_json
from clipnoise.papers.base import Results, experiment_class, load, read_published, write
from clipnoise.run.provenance import Provenance
from clipnoise.studies import columns
from clipnoise.studies.scale import read_scale
from clipnoise.studies.study import PUBLISHED, Study, load_study, published_tables

if TYPE_CHECKING:
    import pandas as pd

StudyFile = Annotated[Path, "Study file."]
RunsTable = Annotated[Path, "The study's runs.parquet, written by collect."]
CurvesTable = Annotated[Path, "The study's curves.parquet, written by collect."]
Published = Annotated[Path, "Folder of published tables, and of what each paper leaves open."]
Pdf = Annotated[Path, "PDF to write."]
Experiment = Annotated[str, options.ARGUMENT]


@options.command()
def table(
    study: StudyFile,
    runs: RunsTable,
    out: Annotated[Path, "File name without ending; .csv, .md and .tex are added."],
    panel: Annotated[str, "Panel whose results to show, or PANEL.KIND."],
    scale: options.Scale = None,
) -> None:
    """Make a table of a study's report as CSV, Markdown and LaTeX.

    A panel's results are mean ± standard deviation over seeds, from whatever runs there are. Failed
    and missing runs are counted in it.
    """
    from clipnoise.report.items import TableItem, study_items
    from clipnoise.report.records import read_runs

    plan = load_study(study, scale)
    tables = [item.file for item in plan.report]
    if not panel or panel not in tables:
        raise unknown("table", panel, {*tables} - {""}, file=str(study), key="report")
    rows = read_runs(runs)
    data = study_items(plan, rows, rows[:0])[tables.index(panel)]
    assert isinstance(data.item, TableItem)
    for ending, text in data.item.files(data).items():
        write_atomically(out.with_name(out.name + ending), text)
    print(f"{out}: .csv, .md and .tex")


@options.command()
def figure(
    study: StudyFile,
    item: Annotated[int, "Number of the report item, counted from 0."],
    runs: RunsTable,
    curves: CurvesTable,
    out: Annotated[Path, "SVG file to write."],
    scale: options.Scale = None,
) -> None:
    """Draw one figure of a study's report as SVG.

    It draws the runs that there are, and names in the figure those that are missing.
    """
    from clipnoise.report.items import FigureItem, study_items
    from clipnoise.report.records import read_curves, read_runs

    plan = load_study(study, scale)
    figures = [number for number, one in enumerate(plan.report) if not one.file]
    if item not in figures:
        raise UserError(
            f"{study}: report: item {item} is not a figure. "
            f"Allowed: {', '.join(map(str, figures)) or 'none'}."
        )
    data = study_items(plan, read_runs(runs), read_curves(curves))[item]
    assert isinstance(data.item, FigureItem)
    write_atomically(out, data.item.svg(data))
    print(f"{out}: {data.item.kind} of {data.item.panel}")


@options.command()
def compare(
    study: StudyFile,
    runs: RunsTable,
    out: Annotated[Path, "CSV file to write."],
    published: Published = PUBLISHED,
    scale: options.Scale = None,
) -> None:
    """Compare a study's results with published numbers: their difference and its standard error.

    A published number for which there are no runs has a line, too.
    """
    from clipnoise.report.published import compare as compare_runs
    from clipnoise.report.published import to_csv
    from clipnoise.report.records import read_runs

    plan, rows = load_study(study, scale), read_runs(runs)
    tables = published_tables(plan, published)
    if not tables:
        raise UserError(
            f"{study}: no table of its report names published numbers. Add `published: NAME` to "
            f"one, for {published}/NAME.csv."
        )
    compared = [
        compare_runs(rows, plan.report[number].named, table) for number, table in tables.items()
    ]
    write_atomically(out, to_csv(compared, plan.scale.watermark))
    pairs = [pair for comparison in compared for pair in comparison.pairs]
    measured = sum(pair.ours is not None and pair.ours.sample.n > 0 for pair in pairs)
    print(f"{out}: {measured} of {len(pairs)} published numbers have a measured one beside them")


@options.command()
def report(
    study: StudyFile,
    runs: RunsTable,
    curves: CurvesTable,
    figures: Annotated[Path, "Folder of figures, named <item>.svg."],
    out: Pdf,
    template: options.Template = options.TEMPLATES / "report.typ",
    published: Published = PUBLISHED,
    scale: options.Scale = None,
) -> None:
    """Typeset the report of a study as PDF, from its runs and its drawn figures.

    Tables are computed from the runs; figures are taken from their folder. Missing, diverged and
    damaged runs are listed, and so are missing figures.
    """
    from clipnoise.report.pdf import build_report
    from clipnoise.report.records import read_curves, read_runs

    plan, tables = load_study(study, scale), (read_runs(runs), read_curves(curves))
    write_atomically(out, build_report(plan, *tables, figures, template, published))
    print(f"{out}: {plan.title}")


@options.command()
def publish(
    study: StudyFile,
    runs: Annotated[Path, "The study's runs.parquet, or the Parquet file of `publish`."],
    out: Annotated[Path, "Folder to write index.html and the data files to."],
    template: options.Template = options.TEMPLATES / "page.html",
    scale: options.Scale = None,
) -> None:
    """Make a web page of a study's results, and files with a row per run.

    The page needs no network. The files are CSV, Parquet, and a description of them in the
    Croissant format, which catalogues of datasets read. A Parquet file of published runs gives the
    page again, without the times.
    """
    from clipnoise.report import publication
    from clipnoise.report.page import build_page
    from clipnoise.report.records import read_runs

    plan = load_study(study, scale)
    rows = read_runs(runs)
    _require_runs_of(plan, rows, runs)
    page = plan if rows["folder"].any() else reprinted(plan)
    shown = columns.table(columns.PUBLISHED, publication.run_rows(rows).to_dict("records"))
    name, file = plan.name.replace("/", "-"), columns.to_parquet(shown)
    links = {
        f"{name}.csv": "a row per run",
        f"{name}.parquet": "the same",
        "croissant.json": "what its columns are",
    }
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / f"{name}.csv", columns.to_csv(shown))
    write_atomically(out / f"{name}.parquet", file)
    described = json_text(publication.croissant(plan, name, file))
    write_atomically(out / "croissant.json", described + "\n")
    write_atomically(out / "index.html", build_page(page, rows, template, links))
    print(f"{out}: index.html, {', '.join(links)}")


@options.command()
def partial_report(
    study: Annotated[Path, options.ARGUMENT],
    out: Pdf,
    results: options.Results = options.RESULTS,
    runs: Annotated[Path | None, "Parquet file of `publish`, in place of the results."] = None,
    template: options.Template = options.TEMPLATES / "report.typ",
    published: Published = PUBLISHED,
    scale: options.Scale = None,
    secure_noise: options.SecureNoise = False,
) -> None:
    """Build a study's report from the results that there are now, without running anything.

    Missing, diverged and damaged runs are counted in every table. While a study runs, this shows
    its progress; after failed jobs, it shows what was completed. A Parquet file of published runs
    gives a report without times, searches and curves, which it does not hold.
    """
    import tempfile

    from clipnoise.report import publication
    from clipnoise.report.items import FigureItem, study_items
    from clipnoise.report.pdf import build_report
    from clipnoise.report.records import collected, published_runs
    from clipnoise.studies.status import study_status

    plan, remark = load_study(study, scale, secure_noise=secure_noise), ""
    if runs is not None:
        rows, plan = published_runs(publication.read_run_rows(runs)), reprinted(plan)
        _require_runs_of(plan, rows, runs)
        curves = columns.frame(columns.table(columns.CURVE_COLUMNS, []))
    else:
        rows, curves = collected(plan, results)
        outdated = study_status(plan, results).counts["outdated"]
        if outdated:
            said = f"{outdated} of these runs were made by code that has been edited since: "
            plan = remarked(plan, f"{said}Snakemake will train them again.")
            remark = f", {outdated} of them by code that has been edited since"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, data in enumerate(study_items(plan, rows, curves)):
            if isinstance(data.item, FigureItem):
                (folder / f"{number}.svg").write_bytes(data.item.svg(data))
        write_atomically(out, build_report(plan, rows, curves, folder, template, published))
    done = int((rows["status"] == "completed").sum())
    print(f"{out}: {done} of {len(rows)} planned runs completed{remark}")


def _require_runs_of(plan: Study, rows: pd.DataFrame, file: Path) -> None:
    """Refuse runs of another study, whose name would stand above them.

    Raises:
        UserError: names both studies.
    """
    others = sorted({*rows["study"]} - {plan.name})
    if others:
        raise UserError(f"{file}: holds runs of study {others[0]!r}, not of {plan.name!r}.")


def reprinted(plan: Study) -> Study:
    """Return a study whose description says what published runs leave out."""
    said = "Made from published runs. They hold no times, no curves and not how hyper-parameters "
    return remarked(plan, f"{said}were found, so that tuned ones are shown as given.")


def remarked(plan: Study, remark: str) -> Study:
    """Return a study whose description begins with a remark."""
    return replace(plan, description=f"{remark}\n\n{plan.description}")


@options.command()
def bundle(
    artefacts: Annotated[Sequence[str], options.ARGUMENT],
    out: Pdf,
    reports: Annotated[Path, "Folder of their PDFs."] = Path("reports"),
    studies: Annotated[Path, "Folder of study files."] = options.STUDIES,
    template: options.Template = options.TEMPLATES / "bundle.typ",
    published: Published = PUBLISHED,
    scale: options.Scale = None,
) -> None:
    """Join the reports of artefacts, e.g. dp-pmlf/table1, into one PDF with a table of contents."""
    from clipnoise.report.pdf import bundle as join

    paths = {name: reports / f"{name}.pdf" for name in artefacts}
    files = {name: studies / f"{name}.yaml" for name in artefacts}
    titles = {
        name: load_study(file).title if file.is_file() else experiment_class(name).title
        for name, file in files.items()
    }
    watermark = read_scale(scale).watermark
    write_atomically(out, join(paths, titles, template, published, watermark))
    print(f"{out}: {len(paths)} artefacts")


@options.command()
def reproduce(
    experiment: Experiment,
    settings: Annotated[Path, "YAML file of the experiment's settings."],
    published: Annotated[Path, "CSV file of the published numbers."],
    out: Annotated[Path, "Folder for the CSV files."],
    scale: options.Scale = None,
    threads: options.Threads = 1,
) -> None:
    """Run an exact experiment of a paper, and compare it with the published numbers.

    Writes raw data and comparison.csv (quantity, published, measured, difference) into a folder.
    """
    options.limit_threads(threads)
    import yaml

    provenance, changed = Provenance("cpu"), read_scale(scale)
    changes = changed.reproductions.get(experiment, {})
    result = load(experiment, settings, changes).run()
    write(result, read_published(published), out)
    text = settings.read_text(encoding="utf-8")
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


@options.command()
def reproduction_report(
    experiment: Experiment,
    data: Annotated[Path, "Folder written by clipnoise reproduce."],
    out: Pdf,
    template: options.Template = options.TEMPLATES / "reproduction.typ",
    published: Published = PUBLISHED,
) -> None:
    """Make the PDF of an exact experiment from its CSV files, and copy its comparison beside it."""
    from clipnoise.papers.report import build

    results = Results(data)
    pdf = build(experiment_class(experiment), results, template, published)
    comparison = results.table("comparison")
    if results.watermark:
        comparison = comparison.assign(warning=results.watermark)
    text = comparison.to_csv(index=False, lineterminator="\n")
    write_atomically(out.with_suffix(".csv"), text)
    write_atomically(out, pdf)
    print(f"{out}: {len(results.comparison)} quantities")


@options.command()
def papers(
    markdown: Annotated[Path, "Folder to write the documentation pages to."] = Path("docs/papers"),
    studies: Annotated[Path, "Folder of study files."] = options.STUDIES,
    published: Annotated[Path, "Folder of published numbers."] = PUBLISHED,
) -> None:
    """Write a page for each paper: its artefacts, its claims, and what it leaves open."""
    from clipnoise.papers.page import paper_pages

    for paper, page in paper_pages(studies, published).items():
        write_atomically(markdown / f"{paper}.md", page)
        print(markdown / f"{paper}.md")
