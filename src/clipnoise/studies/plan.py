"""The plan: what config.yaml asks for, as paths, command-line values and dependencies.

The one place where paths, wildcards and specs meet. The Snakefile asks it questions and holds no
logic of its own.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from clipnoise.core.taken import AtMinimum
from clipnoise.data.base import Dataset
from clipnoise.data.features import Features
from clipnoise.errors import UserError, unknown
from clipnoise.fields import parse
from clipnoise.files import require_writable
from clipnoise.models.base import Model
from clipnoise.models.pretrained import tensors_digest
from clipnoise.plugins import plugins, use_places
from clipnoise.privacy.budget import Budget
from clipnoise.run.fingerprint import fingerprint, prepared_from
from clipnoise.run.results import run_folder
from clipnoise.run.scheduler import Limit, count_exceeded
from clipnoise.run.spec import RunSpec
from clipnoise.studies.audits import found_by_audits
from clipnoise.studies.config import Config
from clipnoise.studies.file import LONGEST_NAME, alike_but_different
from clipnoise.studies.scale import PAPER, read_scale
from clipnoise.studies.study import (
    IN_A_PAPER,
    PUBLISHED,
    Study,
    facts_of,
    find_study,
    memberships,
    names_below,
    published_tables,
    studies_of_papers,
)
from clipnoise.studies.tuning import Search
from clipnoise.tracking import note, tracking_fault

T = TypeVar("T")

PART = "[A-Za-z0-9_-]+"
NAME = rf"{PART}(/{PART})?"
RESERVED = ("audit", "reaccounting")  # they are reports of their own
SOLVED = 20  # sums for which the solver of a minimum asks, about: on digits 31 at σ = 0.3, 5 at 5
PLANNED_CODE = "CLIPNOISE_PLANNED_CODE"  # the variable that tells nodes of it
RUN = "{dataset}/{model}/{method}/{budget}/seed={seed}/{hash}"


@dataclass(frozen=True)
class Plan:
    """Every run, calibration and report that can be asked for. Studies are read on demand.

    What no study plans raises a UserError when it is looked up by its hash or key.

    Attributes:
        config: config.yaml, checked.
        folder: the folder of study files.
        scale: the file of the scale; None at the paper's own.
        configured: the studies that config.yaml names, in its order.
        root: the folder of config.yaml, which the paths in it and in studies are relative to.
        planned: on a node, the `code` of the process that planned the job; None in that process.
    """

    config: Config
    folder: Path
    scale: Path | None
    configured: tuple[str, ...]
    root: Path = Path()
    planned: str | None = None
    _studies: dict[str, Study] = field(default_factory=dict)
    _runs: dict[str, RunSpec] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _searches: dict[str, Search] = field(default_factory=dict)
    _budgets: dict[str, Budget] = field(default_factory=dict)
    _datasets: dict[str, Dataset] = field(default_factory=dict)
    _weights: dict[Model, str] = field(default_factory=dict)

    @classmethod
    def from_values(
        cls,
        values: Mapping[str, Any],
        folder: Path,
        *,
        root: Path = Path(),
        planned: str | None = None,
    ) -> Plan:
        """Read the studies that a configuration names, and expand them.

        Args:
            values: config.yaml as read, command-line overrides included.
            folder: the folder of study files.
            root, planned: as in the attributes.

        Raises:
            UserError: config.yaml or a study is wrong; names file, key, value and what is allowed.
        """
        use_places(values.get("plugins"), root)
        config = parse(Config, dict(values), file="config.yaml")
        paper = config.scale == PAPER
        scale = None if paper else folder.parent / "scales" / f"{config.scale}.yaml"
        rules = read_scale(scale)
        secure = config.secure_noise
        studies = [
            find_study(one, folder, scale, root=root, secure_noise=secure) for one in config.studies
        ]
        _check_names(studies, folder)
        plan = cls(config, folder, scale, tuple(study.name for study in studies), root, planned)
        for name in rules.reproductions:
            if name not in plan.reproductions:
                raise unknown("reproduction", name, plan.reproductions, file=str(scale))
        for study in studies:
            plan._add(study)
        return plan

    def require_writable(self, root: Path = Path()) -> None:
        """Refuse folders of config.yaml that cannot be written, before anything is done.

        Raises:
            UserError: names the key and the folder, and says why.
        """
        for key in ("results", "reports", "cache"):
            try:
                require_writable(root / getattr(self.config, key))
            except UserError as error:
                raise UserError(f"config.yaml: {key}: {error}") from None

    # What is planned

    def _add(self, study: Study) -> Study:
        self.published_tables(study)  # are they there?
        self._studies[study.name] = study
        self._searches.update(study.searches)
        self._runs.update(study.specs)
        self._names.update(study.names)
        for spec in study.specs.values():
            self._datasets.update((one.prepared, one) for one in spec.datasets)
            if spec.budget is not None:
                self._budgets[spec.budget.key] = spec.budget
        return study

    def study(self, name: str) -> Study:
        """Return a study; one that config.yaml does not name is read now."""
        secure = self.config.secure_noise
        return self._studies.get(name) or self._add(
            find_study(name, self.folder, self.scale, root=self.root, secure_noise=secure)
        )

    def published_tables(self, study: Study) -> Mapping[int, Path]:
        """Return the CSV of each report item of a study that shows published numbers."""
        return published_tables(study, self.published, root=self.root)

    def run(self, run_hash: str) -> RunSpec:
        """Return the spec of a run."""
        return self._find(self._runs, run_hash, "run")

    def calibration(self, key: str) -> Budget:
        """Return the budget of a calibration: one job calibrates σ for all runs that share it."""
        return self._find(self._budgets, key, "calibration")

    def search(self, key: str) -> Search:
        """Return what a choice is made from."""
        return self._find(self._searches, key, "search")

    def __format__(self, spec: str) -> str:
        """Return the label of a job in a message of a rule, `{plan:train <hash>}`."""
        return self.label(*spec.split()) if spec else str(self)

    def label(self, rule: str, key: str) -> str:
        """Return in words what a job of a rule is about, by the key that the rule knows it by."""
        if rule == "train":
            return self._names[self.run(key).hash]
        if rule == "calibrate":
            return self.calibration(key).label
        if rule == "select":
            search = self.search(key)
            name = self._names[search.runs[0].hash].rpartition(", seed ")[0]
            return f"{', '.join(search.parameters)} of {name}"
        return key

    def _find(self, known: Mapping[str, T], key: str, kind: str) -> T:
        """Look a key up; a job on a cluster knows nothing else, so every study may be read."""
        unread = iter(() if key in known else names_below(self.folder))
        while key not in known and (name := next(unread, None)) is not None:
            self.study(name)
        if key not in known:
            raise UserError(f"{kind} {key}: no study plans it; has its study file changed?")
        return known[key]

    # Training

    def inputs(self, run_hash: str) -> dict[str, list[str]]:
        """Return the files that a run reads: datasets, calibration and choice of tuning."""
        run, results, cache = self.run(run_hash), self.config.results, self.config.cache
        budgets = [] if run.budget is None else [run.budget.key]
        choice = []
        if run.tuning is not None:  # which of them is its budget, the choice decides
            budgets += self.search(run.tuning.key).budget_keys
            choice = [f"{results}/tuning/{run.tuning.key}.json"]
        calibrations = [f"{results}/calibration/{key}.json" for key in dict.fromkeys(budgets)]
        datasets = dict.fromkeys(f"{cache}/{one.prepared}/manifest.json" for one in run.datasets)
        return {"data": list(datasets), "calibration": calibrations, "choice": choice}

    def group(self, run_hash: str) -> str:
        """Return the job group of a run: "chosen" if it waits for a search, otherwise "train"."""
        return "train" if self.run(run_hash).tuning is None else "chosen"

    def fingerprint(self, run_hash: str) -> str:
        """Return the fingerprint of the code, and of the weights if there are any, behind a run.

        On a node it is those of all planned runs: Snakemake makes the command of a job again there,
        when the code may have been edited.
        """
        if self.planned is not None:
            return self.planned
        run = self.run(run_hash)
        if run.model not in self._weights:
            weights = tensors_digest(run.model, Path(self.config.weights))
            self._weights[run.model] = "".join(f"-{digest[:12]}" for digest in weights.values())
        return fingerprint(run) + self._weights[run.model]

    def code(self, run_hashes: Iterable[str]) -> str:
        """Return the fingerprints of some runs, each once, separated by commas."""
        return ",".join(sorted({self.fingerprint(run_hash) for run_hash in run_hashes}))

    def priority(self, run_hash: str) -> int:
        """Return how early a run is started: the longest first, so that no core waits for another.

        It is ten for each power of ten of the operations that the run takes.
        """
        spec = self.run(run_hash)
        sums = SOLVED if isinstance(spec.method.query.of, AtMinimum) else 1
        examples = spec.steps * spec.training.expected_batch_size * spec.passes * sums
        numbers = spec.dataset.signature.size
        return round(10 * math.log10(1 + examples * numbers * spec.model.work))

    def factor(self, run_hash: str, limit: Limit, attempt: int, executor: Any) -> int:
        """Return how many times the memory or time of config.yaml the job of a run asks for.

        Once; and once more for each earlier job that Slurm has ended for lack of it, because more
        does not help after any other failure.

        Args:
            run_hash, limit: of which run, and "memory" or "time".
            attempt: how often Snakemake has submitted the job, this time included.
            executor: settings of Snakemake's executor; that for Slurm has a folder of logs.
        """
        jobs = getattr(executor, "logdir", None)
        if attempt == 1 or jobs is None:
            return 1
        folder = run_folder(Path(self.config.results), self.run(run_hash))
        return 1 + count_exceeded(folder, Path(jobs), limit)

    def spec_json(self, run_hash: str) -> str:
        """Return a run's spec as one line of JSON, for the command line of its job."""
        return self.run(run_hash).to_json()

    def run_file(self, spec: RunSpec, name: str) -> str:
        """Return the path of one of a run's files."""
        return f"{self.config.results}/runs/{spec.folder}/{name}"

    def done_files(self, runs: Iterable[RunSpec]) -> list[str]:
        """Return the files that show that runs are done, each once."""
        return list(dict.fromkeys(self.run_file(spec, "summary.json") for spec in runs))

    def search_options(self, key: str) -> str:
        """Return the options of `clipnoise select`, for a shell."""
        search = self.search(key)
        runs = [spec.folder for spec in search.runs]
        common = os.path.commonpath(runs)
        words = [f"--metric {search.metric}", *(["--each-run"] if search.each else [])]
        words += ["--parameters", *search.parameters]
        words += ["--below", shlex.quote(f"{self.config.results}/runs/{common}"), "--runs"]
        return " ".join([*words, *(os.path.relpath(run, common) for run in runs)])

    # Data

    def fetched(self) -> list[str]:
        """Return the files that mark what every planned dataset is made of as downloaded.

        Of datasets that share a folder of raw files, and an encoder if there is one, one is named.
        """
        datasets = [dataset for dataset in self._datasets.values() if dataset.files]
        encoders = [one.encoder if isinstance(one, Features) else "" for one in datasets]
        names = {
            (one.raw or one.id, by): one.id for one, by in zip(datasets, encoders, strict=True)
        }
        return [f"{self.config.cache}/raw/{name}/fetched" for name in sorted(names.values())]

    def preparation(self, prepared: str) -> str:
        """Return the arguments of `clipnoise data prepare` for a folder of the cache.

        Other arguments make Snakemake prepare it again: those with the user's files say what is in
        them.

        Raises:
            UserError: no study needs the folder, and no dataset has it as its own.
        """
        known = plugins("clipnoise.data", Dataset)
        if prepared in known and not known[prepared]().preparation():
            dataset = known[prepared]()
        else:
            dataset = self._find(self._datasets, prepared, "prepared dataset")
        sources = prepared_from(dataset, Path(self.config.cache))
        return f"{dataset.invocation}{sources and f' --sources {sources}'}"

    # Studies and their reports

    def files(self, study: str) -> dict[str, str | list[str]]:
        """Return the file of a study, and that of the scale; none where no scale changes it."""
        found = self.study(study)
        smaller = self.scale is not None and found.at != PAPER
        return {"study": str(found.path), "scale": [str(self.scale)] if smaller else []}

    def results(self, study: str) -> list[str]:
        """Return the files that show that the runs of a study are done."""
        return self.done_files(run.spec for run in self.study(study).runs)

    def trained(self) -> list[str]:
        """Return the files that show that every run of config.yaml's studies is done.

        Snakemake does not miss a file between others that are there, unless it is asked for it.
        """
        studies = map(self.study, self.configured)
        return self.done_files(spec for study in studies for spec in study.specs.values())

    def methods(self, study: str) -> list[str]:
        """Return the methods of a study by id."""
        return sorted({run.spec.method.id for run in self.study(study).runs})

    def audits(self, study: str) -> list[str]:
        """Return what audits found for a study's methods: a later audit makes its tables again."""
        found = found_by_audits(Path(self.config.results), self.methods(study))
        return [f"{name}: {words}" for name, words in found.items()]

    def tables(self, study: str) -> list[str]:
        """Return the tables of a study's report as CSV files, in order, once each."""
        folder = f"{self.config.reports}/{study}/tables"
        files = dict.fromkeys(filter(None, (item.file for item in self.study(study).report)))
        return [f"{folder}/{name}.csv" for name in files]

    def figures(self, study: str) -> list[str]:
        """Return the figures of a study's report; the name of a file is the number of its item."""
        every = enumerate(self.study(study).report)
        folder = f"{self.config.reports}/{study}/figures"
        return [f"{folder}/{number}.svg" for number, item in every if not item.file]

    def figure_labels(self, study: str, number: int) -> dict[str, str]:
        """Return what a figure shows, for the index of Snakemake's HTML report.

        The report writes labels into a script as they are, where `<` could end it, and braces are
        wildcards in them: both are replaced by what looks like them.
        """
        item = self.study(study).report[number]
        title = (item.title or item.kind).translate(str.maketrans("<{}", "‹❴❵"))
        return {"figure": title, "panel": item.panel}

    def reports(self) -> list[str]:
        """Return the PDF of every study that config.yaml names."""
        return [self.report(name) for name in self.configured]

    def report(self, study: str) -> str:
        """Return the PDF of a study: `<paper>/<artefact>.pdf`, or `<study>/report.pdf`."""
        return f"{self.config.reports}/{study}{'.pdf' if '/' in study else '/report.pdf'}"

    def note_studies(self) -> None:
        """Note which of the studies read so far plan which runs, for MLflow."""
        note(Path(self.config.results), memberships(self.read), **facts_of(self.read))

    def tracked(self) -> list[str]:
        """Return the files that record that MLflow shows each study of config.yaml."""
        wanted = self.configured if self.config.tracking == "sync" else ()
        return [str(self._outcome(study)) for study in wanted]

    def what_mlflow_lacks(self) -> list[str]:
        """Return a line for the user on each study that MLflow does not show, though it should."""
        return [
            f"MLflow does not show {study}: {fault}. The next call tries again, as does "
            "`clipnoise mlflow-sync`; the result files are complete without it."
            for study, fault in self._untracked().items()
        ]

    def _untracked(self) -> dict[str, str]:
        """Return the studies of config.yaml that MLflow does not show though it should, and why."""
        if self.config.tracking == "off":
            return {}
        results = Path(self.config.results)
        faults = {name: tracking_fault(self._outcome(name), results) for name in self.configured}
        return {name: fault for name, fault in faults.items() if fault is not None}

    def track_again(self) -> None:
        """Set aside records of studies that MLflow does not show, so that they are synced again."""
        for name in self._untracked():
            path = self._outcome(name)
            with suppress(OSError):  # a folder of another user, who only looks
                path.replace(path.with_name(f"un{path.name}"))

    def _outcome(self, study: str) -> Path:
        return Path(self.collected, study, "tracked.json")

    @property
    def published(self) -> Path:
        """The folder of published tables."""
        return self.folder.parents[1] / PUBLISHED

    @property
    def read(self) -> Iterable[Study]:
        """The studies read so far: the configured ones, and those of explicit targets."""
        return self._studies.values()

    @property
    def secure_option(self) -> str:
        """The option that makes a command plan the same runs as config.yaml; may be empty."""
        return "--secure-noise" if self.config.secure_noise else ""

    @property
    def collected(self) -> str:
        """The folder of collected tables: one per scale, so that results never mix."""
        return self._of_scale("studies")

    # Papers

    @cached_property
    def reproductions(self) -> list[str]:
        """The artefacts that are experiments without a dataset, `<paper>/<artefact>`."""
        return names_below(self.folder.parent / "reproductions", IN_A_PAPER)

    @cached_property
    def paper_studies(self) -> list[str]:
        """The artefacts that are studies, `<paper>/<artefact>`."""
        return studies_of_papers(self.folder)

    @cached_property
    def artefacts(self) -> list[str]:
        """Every artefact of every paper."""
        return sorted({*self.paper_studies, *self.reproductions})

    @cached_property
    def papers(self) -> dict[str, list[str]]:
        """The artefacts of every paper."""
        by_paper = itertools.groupby(self.artefacts, lambda name: name.split("/")[0])
        return {paper: list(names) for paper, names in by_paper}

    @cached_property
    def reproduction_scale(self) -> Path | None:
        """The scale, where it makes reproductions smaller; None where they keep their size."""
        return self.scale if read_scale(self.scale).reproductions else None

    @property
    def reproduced(self) -> str:
        """The folder of what reproductions find: one per scale that makes them smaller."""
        if self.reproduction_scale is None:
            return f"{self.config.results}/reproductions"
        return self._of_scale("reproductions")

    def _of_scale(self, folder: str) -> str:
        name = folder if self.scale is None else f"{folder}-{self.config.scale}"
        return f"{self.config.results}/{name}"

    @cached_property
    def patterns(self) -> dict[str, str]:
        """Regular expressions for wildcards, which tell apart targets of similar form.

        `study` is any study, `single` one that belongs to no paper, `artefact` one that belongs to
        a paper, `reproduction` an experiment without a dataset, and `paper` a paper.
        """
        other = [f"({'|'.join(RESERVED)})/", *(f"{name}[./]" for name in self.reproductions)]
        no_study = "|".join(other)  # report targets that the study rules must not match
        papers = "|".join(self.papers)
        return {
            "study": f"(?!{no_study}){NAME}",
            "single": f"(?!{no_study}|({papers})/){PART}",
            "artefact": rf"(?!{no_study}){PART}/(?!(report|partial|audit)\.){PART}",
            "reproduction": "|".join(self.reproductions),
            "paper": papers or "none",
        }


