"""Studies: how far they are, what their runs have in common, and what their files may say."""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from clipnoise.cli import options
from clipnoise.data.measures import ValidationMetric
from clipnoise.errors import UserError
from clipnoise.fields import Count, Natural, Positive, to_plain
from clipnoise.files import json_text, read_yaml, write_atomically, write_json
from clipnoise.privacy.claim import claim
from clipnoise.privacy.remarks import of_delta, of_epsilon
from clipnoise.run.choice import in_words
from clipnoise.run.results import read_run, set_aside
from clipnoise.run.spec import TRAINING
from clipnoise.studies.collect import collect as collect_results
from clipnoise.studies.columns import to_csv, to_parquet
from clipnoise.studies.plan import Plan
from clipnoise.studies.status import (
    ENDED,
    State,
    StudyStatus,
    failed_steps,
    outlook,
    span,
    study_status,
)
from clipnoise.studies.study import Study, load_study
from clipnoise.studies.tuning import choose

if TYPE_CHECKING:
    from torch import nn

    from clipnoise.data.signature import Signature
    from clipnoise.run.job import Different

STATES = get_args(State)
LISTED = ("running", "failed", "damaged", "silent", "stopped", "outdated", "diverged")


@options.command()
def status(
    study: Annotated[Sequence[str], options.ARGUMENT] = (),
    config: Annotated[Path, "Sets scale, folders and studies."] = Path("config.yaml"),
    results: Annotated[Path | None, "Results folder, if not the configured one."] = None,
    show: Annotated[Natural, "Runs to list of each state."] = 10,
    json: Annotated[bool, "Print everything about every run as JSON."] = False,
) -> None:
    """Show what of a study is done, running, failed (and why) and left, and how long that takes.

    STUDY is a name such as quickstart or dp-pmlf/table1; without one, the studies of config.yaml
    are shown. The command only reads files, so it works during a run and afterwards, on any machine
    that sees the folder. It does not check whether a number in a result file has changed on disk:
    that happens when results are collected.
    """

    with redirect_stdout(sys.stderr):  # whatever the user's own code prints
        plan, root = _planned(config, study)
        results = results or root / plan.config.results
        shown = [plan.study(name) for name in plan.configured]
        cache = root / plan.config.cache
        studies = [study_status(each, results, cache) for each in shown]
        steps = failed_steps(results, cache, shown)
    if json:
        mappings = [_study_mapping(each) for each in studies]
        failed = {f"{rule} {key}": reason for (rule, key), reason in steps.items()}
        print(dumps({"studies": mappings, "failed_steps": failed}, indent=1))
        return
    print(_table(studies))
    for each in studies:
        for state in LISTED:
            print(_listed(each, state, show), end="")
    for (rule, key), reason in steps.items():
        print(f"\nfailed: {rule} {plan.label(rule, key)}\n    {reason}")


@options.command()
def check(
    study: Annotated[Sequence[str], options.ARGUMENT] = (),
    config: Annotated[Path, "Sets scale, folders and studies."] = Path("config.yaml"),
) -> None:
    """Check studies: what they would run, how long that takes, and what to think over.

    STUDY is a name such as quickstart or dp-pmlf/table1, or a path that ends in `.yaml`; without
    one, the studies of config.yaml are checked. Trains nothing and writes nothing. The exit code is
    0 if Snakemake would start, and 2 if something is wrong, with the file, the key and what is
    allowed.
    """
    plan, root = _planned(config, study)
    plan.require_writable(root)
    for name in plan.configured:
        _require_networks(plan.study(name), root / plan.config.weights)
        _require_items(plan.study(name))
        print("\n".join(_overview(plan, plan.study(name), root)))


