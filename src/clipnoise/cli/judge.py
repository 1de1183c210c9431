"""The judge: bring a method in a file, and get a verdict."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from clipnoise.cli import options
from clipnoise.errors import UserError, unknown
from clipnoise.files import read_yaml, require_writable, write_atomically, write_json

if TYPE_CHECKING:
    import pandas as pd

    from clipnoise.audit.findings import Finding
    from clipnoise.audit.judge.verdict import Judgement
    from clipnoise.audit.loops.claim import LoopFinding
    from clipnoise.report.judgement import LeagueStanding
    from clipnoise.studies.config import Config
    from clipnoise.studies.league import LeagueEntry
    from clipnoise.studies.study import Study

CONFIG = Path("config.yaml")
TEMPLATE = options.TEMPLATES / "audit.typ"  # it is there where clipnoise is checked out


@options.command()
def judge(
    file: Annotated[Path | None, options.ARGUMENT] = None,
    loop: Annotated[
        Path | None,
        "Python file with a claim and a training loop of any library, in place of FILE.",
    ] = None,
    level: Annotated[
        Literal["quick", "full"] | None,
        "How often a loop is run: about 55 times, or 125 times, which is the default.",
    ] = None,
    method: Annotated[str | None, "Id of the method, where the file has several."] = None,
    hyperparameters: options.Hyperparameters = options.NO_HYPERPARAMETERS,
    league: Annotated[
        str | None,
        "Then train it on a task of the league, such as digits, and rank it. lite is a small part "
        "of digits.",
    ] = None,
    tune: Annotated[
        options.JsonValues,
        options.JsonObject(),
        "JSON object of what the league tunes: ranges and grid, as under `tune` in a study. "
        "By default what the league tunes for this method, or else for dp-sgd.",
    ] = options.NO_HYPERPARAMETERS,
    against: Annotated[
        Path | None,
        "Published file of the task, to rank the method among the methods in it. By "
        "default it is ranked among those whose runs are in the results folder.",
    ] = None,
    cores: Annotated[str, "CPU cores for the runs of the league."] = "all",
    out: Annotated[Path, "Folder for judgement.pdf and judgement.json."] = Path("judgement"),
    cache: options.Cache = options.CACHE,
    template: options.Template = TEMPLATE,
) -> int:
    """Judge the method in a Python FILE: say what refutes its claim, if anything does.

    The file runs in processes of its own. A page of PDF and a JSON file say what was checked, what
    was found, and which ε the method may claim. The exit code is 0 if nothing refutes it, 1 if
    something does, and 2 for a mistake. docs/judge.md says what the judge cannot see.

    With --loop, the file holds `claim` and `train(data, record)`, and runs in this process:
    docs/test-your-code.md.

    With --league, Snakemake tunes and trains the method and dp-sgd afterwards, by the protocol in
    docs/league.md, with the folders of config.yaml. After a stop the same command goes on.
    """
    if not template.is_file() and template != TEMPLATE:
        raise UserError(f"{template}: no such template.")
    if (file is None) == (loop is None):
        raise UserError("FILE, --loop: give one of them, a method or a training loop.")
    require_writable(out)
    contested = {"tune": tune, "against": against}
    if loop is not None:
        mine = {"method": method, "hyperparameters": hyperparameters, "league": league}
        _refuse({**mine, **contested}, "is about a method in a FILE, not about a --loop.")
        return _judge_loop(loop, level or "full", out, template)
    assert file is not None
    _refuse({"level": level}, "is about a --loop, not about a method in a FILE.")
    if league is None:
        _refuse(contested, "needs --league, which trains the method to be ranked.")
    for name in {*tune} - {"ranges", "grid"}:  # better known before the judge's minutes
        raise unknown("key", name, ("ranges", "grid"), key="--tune")
    import torch

    from clipnoise.audit.judge.verdict import judge as judge_file
    from clipnoise.plugins import use_no_places

    use_no_places()  # the judged file may lie in a folder whose files this process would import
    contest = None if league is None else Contest.open(league, against)
    torch.set_num_threads(1)  # sums in another order would not be the same bit for bit
    result = judge_file(file, cache, name=method, options=hyperparameters)
    _write(result, out, template)
    _print_checks(result.checks)
    for control in result.controls:
        print(f"{'ok' if control.holds else 'FAILED':<9}control {control.name}: {control.said}")
    if contest is not None and result.verdict == "not refuted":
        print(f"{result.method}: not refuted; now the league", flush=True)
        standing = contest.hold(file, result, hyperparameters, tune, out, cores)
        _write(result, out, template, standing)
    elif contest is not None:
        print("left out: the league, which ranks methods that are not refuted")
    wrong = ", ".join(one.name for one in result.controls if not one.holds)
    why = {"refuted": _reasons(result.refuted_by), "void": f"the control {wrong} came out wrong"}
    said = why.get(result.verdict, "")
    return _conclude(result.method or file, result.verdict, said, out, template)


def _refuse(options: Mapping[str, object], why: str) -> None:
    """Refuse options that are given and would be ignored."""
    for name, value in options.items():
        if value:
            raise UserError(f"--{name}: {why}")


def _judge_loop(file: Path, level: Literal["quick", "full"], out: Path, template: Path) -> int:
    """Judge a training loop, print what was found, and return the exit code."""
    from clipnoise.audit.loops.verdict import judge_file
    from clipnoise.report.judgement import build_loop_judgement

    result = judge_file(file, level=level)
    write_json(out / "judgement.json", asdict(result))
    if template.is_file():
        write_atomically(out / "judgement.pdf", build_loop_judgement(result, template))
    _print_checks([*result.checks, *result.skipped])
    for remark in result.remarks:
        print(f"remark: {remark}")
    return _conclude(file, result.verdict, _reasons(result.refuted_by), out, template)


def _print_checks(checks: Iterable[Finding | LoopFinding]) -> None:
    for check in checks:
        word = {True: "ok", False: "REFUTED", None: "skipped"}[check.holds]
        print(f"{word:<9}{check.name:<12}{check.said}")


def _reasons(refuted_by: Iterable[Finding | LoopFinding]) -> str:
    return "; ".join(f"{each.name}: {each.said}" for each in refuted_by)


def _conclude(subject: str | Path, verdict: str, why: str, out: Path, template: Path) -> int:
    """Print where the judgement is and what it says; return the exit code.

    Args:
        subject, verdict: what was judged, and the verdict on it.
        why: what speaks against it; empty where nothing does.
        out, template: the folder of the judgement, and the template of its PDF.
    """
    pdf = out / "judgement.pdf" if template.is_file() else f"no PDF without {template}"
    print(f"{pdf}, {out / 'judgement.json'}")
    print(f"{subject}: {verdict}" + (f": {why}" if why else ""))
    return 1 if verdict in ("refuted", "void") else 0


def _write(
    result: Judgement, out: Path, template: Path, league: LeagueStanding | None = None
) -> None:
    from clipnoise.report.judgement import build_judgement, standing_rows

    ranked = {} if league is None else {"league": league}
    write_json(out / "judgement.json", {**asdict(result), **ranked})
    if template.is_file():
        write_atomically(out / "judgement.pdf", build_judgement(result, template, league))
    if league is not None:
        heads, rows = standing_rows(league)
        for row in rows:
            print("; ".join(f"{head} {cell}" for head, cell in zip(heads, row, strict=True)))


@dataclass(frozen=True)
class Contest:
    """A league that a judged method takes part in.

    Attributes:
        task: of the league.
        study: its confirmation.
        config: config.yaml, which says where the results and the data are.
        against: the file of published runs to rank it among, or None: the runs that are here.
    """

    task: str
    study: Study
    config: Config
    against: Path | None
    published: pd.DataFrame | None

    @classmethod
    def open(cls, task: str, against: Path | None) -> Contest:
        """Read a task of the league, and make sure of its data.

        Raises:
            UserError: there is no config.yaml or no such task here, data are missing,
                or the file of published runs is none.
        """
        from clipnoise.fields import parse
        from clipnoise.report.publication import read_run_rows
        from clipnoise.studies.config import Config
        from clipnoise.studies.league import confirmation, require_data
        from clipnoise.studies.study import LEAGUE, load_study, names_below

        config = parse(Config, read_yaml(CONFIG), file=str(CONFIG))
        tasks = {
            name.partition("/")[2] for name in names_below(options.STUDIES, f"{LEAGUE}/*.yaml")
        }
        if task not in tasks:
            raise unknown("task", task, sorted(tasks), key="--league")
        path = options.STUDIES / LEAGUE / f"{task}.yaml"
        study = confirmation(load_study(path, secure_noise=config.secure_noise))
        require_data(study, Path(config.cache))
        # A wrong file is better known before the judge's minutes.
        published = None if against is None else read_run_rows(against)
        return cls(task, study, config, against, published)

    def hold(
        self,
        file: Path,
        judged: Judgement,
        fixed: options.JsonValues,
        tune: options.JsonValues,
        out: Path,
        cores: str,
    ) -> LeagueStanding:
        """Train a copy of a method and its baseline, and return where it stands, as plain data.

        Args:
            file, judged: the method's file, and the judgement of it.
            fixed, tune: hyper-parameters that are given, and what is tuned; empty is as in the
                league.
            out, cores: the folder of the judgement, and cores as for Snakemake.

        Raises:
            UserError: the method cannot take part, the file has changed, or a run failed.
        """
        import yaml

        from clipnoise.report.judgement import standing
        from clipnoise.report.records import read_runs
        from clipnoise.studies.league import enter

        assert judged.track is not None
        method = judged.method
        entry = enter(self.study, method, judged.track, judged.hyperparameters, fixed, tune)
        text = file.read_text(encoding="utf-8-sig")
        if hashlib.sha256(text.encode()).hexdigest() != judged.sha256:
            raise UserError(f"{file}: has changed since it was judged; judge it again.")
        folder = out / "league" / method
        folder.mkdir(parents=True, exist_ok=True)
        for copy in folder.glob("*.py"):
            copy.unlink()
        write_atomically(folder / file.name, text)
        study = folder / f"{entry.name}.yaml"
        write_atomically(study, yaml.safe_dump(entry.study, sort_keys=False, allow_unicode=True))
        self._train(study, folder, cores)
        runs = read_runs(Path(self.config.results) / "studies" / entry.name / "runs.parquet")
        league, among = self._results(entry)
        return {
            "task": self.task,
            "study": str(study),
            "baseline": entry.baseline,
            "tune": entry.tune,
            "space": entry.space,
            "among": among,
            "report": f"{self.config.reports}/{entry.name}/report.pdf",
            **standing(runs, league, method, entry.baseline),
        }

    def _train(self, study: Path, folder: Path, cores: str) -> None:
        """Have Snakemake make the report of a study whose method is in a folder."""
        settings = {"studies": [str(study)], "plugins": [str(folder)], "scale": "paper"}
        words = [sys.executable, "-m", "snakemake", "--cores", cores]
        words += [f"{self.config.reports}/{study.stem}/report.pdf", "--config"]
        words += [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        with subprocess.Popen(words, env={**os.environ, "PATH": path}) as process:
            try:
                failed = process.wait()
            except KeyboardInterrupt:  # which Snakemake was sent, too: it ends when its jobs have
                process.wait()
                raise
        if failed:
            raise UserError(
                f"{study}: a job failed, see above. After a mistake is mended, the same command "
                "goes on. The judgement without the league is written."
            )

    def _results(self, entry: LeagueEntry) -> tuple[pd.DataFrame, str]:
        """Return the rows of the league's runs that have ended, and in words whose they are."""
        from clipnoise.report.publication import run_rows
        from clipnoise.report.records import collected

        if self.published is not None:
            return self.published, f"the methods in {self.against}"
        runs, _ = collected(self.study, Path(self.config.results))
        rows = run_rows(runs)
        ended = rows[rows["status"].isin(["completed", "diverged"])]
        others = {*ended["method"]} - {entry.baseline}
        found = f"the methods with results in {self.config.results}"
        return ended, found if others else f"{entry.baseline} and itself, for want of other results"
