"""The plan: what config.yaml asks for, as paths, command-line values and dependencies.

The one place where paths, wildcards and specs meet. The Snakefile asks it questions and holds no
logic of its own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from clipnoise.data.base import Dataset
from clipnoise.errors import UserError, unknown
from clipnoise.plugins import plugins
from clipnoise.privacy.budget import Budget
from clipnoise.run.fingerprint import fingerprint
from clipnoise.run.spec import RunSpec, to_mapping
from clipnoise.studies.audits import audit_of
from clipnoise.studies.batches import Batch, batches
from clipnoise.studies.config import Config, Resources, parse_config
from clipnoise.studies.noted import note, noted
from clipnoise.studies.scale import PAPER, read_scale
from clipnoise.studies.study import Study, find_study, names_below
from clipnoise.studies.tuning import Search

T = TypeVar("T")

ARTEFACTS = "*/*.yaml"  # in a folder for each paper
NAME = r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)?"
RESERVED = ("audit", "reaccounting")  # they are reports of their own
RUN = "{dataset}/{model}/{method}/{budget}/seed={seed}/{hash}"


@dataclass(frozen=True)
class Plan:
    """Every run, calibration and report that can be asked for. Studies are read when they are.

    Attributes:
        config: config.yaml, checked.
        folder: the folder of study files.
        scale: the file of the scale; None at the paper's own.
        configured: the studies that config.yaml names, in its order.
    """

    config: Config
    folder: Path
    scale: Path | None
    configured: tuple[str, ...]
    _studies: dict[str, Study] = field(default_factory=dict)
    _runs: dict[str, RunSpec] = field(default_factory=dict)
    _searches: dict[str, Search] = field(default_factory=dict)
    _budgets: dict[str, Budget] = field(default_factory=dict)
    _datasets: dict[str, Dataset] = field(default_factory=dict)
    _batches: dict[str, Batch] = field(default_factory=dict)
    _batch_of: dict[str, str] = field(default_factory=dict)
    _dealt: set[str] = field(default_factory=set)

    @classmethod
    def from_values(cls, values: Mapping[str, Any], folder: Path) -> Plan:
        """Read the studies that a configuration names, and expand them.

        Args:
            values: config.yaml as read, command-line overrides included.
            folder: the folder of study files.

        Raises:
            UserError: config.yaml or a study is wrong; names file, key, value and what is allowed.
        """
        config = parse_config(values)
        paper = config.scale == PAPER
        scale = None if paper else folder.parent / "scales" / f"{config.scale}.yaml"
        rules = read_scale(scale)
        reproductions = names_below(folder.parent / "reproductions", ARTEFACTS)
        for name in rules.reproductions:
            if name not in reproductions:
                raise unknown("reproduction", name, reproductions, file=str(scale))
        most = max(config.resources.runs_per_job, rules.runs_per_job or 1)
        config = replace(config, resources=replace(config.resources, runs_per_job=most))
        secure = config.secure_noise
        studies = [find_study(one, folder, scale, secure_noise=secure) for one in config.studies]
        _check_names(studies)
        plan = cls(config, folder, scale, tuple(study.name for study in studies))
        for study in studies:
            plan._add(study)
        return plan

    @property
    def job(self) -> Resources:
        """What one training job asks for and holds."""
        return self.config.resources

    def _add(self, study: Study) -> Study:
        self._studies[study.name] = study
        self._searches.update(study.searches)
        self._runs.update(study.specs)
        for spec in study.specs.values():
            self._datasets.update((one.prepared, one) for one in spec.datasets)
            if spec.budget is not None:
                self._budgets[spec.budget.key] = spec.budget
        self._deal(study)
        return study

    def _deal(self, study: Study) -> None:
        """Deal a study's runs into batches, but for those that a configured study has dealt.

        Tuning runs are dealt apart from the runs that wait for them.
        """
        mine: set[str] = set()
        for runs in (study.tuning_runs, [run.spec for run in study.runs]):
            for batch in batches((run for run in runs if run.hash not in self._dealt), self.job):
                self._batches[batch.key] = batch
                mine.update(run.hash for run in batch.runs)
                for run in batch.runs:
                    self._batch_of.setdefault(run.hash, batch.key)
        if study.name in self.configured:
            self._dealt.update(mine)

    def study(self, name: str) -> Study:
        """Return a study; one that config.yaml does not name is read now."""
        secure = self.config.secure_noise
        return self._studies.get(name) or self._add(
            find_study(name, self.folder, self.scale, secure_noise=secure)
        )

    def run(self, run_hash: str) -> RunSpec:
        """Return the spec of a run.

        Raises:
            UserError: no study plans the run.
        """
        return self._find(self._runs, run_hash, "run")

    def batch(self, key: str) -> Batch:
        """Return the runs of one job.

        One that waited in a queue while studies were edited is found by what was noted of it.

        Raises:
            UserError: no study has such a batch, or plans its runs.
        """
        before = {} if key in self._batches else noted(Path(self.config.results))
        if key in before:
            runs = tuple(self.run(run_hash) for run_hash in before[key]["runs"])
            self._batches[key] = Batch(runs, before[key]["parallel"])
        return self._find(self._batches, key, "batch")

    def note_batches(self) -> None:
        """Write down what batches hold, for their jobs that wait in a queue."""
        note(Path(self.config.results), self._batches)

    def calibration(self, key: str) -> Budget:
        """Return the budget of a calibration: one job calibrates σ for all runs that share it.

        Raises:
            UserError: no study needs the calibration.
        """
        return self._find(self._budgets, key, "calibration")

    def _find(self, known: Mapping[str, T], key: str, kind: str) -> T:
        """Look a key up; a job on a cluster knows nothing else, so every study may be read."""
        unread = [] if key in known else names_below(self.folder)
        for name in unread:
            if key in known:
                break
            self.study(name)
        if key not in known:
            raise UserError(f"{kind} {key}: no study plans it; has its study file changed?")
        return known[key]

    def spec_json(self, run_hash: str) -> str:
        """Return a run's spec as one line of JSON, for the command line of its job."""
        return json.dumps(to_mapping(self.run(run_hash)), separators=(",", ":"))

    def batch_json(self, key: str) -> str:
        """Return the specs of a batch as one line of JSON."""
        specs = [to_mapping(run) for run in self.batch(key).runs]
        return json.dumps(specs, separators=(",", ":"))

    def for_batch(self, of_run: Callable[[str], str | list[str]], key: str) -> list[str]:
        """Return what a question about a run answers for the runs of a batch, each answer once."""
        answers = [of_run(run.hash) for run in self.batch(key).runs]
        flat = (each for one in answers for each in ([one] if isinstance(one, str) else one))
        return list(dict.fromkeys(flat))

    def fingerprint(self, run_hash: str) -> str:
        """Return the fingerprint of the code that can change a run."""
        return fingerprint(self.run(run_hash))

    def calibration_file(self, run_hash: str) -> list[str]:
        """Return the calibration that a run reads; none for a non-private run."""
        budget = self.run(run_hash).budget
        return [] if budget is None else [f"{self.config.results}/calibration/{budget.key}.json"]

    def choice_file(self, run_hash: str) -> list[str]:
        """Return the file that a run's tuned hyper-parameters are read from; none if not tuned."""
        tuning = self.run(run_hash).tuning
        return [] if tuning is None else [f"{self.config.results}/tuning/{tuning.key}.json"]

    def search(self, key: str) -> Search:
        """Return what a choice is made from.

        Raises:
            UserError: no study tunes it.
        """
        return self._find(self._searches, key, "search")

    def search_files(self, key: str) -> list[str]:
        """Return the files that say that the runs of a search are done."""
        return self._done_by(self.search(key).runs)

    def search_options(self, key: str) -> str:
        """Return what `clipnoise select` is called with, for a shell."""
        search = self.search(key)
        runs = [spec.folder for spec in search.runs]
        common = os.path.commonpath(runs)
        words = [f"--metric {search.metric}", "--parameters", *search.parameters]
        words += ["--below", shlex.quote(f"{self.config.results}/runs/{common}"), "--runs"]
        return " ".join([*words, *(os.path.relpath(run, common) for run in runs)])

    def dataset_files(self, run_hash: str) -> list[str]:
        """Return the manifests of the prepared datasets that a run reads."""
        names = [dataset.prepared for dataset in self.run(run_hash).datasets]
        return [f"{self.config.cache}/{name}/manifest.json" for name in dict.fromkeys(names)]

    def fetched(self) -> list[str]:
        """Return what marks the raw files of every planned dataset as downloaded."""
        names = sorted({dataset.id for dataset in self._datasets.values() if dataset.files})
        return [f"{self.config.cache}/raw/{name}/fetched" for name in names]

    def preparation(self, prepared: str) -> str:
        """Return what `clipnoise data prepare` is called with for a folder of the cache.

        Raises:
            UserError: no study needs the folder, and it is no dataset's own.
        """
        known = plugins("clipnoise.data", Dataset)
        if prepared in known and not known[prepared]().preparation():
            return prepared
        return self._find(self._datasets, prepared, "prepared dataset").invocation

    def study_file(self, study: str) -> str:
        """Return the file that a study was read from."""
        return str(self.study(study).path)

    def sources(self, study: str) -> list[str]:
        """Return the other files that a study was read from."""
        return [str(path) for path in self.study(study).sources]

    def scale_file(self, study: str) -> list[str]:
        """Return the rules that make a study smaller; none where it is as its file says."""
        smaller = self.study(study).at != PAPER
        return [str(self.scale)] if smaller and self.scale else []

    @property
    def open_store(self) -> str:
        """The command that makes the MLflow store ready for the runs of this plan, for a shell."""
        studies = [self.study_file(name) for name in self.configured]
        words = ["clipnoise", "mlflow-init", *studies, "--results", self.config.results]
        scale = [] if self.scale is None else ["--scale", str(self.scale)]
        words += [*scale, "--tracking", self.config.tracking, self.secure_option]
        return shlex.join(word for word in words if word)

    @property
    def secure_option(self) -> str:
        """What makes a command plan the same runs as config.yaml does; may be empty."""
        return "--secure-noise" if self.config.secure_noise else ""

    @property
    def collected(self) -> str:
        """The folder of collected tables: one per scale, so that results never mix."""
        return self._of_scale("studies")

    @property
    def reproduced(self) -> str:
        """The folder of what reproductions find: one per scale that makes them smaller."""
        if self.reproduction_scale is None:
            return f"{self.config.results}/reproductions"
        return self._of_scale("reproductions")

    @cached_property
    def reproduction_scale(self) -> Path | None:
        """The scale, where it makes reproductions smaller; None where they keep their size."""
        return self.scale if read_scale(self.scale).reproductions else None

    def _of_scale(self, folder: str) -> str:
        name = folder if self.scale is None else f"{folder}-{self.config.scale}"
        return f"{self.config.results}/{name}"

    def run_file(self, spec: RunSpec, name: str) -> str:
        """Return the path of one of a run's files."""
        return f"{self.config.results}/runs/{spec.folder}/{name}"

    def results(self, study: str) -> list[str]:
        """Return the files that say that the runs of a study are done."""
        return self._done_by(run.spec for run in self.study(study).runs)

    def _done_by(self, runs: Iterable[RunSpec]) -> list[str]:
        """Return the files that say that runs are done: the summary of one that has a job alone,
        or of its batch.

        A run that is not there though its batch is done was lost later: it is asked for by itself.
        The result of one that a larger batch has made is for a batch to look at, too: Snakemake
        knows nothing of the code and data that it was made from.
        """
        done: dict[str, bool] = {}
        alone: list[str] = []
        for spec in {run.hash: run for run in runs}.values():
            batch = self._batches[self._batch_of[spec.hash]]
            summary = self.run_file(spec, "summary.json")
            if batch.alone and not _made_in_a_batch(Path(summary)):
                alone.append(summary)
                continue
            file = f"{self.config.results}/batches/{batch.key}.json"
            if done.setdefault(file, Path(file).exists()) and not Path(summary).exists():
                alone.append(summary)
        return [*done, *alone]

    def tables(self, study: str) -> list[str]:
        """Return the tables of a study's report as CSV files, in order, once each."""
        shown = [item.panel for item in self.study(study).report if item.kind == "table"]
        folder = f"{self.config.reports}/{study}/tables"
        return [f"{folder}/{panel}.csv" for panel in dict.fromkeys(shown)]

    def audits(self, study: str) -> list[str]:
        """Return what audits found of a study's methods: a later audit makes its tables anew."""
        methods = sorted({run.spec.method.id for run in self.study(study).runs})
        found = ((name, audit_of(Path(self.config.results), name)) for name in methods)
        return [f"{name}: {words}" for name, words in found if words is not None]

    def figures(self, study: str) -> list[str]:
        """Return the figures of a study's report; a file's name is the item's number."""
        items = enumerate(self.study(study).report)
        folder = f"{self.config.reports}/{study}/figures"
        return [f"{folder}/{number}.svg" for number, item in items if item.drawn]

    def figure_labels(self, study: str, number: int) -> dict[str, str]:
        """Return what a figure shows, for the index of Snakemake's HTML report."""
        item = self.study(study).report[number]
        return {"figure": item.title or item.kind, "panel": item.panel}

    def report(self, study: str) -> str:
        """Return the PDF of a study: `<paper>/<artefact>.pdf`, or `<study>/report.pdf`."""
        return f"{self.config.reports}/{study}{'.pdf' if '/' in study else '/report.pdf'}"

    def reports(self) -> list[str]:
        """Return the PDF of every study that config.yaml names."""
        return [self.report(name) for name in self.configured]

    def artefacts(self) -> list[str]:
        """Return every study that belongs to a paper, `<paper>/<artefact>`."""
        return names_below(self.folder, ARTEFACTS)


def _made_in_a_batch(summary: Path) -> bool:
    """Return whether a result is there that no job of its own has made: Snakemake times those."""
    return summary.exists() and not (summary.parent / "benchmark.jsonl").exists()


def _check_names(studies: Iterable[Study]) -> None:
    """Refuse names of studies that files or rules of the workflow could not carry."""
    paths: dict[str, Path] = {}
    for study in studies:
        if not re.fullmatch(NAME, study.name) or study.name in RESERVED:
            raise UserError(
                f"studies: {study.path}: a study's name may hold letters, digits, - and _, and may "
                f"not be {' or '.join(RESERVED)}."
            )
        if paths.setdefault(study.name, study.path) != study.path:
            raise UserError(
                f"studies: {paths[study.name]} and {study.path} have the same name, {study.name}: "
                "their results would stand in one place."
            )