def _require_items(study: Study) -> None:
    """Make each table and figure of a report from the runs that are planned, with made-up results.

    Raises:
        UserError: one cannot be made, because runs that it shows in one place differ in something
            that it does not show; names the study.
    """
    from clipnoise.report.formats import METRICS
    from clipnoise.report.items import FigureItem, study_items
    from clipnoise.report.records import collected

    with tempfile.TemporaryDirectory() as nothing:
        runs, curves = collected(study, Path(nothing))
    made_up = {name: 0.5 for name in {*METRICS, "epsilon_achieved"} if name in runs}
    runs = runs.assign(status="completed", **made_up)
    try:
        for data in study_items(study, runs, curves):
            if isinstance(data.item, FigureItem):
                data.item.svg(data)
            else:
                list(data.item.blocks(data))
    except UserError as error:
        raise UserError(f"{study.path}: report: {error}") from None


def _require_networks(study: Study, weights: Path) -> None:
    """Build the networks that libraries and plug-ins define, as each of their runs would.

    Raises:
        UserError: one cannot be built, or cannot be trained privately; names the study.
    """
    from clipnoise.models.hub import NamedModel
    from clipnoise.plugins import is_own

    tried: set[Any] = set()
    for spec in study.specs.values():
        model, signature = spec.model, spec.dataset.signature
        module, named = type(model).__module__, isinstance(model, NamedModel)
        ours = module.startswith("clipnoise.") and not is_own(module) and not named
        if ours or (model, signature, spec.privacy is None) in tried:
            continue
        tried.add((model, signature, spec.privacy is None))
        try:
            network = model.build(signature, weights)
            if spec.privacy is not None:
                from clipnoise.gradients.checks import check_kinds  # with torch

                check_kinds(network)
            if not named:
                _require_outputs(network, model.id, signature)
        except UserError as error:
            raise UserError(f"{study.path}: {error}") from None


def _require_outputs(network: nn.Module, model: str, signature: Signature) -> None:
    """Refuse a network that fails on inputs such as a dataset offers, or returns too few numbers.

    Raises:
        UserError: names the model, the shape of the inputs and what came out.
    """
    import torch

    if signature.kind not in ("features", "image", "tokens"):
        return
    tokens = signature.kind == "tokens"
    inputs = torch.zeros(3, *signature.shape, dtype=torch.int64 if tokens else torch.float32)
    given = f"model {model}: on inputs of shape {tuple(inputs.shape)}"
    try:
        with torch.no_grad():
            outputs = network.eval()(inputs)
    except Exception as error:
        raise UserError(f"{given} it fails: {type(error).__name__}: {error}") from None
    shape = tuple(getattr(outputs, "shape", ()))
    if len(shape) < 2 or shape[0] != len(inputs) or shape[-1] < signature.outputs:
        due = f"({len(inputs)}, {signature.outputs})"
        raise UserError(f"{given} it returns {shape or type(outputs).__name__}, not {due}.")


def _planned(config: Path, studies: Sequence[str]) -> tuple[Plan, Path]:
    """Return the plan of some studies, and the folder that its folders are relative to."""
    root = config.parent  # where Snakemake works
    values = read_yaml(config)
    if studies:  # files that the command names are in the current folder, not beside config.yaml
        elsewhere = root != Path()
        values["studies"] = [
            str(Path(one).absolute()) if elsewhere and one.endswith(".yaml") else one
            for one in studies
        ]
    return Plan.from_values(values, root / "workflow" / "studies", root=root), root


def _overview(plan: Plan, study: Study, root: Path) -> Iterator[str]:
    """Yield the lines that `check` prints of a study."""
    counts = _jobs(plan, study)
    rows: list[tuple[str, ...]] = [("panel", "runs", "datasets", "models", "methods", "ε", "seeds")]
    for name in study.panels:
        runs = [run for run in study.runs if run.panel == name]
        targets = {run.spec.privacy.epsilon for run in runs if run.spec.privacy}
        epsilons = ", ".join(f"{value:g}" for value in sorted(filter(None, targets)))
        seen = [{getattr(run, key) for run in runs} for key in ("dataset", "model", "label")]
        numbers = [str(len(one)) for one in (runs, *seen)]
        rows.append((name, *numbers, epsilons or "none", str(len({r.spec.seed for r in runs}))))
    yield f"{study.experiment}: {study.title} ({study.path})"
    yield from (f"  {line}" for line in options.aligned(rows, left=(0, 5)))
    methods = Counter(run.label for run in study.runs)
    tuning = f", tuning {len(study.tuning_runs)}" if study.tuning_runs else ""
    yield f"  runs: {', '.join(f'{label} {n}' for label, n in methods.items())}{tuning}"
    yield f"  jobs: {', '.join(f'{rule} {n}' for rule, n in counts.items())}"
    results, cache = root / plan.config.results, root / plan.config.cache
    yield f"  {outlook(study, results, data=cache)}"
    yield from (f"  remark: {remark}" for remark in _remarks(study))


