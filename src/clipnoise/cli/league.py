"""The league: publish a task, choose the methods that are confirmed, and print its page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from clipnoise.cli import options
from clipnoise.errors import UserError
from clipnoise.files import read_text, read_yaml, write_atomically
from clipnoise.studies.league import data_of, search_of
from clipnoise.studies.plan import Plan
from clipnoise.studies.screening import (
    CONFIRM,
    confirmed,
    passing,
    screened_panels,
    with_methods,
)
from clipnoise.studies.study import LEAGUE, Study, load_study
from clipnoise.studies.tracks import PRETRAINED, PRIVATE, TRACKS, Track, planned_track

if TYPE_CHECKING:
    from clipnoise.report.league import LeagueFindings

FOLDER = Path("docs/league/v3")
NO_TASKS = ("shared", "lite")
Task = Annotated[str, options.ARGUMENT]
Folder = Annotated[Path, "Folder of the published files."]


@click.group(cls=options.CommandGroup, invoke_without_command=True)
@click.option("--folder", type=click.Path(path_type=Path), default=FOLDER, show_default=True,
              help="Folder of the published files.")  # fmt: skip
@click.option("--track", type=click.Choice([each.id for each in TRACKS]), default=PRIVATE.id,
              show_default=True, help="Whose page: tracks are in docs/league.md.")  # fmt: skip
@click.option("--page", type=click.Path(path_type=Path), metavar="PATH",
              help="Write the page with its figures, and do not print it: into this folder in "
              "Markdown, those of all tracks and a page of practice, or as this PDF.")  # fmt: skip
@click.pass_context
def league(context: click.Context, folder: Path, track: str, page: Path | None) -> None:
    """Print the page of the league in Markdown, from the published file of each task.

    It says which tasks are missing. Files are refused in which the code that trained a method
    differs.
    """
    if context.invoked_subcommand is not None:
        return
    from clipnoise.report.league_page import league_page, league_pdf, pictures
    from clipnoise.report.league_practice import practice_page

    planned = tasks_of(options.STUDIES / LEAGUE)
    found = findings_of(folder, planned)
    (asked,) = (each for each in TRACKS if each.id == track)
    if page is None:
        print(league_page(found[asked], titles(planned[asked])), end="")
    elif page.suffix == ".pdf":
        template = options.TEMPLATES / "league.typ"
        write_atomically(page, league_pdf(found[asked], titles(planned[asked]), template))
        print(f"{page}: {', '.join(found[asked].tasks) or 'no task is published'}")
    else:
        known = planned[PRIVATE] | planned[PRETRAINED]
        data = {task: data_of(study) for task, study in known.items()}
        practice = practice_page((found[PRIVATE], found[PRETRAINED]), data)
        files: dict[str, str | bytes] = {"practice.md": practice}
        for each in TRACKS:
            files[f"{each.place}index.md"] = league_page(found[each], titles(planned[each]))
            files |= {f"{each.place}{name}": png for name, png in pictures(found[each]).items()}
        for name, content in files.items():
            write_atomically(page / name, content)
            print(page / name)


@options.command(league)
def pilot(
    task: Task,
    config: Annotated[Path, "Sets the folders of data and weights."] = Path("config.yaml"),
) -> int:
    """Try whether something can be learned in TASK at each ε of its study, by docs/league.md.

    The best of the first six trials of SGD, and of DP-SGD at each ε, must exceed the class that is
    most frequent in training by 1.96 standard errors, on validation examples. For SGD and DP-SGD
    stand those of the track, such as DP-FedAvg for users. The exit code is 1 if one does not.
    """
    from clipnoise.report.formats import count
    from clipnoise.studies.pilot import ERRORS, majority, piloted

    plan, root, study = _planned(task, config)
    cache = root / plan.config.cache
    beside = majority(study, cache)
    print(
        f"{task}: {100 * beside.accuracy:.1f}% of {beside.examples} validation examples, of "
        f"{count(beside.splits, 'split')}, have the class that is most frequent in training"
    )
    learns = True
    for best in piloted(study, cache, root / plan.config.weights):
        name = best.method if best.epsilon is None else f"{best.method}, ε = {best.epsilon:g}"
        errors = beside.errors_above(best.accuracy)
        learns &= errors >= ERRORS
        verdict = "" if errors >= ERRORS else f": less than {ERRORS}"
        print(
            f"{name:<22}{100 * best.accuracy:6.1f}%  {errors:5.1f} standard errors above{verdict}",
            flush=True,
        )
    return int(not learns)


@options.command(league)
def publish(
    task: Task,
    folder: Folder = FOLDER,
    config: Annotated[Path, "Sets the results folder."] = Path("config.yaml"),
) -> None:
    """Write the results of TASK into its file, with the digests of the code that trained them.

    Every run of workflow/studies/league/TASK.yaml must have been trained by the code as it is now.
    Methods whose searches mostly ended at one end of a range are named: look at them after the
    screen, before the confirmation is trained.
    """
    from clipnoise.report.league import ended_at, published_rows
    from clipnoise.studies.columns import to_parquet

    study, results = _task(task, config)
    rows = published_rows(study, results)
    path = folder / f"{task}.parquet"
    write_atomically(path, to_parquet(rows))
    print(f"{path}: {rows.num_rows} runs")
    for end, methods in ended_at(study, rows.to_pandas()).items():
        print(
            f"Half of the searches or more chose a learning rate in the {end} fifth of its range: "
            f"{', '.join(methods)}. A wider range may change what is found."
        )


@options.command(league)
def repeat(
    task: Task,
    folder: Folder = FOLDER,
    config: Annotated[Path, "Sets the folders of data and weights."] = Path("config.yaml"),
    draw: Annotated[int | None, "Seed of the draw; by default another one each time."] = None,
) -> int:
    """Train one published run of each method of TASK at each ε again, from its file alone.

    Predictions, accuracies, σ and ε must be equal to the last bit. If all are, the file gets the
    digests of the present code: a change of the training code that changes no result does not make
    it outdated. The exit code is 1 if a run gives another number, and the file stays as it is.
    """
    from clipnoise.cli.studies import repeated_alike
    from clipnoise.studies.columns import LEAGUE as COLUMNS
    from clipnoise.studies.columns import read_table, to_parquet
    from clipnoise.studies.repetition import one_of_each, repeated, with_present_code

    plan, root, study = _planned(task, config)
    options.limit_threads(plan.config.resources.threads)
    path = folder / f"{task}.parquet"
    runs = read_table(path, COLUMNS)
    drawn = one_of_each(runs, draw)
    places = {"cache": root / plan.config.cache, "weights": root / plan.config.weights}
    again = enumerate(repeated(study, drawn, **places, device=plan.config.device), 1)
    found = ((f"{name} ({number} of {len(drawn)})", each) for number, (name, each) in again)
    alike = repeated_alike(found, len(runs))
    if alike:
        write_atomically(path, to_parquet(with_present_code(study, path)))
    return int(not alike)


@options.command(league)
def confirm(
    task: Task,
    folder: Folder = FOLDER,
    config: Annotated[Path, "Sets the folder of study files."] = Path("config.yaml"),
) -> None:
    """Write into the study of TASK which methods are confirmed, by its rule and published screen.

    Methods are ranked at each ε by their mean accuracy on validation examples in the screen; the
    best mean ranks fill up those that take part in any case.
    """
    from clipnoise.report.league import read_league, screenings

    study, _ = _task(task, config)
    screen, after = screened_panels(study.path, CONFIRM)
    tasks = read_league(folder, task)
    if task not in tasks:
        raise UserError(f"{folder}: {task} is not published: `clipnoise league publish {task}`.")
    runs = screenings(tasks[task], screen.name)
    planned = {run.label for run in study.runs if run.panel == screen.name and run.spec.privacy}
    lacking = planned ^ {run.label for run in runs}
    if lacking:
        raise UserError(
            f"{folder}/{task}.parquet: {', '.join(sorted(lacking))}: in the screen of the study or "
            f"in the file, but not in both. Run: clipnoise league publish {task}"
        )
    methods = confirmed(screen.panel, after.panel, passing(runs))
    try:
        text = with_methods(read_text(study.path), CONFIRM, methods)
    except ValueError as error:
        raise UserError(f"{study.path}: {error}.") from None
    write_atomically(study.path, text)
    load_study(study.path)
    print(f"{study.path}: {len(methods)} methods are confirmed")


def tasks_of(folder: Path) -> dict[Track, dict[str, Study]]:
    """Return the study of each task by its name, by tracks, from the folder of these studies."""
    tracks: dict[Track, dict[str, Study]] = {each: {} for each in TRACKS}
    for path in sorted(folder.glob("*.yaml")):
        if path.stem not in NO_TASKS:
            study = load_study(path)
            tracks[planned_track(study.panels.values())][path.stem] = study
    return tracks


def findings_of(
    folder: Path, planned: Mapping[Track, Mapping[str, Study]]
) -> dict[Track, LeagueFindings]:
    """Return what the published files of a folder say, by tracks, with the tasks' searches."""
    from clipnoise.report.league import by_track, read_league

    tasks = read_league(folder)
    studies = {name: study for each in planned.values() for name, study in each.items()}
    known = {task: studies[task] for task in tasks if task in studies}
    spaces = {task: study.tunes for task, study in known.items()}
    searches = {task: one for task, study in known.items() if (one := search_of(study))}
    return by_track(tasks, spaces, searches)


def titles(tasks: Mapping[str, Study]) -> dict[str, str]:
    """Return what each task is about, by its name."""
    return {name: study.title.removeprefix("League: ") for name, study in tasks.items()}


def _task(task: str, config: Path) -> tuple[Study, Path]:
    """Return the study of a task, and the results folder."""
    plan, root, study = _planned(task, config)
    return study, root / plan.config.results


def _planned(task: str, config: Path) -> tuple[Plan, Path, Study]:
    """Return a plan of one task, the folder that it is below, and the task's study."""
    root = config.parent
    values = {**read_yaml(config), "studies": [f"{LEAGUE}/{task}"], "scale": "paper"}
    plan = Plan.from_values(values, root / "workflow" / "studies", root=root)
    return plan, root, plan.study(plan.configured[0])