def _check_names(studies: Iterable[Study], folder: Path) -> None:
    """Refuse names of studies that files or rules of the workflow could not carry.

    Args:
        studies: those of config.yaml.
        folder: of studies; each folder in it is a paper, whose report has its name.
    """
    paths: dict[str, Path] = {}
    papers = {name.split("/")[0] for name in studies_of_papers(folder)}
    for study in studies:
        if study.name in papers:
            raise UserError(
                f"studies: {study.path}: there is a folder of studies with this name, "
                f"{folder / study.name}: their reports would be in one place."
            )
        if not re.fullmatch(NAME, study.name) or study.name in RESERVED:
            raise UserError(
                f"studies: {study.path}: a study's name may hold letters, digits, - and _, and may "
                f"not be {' or '.join(RESERVED)}."
            )
        if len(study.path.stem) > LONGEST_NAME:
            raise UserError(
                f"studies: {study.path}: its name has {len(study.path.stem)} characters, at most "
                f"{LONGEST_NAME} are allowed."
            )
        if paths.setdefault(study.name, study.path) != study.path:
            raise UserError(
                f"studies: {paths[study.name]} and {study.path} have the same name, {study.name}: "
                "their results would be in one place."
            )
    if alike := alike_but_different(paths):
        raise UserError(f"studies: {alike[0]} and {alike[1]} look the same.")