def _jobs(plan: Plan, study: Study) -> dict[str, int]:
    """Return how many jobs of each rule lead from nothing to the study's report."""
    specs = study.specs.values()
    counts = {
        "prepare": len({one.prepared for spec in specs for one in spec.datasets}),
        "calibrate": len({spec.budget.key for spec in specs if spec.budget is not None}),
        "train": len(study.specs),
        "select": len(study.searches),
        "collect": 1,
        "table": len(plan.tables(study.name)),
        "figure": len(plan.figures(study.name)),
        "compare": int(bool(plan.published_tables(study))),
        "report": 1,
        "track": 1,
    }
    return {rule: count for rule, count in counts.items() if count}


def _remarks(study: Study) -> Iterator[str]:
    """Yield what is allowed, but makes the results of a study weaker than they look."""
    yield from dict.fromkeys(_of_delta(study))
    epsilons = {run.spec.privacy.epsilon or 0.0 for run in study.runs if run.spec.privacy}
    yield from filter(None, map(of_epsilon, sorted(epsilons)))
    for name in study.panels:
        if len({run.spec.seed for run in study.runs if run.panel == name}) == 1:
            yield f"panel {name}: one seed, so its results have no spread and no interval."
    yield from dict.fromkeys(_of_claims(study))
    yield from dict.fromkeys(_of_trials(study))
    named = {study.title, *study.titles.values(), *(item.title for item in study.report)}
    named |= {word for run in study.runs for word in (run.label, run.dataset, run.model)}
    for text in sorted(named):
        if lacking := _without_glyph(text):
            yield f"{text!r}: the fonts of reports have no {lacking}, and show boxes instead."


def _of_claims(study: Study) -> Iterator[str]:
    """Yield which ε of a study are no guarantees, and why."""
    for run in study.runs:
        if run.spec.budget is None:
            continue
        mechanism = run.spec.mechanism
        caveat = run.spec.caveat() or mechanism.microbatches.caveat(mechanism.query)
        if claim(mechanism, private=run.spec.protects, covered=not caveat) == "nominal":
            why = caveat or f"{mechanism.accountant} is not proved for this sampler"
            yield f"panel {run.panel}: the ε of {run.label} is nominal: {why}."


def _of_trials(study: Study) -> Iterator[str]:
    """Yield which σ pay for a search that the study does not make."""
    for run in study.runs:
        privacy = run.spec.privacy
        if run.tune is None and privacy is not None and privacy.trials is not None:
            yield (
                f"panel {run.panel}: σ of {run.label} pays for a search of {privacy.trials} "
                "elsewhere, because privacy.trials is given and nothing is tuned here."
            )


def _without_glyph(text: str) -> str:
    """Return the characters of a text that the fonts of figures cannot show."""
    if text.isascii():
        return ""
    from matplotlib.font_manager import findfont, get_font

    from clipnoise.report.figures.styles import FONTS

    shown = set().union(*(get_font(findfont(name)).get_charmap() for name in FONTS))
    return "".join(dict.fromkeys(letter for letter in text if ord(letter) not in shown))


def _of_delta(study: Study) -> Iterator[str]:
    for run in study.runs:
        if run.spec.budget is None:
            continue
        unit = run.spec.mechanism.unit
        remark = of_delta(run.spec.budget.delta, unit.count, unit.name, run.dataset)
        if remark:
            yield remark


def _table(studies: Iterable[StudyStatus]) -> str:
    """Return one line per study, with the columns aligned."""
    head = ("study", "runs", *STATES, "time left")
    rows: list[tuple[str, ...]] = [head]
    for study in studies:
        counts = (str(study.counts[state]) for state in STATES)
        rows.append((study.name, str(len(study.runs)), *counts, _left(study)))
    return "\n".join(options.aligned(rows, left=(0, len(head) - 1)))


def _left(study: StudyStatus) -> str:
    if len(study.of(*ENDED)) == len(study.runs):
        return "none"
    if study.work_left is None:
        return "unknown: no run has ended"
    if study.time_left is None:
        return f"{span(study.work_left)} of work, nothing runs"
    return f"{span(study.time_left)} with {study.counts['running']} at a time"


def _listed(study: StudyStatus, state: str, most: int) -> str:
    """Return the runs of a study in one state, the first few of them."""
    runs = study.of(state)
    lines = [f"\n{state} in {study.name}:"]
    for run in runs[:most]:
        left = "" if run.left is None or state != "running" else f", {span(run.left)} left"
        sign = "" if run.age is None else f", last sign of life {span(run.age)} ago"
        lines.append(f"  {run.name} ({run.spec.folder})\n    {run.reason}{left}{sign}")
        if run.log is not None and state in ("failed", "silent"):
            lines.append(f"    {run.log}")
    if len(runs) > most:
        lines.append(f"  and {len(runs) - most} more; --show N lists N of them")
    return "\n".join(lines) + "\n" if runs and most else ""


def _study_mapping(study: StudyStatus) -> dict[str, object]:
    runs = [
        {
            "hash": run.spec.hash,
            "name": run.name,
            "folder": run.spec.folder,
            "state": run.state,
            "reason": run.reason or None,
            "log": None if run.log is None else str(run.log),
            "seconds_since_last_sign": run.age,
            "seconds": run.seconds,
            "seconds_left": run.left,
        }
        for run in study.runs
    ]
    return {
        "study": study.name,
        "runs": len(runs),
        "counts": {state: study.counts[state] for state in STATES},
        "seconds_of_work_left": study.work_left,
        "seconds_left": study.time_left,
        "each": runs,
    }


@options.command()
def diagnose(
    study: Annotated[str, options.ARGUMENT],
    panel: Annotated[Sequence[str], "Panels to diagnose; all by default."] = (),
    method: Annotated[Sequence[str], "Labels of methods to diagnose; all by default."] = (),
    epsilon: Annotated[Sequence[Positive], "Targets ε to diagnose; all by default."] = (),
    out: Annotated[
        Path | None, "Study file to write; by default beside that of STUDY, with -diagnosis."
    ] = None,
    config: Annotated[Path, "Sets scale and folders."] = Path("config.yaml"),
) -> None:
    """Write a study that shows which part of privacy costs accuracy in STUDY.

    Each private run with a target ε is repeated as it is; without clipping and noise; without one
    of them; with the noise that ten times the data would have; and with twice the steps. The report
    of the new study shows them side by side, and says which costs most. Runs without noise or
    clipping are not private, and are marked so. What STUDY tunes takes the values that were chosen.
    """
    import yaml

    from clipnoise.studies.diagnosis import diagnosis

    plan, root = _planned(config, [study])
    asked = plan.study(plan.configured[0])
    results = root / plan.config.results
    values = diagnosis(asked, results, panels=panel, methods=method, epsilons=epsilon)
    out = out or asked.path.with_name(f"{asked.path.stem}-diagnosis.yaml")
    if out.exists():
        raise UserError(f"{out}: is there already.")
    write_atomically(out, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
    print(out)
    if not out.absolute().is_relative_to((root / "workflow" / "studies").absolute()):
        print(f"List {out} under studies in config.yaml.")
    print(f"Run it: snakemake --cores all {plan.report(load_study(out).name)}")


@options.command()
def archive(
    study: Annotated[str, options.ARGUMENT],
    out: Annotated[Path | None, "The archive; by default the study's name, in this folder."] = None,
    config: Annotated[Path, "Sets scale and folders."] = Path("config.yaml"),
) -> None:
    """Write what STUDY consists of into one zip file, to be handed over.

    It holds specs, results, reports and plug-ins, and says how they are verified and cited. Whoever
    has it repeats runs with `clipnoise verify FILE.zip`.
    """
    from clipnoise.studies.archive import archive as archived

    if out is not None and out.suffix != ".zip":
        raise UserError(f"--out: {out}: an archive is a zip file, so its name must end in .zip.")
    plan, _ = _planned(config, [study])
    planned = plan.study(plan.configured[0])
    out = out or Path(f"{planned.name.replace('/', '-')}.zip")
    content, remarks = archived(plan, planned, config, out)
    write_atomically(out, content)
    print(out)
    for remark in remarks:
        print(f"clipnoise archive: {out}: {remark}", file=sys.stderr)


@options.command()
def verify(
    study: Annotated[str, options.ARGUMENT],
    runs: Annotated[Count, "How many of its finished runs to repeat."] = 10,
    config: Annotated[Path, "Sets scale and folders."] = Path("config.yaml"),
    draw: Annotated[int | None, "Seed of the draw; by default another one each time."] = None,
) -> int:
    """Repeat finished runs of STUDY, drawn at random, and compare every number.

    STUDY may be an archive that `clipnoise archive` has written: it is unpacked elsewhere, with the
    data and weights that CONFIG names, and the plug-ins in it are imported. Losses, accuracies and
    ε must be equal to the last bit; times and memory may differ. What is tuned must be what the
    results of its search choose, where they are there. The exit code is 1 if a run gives another
    number. Nothing in the results folder is changed. A run repeats with as many threads as
    it was trained with, which the configuration says, and as many processes, which its result says.
    """
    if not study.endswith(".zip"):
        plan, root = _planned(config, [study])
        folders = {"cache": root / plan.config.cache, "weights": root / plan.config.weights}
        return _verify(study, plan, root, folders, runs, draw)
    from clipnoise.studies.archive import unpack

    with tempfile.TemporaryDirectory() as name:
        unpacked = unpack(Path(study), Path(name))
        here = read_yaml(config) if config.is_file() else {}
        folders = {
            key: config.parent / str(here.get(key, usual))
            for key, usual in (("cache", "data"), ("weights", "weights"))
        }
        return _verify(study, *_planned(unpacked, []), folders, runs, draw)


def _verify(
    called: str, plan: Plan, root: Path, folders: dict[str, Path], runs: int, draw: int | None
) -> int:
    """Repeat some finished runs of the one study of a plan; return the exit code."""
    options.limit_threads(plan.config.resources.threads)
    import torch

    from clipnoise.run.job import repeat, repeatable
    from clipnoise.studies.repetition import chosen_otherwise

    torch.set_num_threads(plan.config.resources.threads)  # where it was imported already
    (name,) = plan.configured
    results, planned = root / plan.config.results, plan.study(name)
    finished = [spec for spec in planned.specs.values() if repeatable(results, spec)]
    if not finished:
        raise UserError(f"{results}: {called} has no completed run that could be repeated.")
    drawn = random.Random(draw).sample(finished, min(runs, len(finished)))
    device = plan.config.device
    found = (
        (
            one.folder,
            chosen_otherwise(planned, one, results)
            or repeat(one, results=results, **folders, device=device),
        )
        for one in drawn
    )
    return int(not repeated_alike(found, len(finished)))


def repeated_alike(found: Iterable[tuple[str, Different]], of: int) -> bool:
    """Print of each run that was repeated what differs, and return whether nothing does.

    Args:
        found: what each run is called, and what differs, by name: the value before, and now.
        of: how many runs could have been repeated.
    """
    from clipnoise.run.job import PROCESSOR

    equal, elsewhere = [], False
    for name, different in found:
        equal.append(not different)
        elsewhere |= PROCESSOR in different
        print(f"{'DIFFERENT' if different else 'equal'}: {name}", flush=True)
        for value, (before, now) in different.items():
            print(f"    {value}: {before} before, {now} now")
    print(f"{sum(equal)} of {len(equal)} runs repeated bit for bit, of {of}")
    if elsewhere:
        print("Runs were trained on another processor, which may round sums differently.")
    return all(equal)


@options.command()
def collect(
    study: Annotated[Path, options.ARGUMENT],
    out: Annotated[Path, "Folder for the two tables."],
    results: options.Results = options.RESULTS,
    scale: options.Scale = None,
    secure_noise: options.SecureNoise = False,
) -> int:
    """Collect the result files of a study file into two tables, runs and curves.

    Reports are made from the Parquet files; the CSV files are the same for other programs.

    Every planned run gets a row, also a missing, diverged or damaged one, with the reason. A
    damaged result is set aside, and the exit code is 1: Snakemake then has no table that looks up
    to date, and its next call repeats the run.
    """

    runs, curves = collect_results(load_study(study, scale, secure_noise=secure_noise), results)
    for name, table in (("runs", runs), ("curves", curves)):
        write_atomically(out / f"{name}.csv", to_csv(table))
        write_atomically(out / f"{name}.parquet", to_parquet(table))
    rows = runs.select(["folder", "reason", "status"]).to_pylist()
    damaged = {row["folder"]: row["reason"] for row in rows if row["status"] == "corrupt"}
    for folder, reason in damaged.items():
        print(set_aside(results / "runs" / folder, reason))
    print(f"{out}: {len(rows)} runs")
    return 1 if damaged else 0


@options.command()
def select(
    runs: Annotated[Sequence[str], "Folders of the tuning runs."],
    parameters: Annotated[Sequence[str], "What is tuned: hyper-parameters, or keys of training."],
    out: Annotated[Path, "JSON file to write."],
    below: Annotated[Path, "The folder that contains these folders."] = Path(),
    metric: Annotated[
        ValidationMetric, "What the choice maximises or minimises."
    ] = "validation_accuracy",
    each_run: Annotated[
        bool, "Whether every run is a trial by itself, as where their number is drawn."
    ] = False,
) -> None:
    """Choose the tuned settings with the best mean validation metric over their runs.

    The choice is a JSON file with every configuration that was tried; `clipnoise train --choice`
    reads it. A configuration with a run that diverged cannot win.
    """

    summaries = []
    for name in runs:
        try:
            files = read_run(below / name)
        except UserError as error:
            raise UserError(set_aside(below / name, str(error))) from None
        if files is None:
            raise UserError(f"{below / name}: the run has not finished.")
        absent = set(parameters) - set(files.summary["spec"].get("method", ())) - set(TRAINING)
        if absent:
            raise UserError(f"--parameters: {', '.join(sorted(absent))}: not in {name}.")
        summaries.append(files.summary)
    try:
        choice = choose(summaries, parameters, metric, each=each_run)
    except (KeyError, TypeError, ValueError) as error:  # their digests are right
        raise UserError(f"{below}: a result file is damaged ({error!r}). Delete it.") from None
    write_json(out, to_plain(choice))
    edge = f"WARNING: {', '.join(choice.edges)} at an edge of the grid. " if choice.edges else ""
    best = f"{in_words(choice.choice)}, the best of {len(choice.tried)}"
    print(f"{out}: {best}. {edge}{choice.remark}".rstrip())


@options.command()
def schema(out: Annotated[Path, "Folder for the schemas."]) -> None:
    """Write the JSON Schemas of config.yaml, study files, scale files and run specs.

    An editor that supports JSON Schema completes and checks the YAML files with them.
    """
    from clipnoise.studies.schema import schemas

    for name, values in schemas().items():
        write_atomically(out / name, json_text(values) + "\n")
        print(out / name)
