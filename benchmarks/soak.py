"""Disturb a small study for an hour, again and again, and compare what comes of it; write soak.md.

Each seed has a copy of the checkout on a small file system of its own, and Linux namespaces, so
that nothing else on the machine can be hit. There a study is trained once undisturbed. Then it is
trained again from nothing, round after round, while faults at random moments hit it; whenever
Snakemake has ended it is started again, and where its messages or docs/operations.md ask for
something, that is done. A round ends with a call that nothing disturbs. Then every number must be
as it was undisturbed.

    python benchmarks/soak.py --minutes 60 --seeds 1 2 3

Needs Linux with unshare (util-linux). Exit status: 0 if nothing is lost, wrong or left over, 1 if
something is, 2 where it cannot run.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import pandas as pd
import psutil
import same_numbers
import yaml

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
DISK_MB = 160
COLUMNS = ("seed", "round", "kind", "at", "recovered")
# What differs from call to call, beside times within training.
TIMES = ("seconds", "examples_per_second", "peak_memory_mb", "started", "finished")
TIMES += ("training_seconds", "cpu_seconds")
POLL = 0.2  # seconds
FAULTS = 15  # of a round, on average
STUCK = 12  # calls of Snakemake in a row that finish nothing, without a fault
WRITING = 20  # seconds after which no file may be open for writing
NOTHING_LEFT = 30  # seconds after its end until every process of a study must have ended

MEANING = """\
A result is lost if it is gone or trained again, though no fault has damaged it or edited its code.
Seconds to recover are those from a fault to the next file that a job finishes. The soak runs on one
machine: what happens when a Slurm controller or a node is away is tested in tests/slurm."""

METHOD = '''\
"""A method of the user's, which is edited while it trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.methods.base import PrivateMethod, Public, State
from clipnoise.privacy.queries import ClippedMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released

FACTOR = 1.0


@dataclass(frozen=True, kw_only=True)
class Edited(PrivateMethod):
    """θ ← θ − ηg̃.

    Source: Abadi et al. 2016, Algorithm 1.
    """

    id = "edited"
    query = ClippedMean()

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        return -FACTOR * self.learning_rate * g
'''
EDIT = ("FACTOR = 1.0", "FACTOR = 3.0")  # of equal length, as the nastiest edits are

STUDY: dict[str, Any] = {
    "title": "Soak",
    "defaults": {"datasets": ["digits"], "models": ["logistic"], "epsilons": [8]},
    "panels": {
        "main": {
            "seeds": [1, 2],
            "training": {"expected_batch_size": 50, "steps": 400, "evaluations": 20},
            "methods": [
                {"id": "sgd", "learning_rate": 0.5},
                {"id": "edited", "learning_rate": 0.5, "clip_norm": 1},
                {"id": "stp-adam", "learning_rate": 0.01, "clip_norm": 3},
            ],
        },
        "tuned": {
            "seeds": [1],
            "training": {"expected_batch_size": 50, "steps": 200, "evaluations": 5},
            "methods": [
                {
                    "id": "dp-adam",
                    "clip_norm": 1,
                    "tune": {"grid": {"learning_rate": [0.01, 0.1]}, "seeds": [101]},
                }
            ],
        },
    },
    "report": [
        {"kind": "table", "panels": "main"},
        {"kind": "curves", "panels": "main"},
        {"kind": "table", "panels": "tuned"},
    ],
}


def main(words: Sequence[str] | None = None) -> int:
    """Soak with every seed, side by side, and write the page."""
    arguments = parse(words)
    if arguments.inside:
        return Soak(arguments).run()
    if not may_use_namespaces():
        print("soak: needs unshare (util-linux) and the right to use it.", file=sys.stderr)
        return 2
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="clipnoise-soak-") as place:
        files = [Path(place) / f"{seed}.json" for seed in arguments.seeds]
        asked = ["--minutes", str(arguments.minutes), "--every", str(arguments.every)]
        asked += ["--output", str(arguments.output.absolute())]
        soaks = []
        for seed, file in zip(arguments.seeds, files, strict=True):
            inside = ["--inside", str(file), "--seeds", str(seed), *asked]
            if arguments.only:
                inside += ["--only", *arguments.only]
            soaks.append(subprocess.Popen([*NAMESPACES, sys.executable, __file__, *inside]))
        codes = [soak.wait() for soak in soaks]
        if any(codes):
            return 2
        found = [json.loads(file.read_text()) for file in files]
    faults = pd.DataFrame([row for one in found for row in one["faults"]], columns=list(COLUMNS))
    faults.to_csv(arguments.output / "soak.csv", index=False)
    write_page(faults, found, arguments.output)
    print(arguments.output / "soak.md")
    return int(any(one["problems"] for one in found))


def may_use_namespaces() -> bool:
    """Return whether this machine and user have what a soak needs."""
    known = shutil.which(NAMESPACES[0]) is not None
    return known and subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode == 0


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--minutes", type=float, default=60, help="how long faults are made")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--every", type=float, default=6, help="mean seconds between two faults")
    parser.add_argument("--only", nargs="+", default=[], help="words of the kinds of faults wanted")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(words)


class Fault(NamedTuple):
    """A fault that has been made.

    Attributes:
        kind: what it was.
        at: seconds since the start of the soak.
        files: the finished files at that time.
    """

    kind: str
    at: float
    files: frozenset[tuple[str, int]]


class Soak:
    """One study, its copy of the checkout, and what happens to it.

    Args:
        arguments: those of the program, with one seed.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        (self.seed,) = arguments.seeds
        self.report: Path = arguments.inside
        self.evidence: Path = arguments.output / "soak-problems"
        self.folder = self.report.with_suffix("")
        self.said = self.report.with_suffix(".txt")  # on another file system, which is never full
        self.seconds, self.every = 60 * arguments.minutes, arguments.every
        self.only: list[str] = arguments.only
        self.draw = random.Random(self.seed)
        self.begin = time.monotonic()
        self.snakemake: subprocess.Popen[bytes] | None = None
        self.round = self.calls = 0
        self.idle_calls = 0  # that finished nothing, in a row
        self.rows: list[tuple[Any, ...]] = []
        self.pending: list[Fault] = []
        self.left = 0  # faults of this round
        self.in_force = False  # a fault that lasts
        self.disturbed = False  # whether there was one since Snakemake was started
        self.whole = False
        self.problems: list[str] = []
        self.finished: dict[Path, int] = {}  # summary → inode
        self.excused: set[Path] = set()  # results that a fault was meant to undo
        self.counts = {"rounds": 0, "results": 0, "numbers": 0, "lost": 0, "wrong": 0}

    # The study

    def run(self) -> int:
        """Prepare, soak until the time is over, and report."""
        self.folder.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "soak", self.folder], check=True
        )
        copy_checkout(self.folder)
        write_study(self.folder)
        self.call("snakemake", "--cores", "2", check=True)
        undisturbed = self.report.with_suffix(".undisturbed")
        shutil.copytree(self.folder / "results", undisturbed / "results")
        shutil.copytree(self.folder / "reports" / "soak", undisturbed / "reports")
        self.begin = time.monotonic()
        while self.now() < self.seconds:
            self.round += 1
            self.soak_once(undisturbed)
            self.tell()
        return 0

    def soak_once(self, undisturbed: Path) -> None:
        """Train the study from nothing under faults until it is whole, and compare it."""
        for name in ("results", "reports/soak", "data", ".snakemake"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self.finished, self.excused, self.whole, self.idle_calls = {}, set(), False, 0
        self.left = self.draw.randint(1, 2 * FAULTS)
        while not self.whole:
            self.watch(self.draw.expovariate(1 / self.every))
            if not self.whole and self.left > 0 and self.now() < self.seconds:
                self.left -= 1
                self.disturb()
        self.counts["rounds"] += 1
        self.compare(undisturbed)

    def now(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.begin

    def watch(self, seconds: float) -> None:
        """Let the study go on for some seconds, or until it is whole."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.whole:
            if self.snakemake is None:
                self.start()
            assert self.snakemake is not None
            code = self.snakemake.poll()
            self.look()
            if code is None:
                time.sleep(POLL)
            else:
                self.snakemake = None
                self.ended(code)

    def start(self) -> None:
        """Start Snakemake as a user does."""
        self.calls += 1
        self.disturbed = self.in_force
        self.before = len(self.finished_files())
        with self.said.open("wb") as stream:
            self.snakemake = subprocess.Popen(
                ["snakemake", "--cores", "2"],
                cwd=self.folder,
                env=self.environment(),
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ended(self, code: int) -> None:
        """Do what the messages of a Snakemake that has ended ask for."""
        text = self.said.read_text(errors="replace")
        if code == 0 and not self.disturbed:
            self.whole = True
            return
        if code == 0:  # the next call shall find nothing left to do, or mend what was disturbed
            self.left = 0
        progress = len(self.finished_files()) > self.before
        self.idle_calls = 0 if progress or self.disturbed else self.idle_calls + 1
        if self.idle_calls == STUCK:
            self.problem("stuck", f"exit code {code}: {text[-3000:]}")
            self.whole = True
        if "--unlock" in text:
            self.call("snakemake", "--unlock")
        if "clock skew" in text:
            self.from_now_on()

    def from_now_on(self) -> None:
        """Do what docs/operations.md says after a clock was set back."""
        page = (self.folder / "docs" / "operations.md").read_text()
        (line,) = [line for line in page.splitlines() if line.startswith("find . -newermt now")]
        self.call("bash", "-c", line)

    def call(self, *words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder as a user does, and wait for its end."""
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(words)}\n{done.stdout[-5000:]}")
        return done

    def environment(self) -> dict[str, str]:
        """Return the environment in which the copy of the checkout is the one that is installed."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ours = {"PATH": path, "PYTHONPATH": str(self.folder / "src"), "OMP_NUM_THREADS": "1"}
        left_out = ("CLIPNOISE_PLUGINS", "MLFLOW_TRACKING_URI")
        return {k: v for k, v in os.environ.items() if k not in left_out} | ours

    # What is seen

    def finished_files(self) -> frozenset[tuple[str, int]]:
        """Return the files that jobs have finished, with their inodes: each is written at once."""
        patterns = ("runs/**/summary.json", "calibration/*.json", "tuning/*.json", "studies/**/*.*")
        found = [path for one in patterns for path in self.folder.glob(f"results/{one}")]
        found += self.folder.glob("data/*/manifest.json")
        found += [path for path in self.folder.glob("reports/soak/**/*.*") if path.is_file()]
        named = set()
        for path in found:
            with suppress(FileNotFoundError):
                named.add((str(path), path.stat().st_ino))
        return frozenset(named)

    def look(self) -> None:
        """Note which faults the study has recovered from, and which results are lost."""
        if self.pending:
            files = self.finished_files()
            for fault in [fault for fault in self.pending if files - fault.files]:
                self.pending.remove(fault)
                self.note(fault, round(self.now() - fault.at, 1))
        there = {}
        for path in self.folder.glob("results/runs/**/summary.json"):
            with suppress(FileNotFoundError):
                there[path] = path.stat().st_ino
        for path, inode in self.finished.items():
            if there.get(path) != inode and path not in self.excused:
                what = "gone" if path not in there else "trained again"
                self.problem("lost", f"{path.relative_to(self.folder)}: {what}")
        self.finished = there

    def note(self, fault: Fault, recovered: float | None) -> None:
        """Add a row for a fault."""
        self.rows.append((self.seed, self.round, fault.kind, round(fault.at, 1), recovered))

    def problem(self, kind: str, text: str) -> None:
        """Note what should not be."""
        last = [row[2] for row in self.rows[-3:]] + [fault.kind for fault in self.pending]
        line = f"seed {self.seed}, round {self.round}, {kind}: {text} (last faults: {last})"
        print(line, file=sys.stderr, flush=True)
        self.problems.append(line)
        if kind in self.counts:
            self.counts[kind] += 1
        evidence = self.evidence / f"{self.seed}-{len(self.problems)}"
        evidence.mkdir(parents=True, exist_ok=True)
        for name in ("results", "reports/soak", ".snakemake/log"):
            with suppress(shutil.Error, FileNotFoundError):  # files that come and go
                shutil.copytree(self.folder / name, evidence / name)
        shutil.copy(self.said, evidence / "snakemake.txt")

    def compare(self, undisturbed: Path) -> None:
        """Compare a study that is whole with the undisturbed one, and look for what is left."""
        for fault in self.pending:  # nothing was left to do
            self.note(fault, round(self.now() - fault.at, 1))
        self.pending = []
        before = same_numbers.read(undisturbed / "results")
        after = same_numbers.read(self.folder / "results")
        columns = [
            name
            for name in next(iter(before.values()))
            if name not in (*TIMES, "status") and not name.startswith(same_numbers.METRICS)
        ]
        numbers, wrong = same_numbers.compare(before, after, columns)
        for path in sorted(undisturbed.glob("results/runs/**/metrics.csv")):
            mine = self.folder / path.relative_to(undisturbed)
            if not mine.exists() or without_times(path) != without_times(mine):
                wrong.append(f"{mine.relative_to(self.folder)} differs")
        for path in sorted((undisturbed / "reports" / "tables").glob("*.csv")):
            mine = self.folder / "reports" / "soak" / "tables" / path.name
            if path.read_bytes() != mine.read_bytes():
                wrong.append(f"{mine.relative_to(self.folder)} differs")
        self.counts["numbers"] += numbers
        self.counts["results"] += len(after)
        for line in wrong:
            self.problem("wrong", line)
        for line in self.left_over():
            self.problem("left over", line)

    def left_over(self) -> Iterator[str]:
        """Yield what a study that is whole should not leave."""
        end = time.monotonic() + NOTHING_LEFT
        while self.processes() and time.monotonic() < end:
            time.sleep(POLL)
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                yield f"process: {' '.join(process.cmdline())[:200]}"
                process.kill()
        for name in ("results", "reports", "data", ".snakemake/locks"):
            for path in (self.folder / name).rglob("*"):
                unfinished = path.name.startswith(".") and ".part" in path.name
                if path.is_file() and (unfinished or "locks" in name or path.name == ".lock"):
                    yield f"file: {path.relative_to(self.folder)}"
        planned = self.call("snakemake", "-n", "--cores", "2")
        if planned.returncode or "Nothing to be done" not in planned.stdout:
            yield f"a dry run plans: {planned.stdout[-1500:]}"
        synced = self.call("clipnoise", "mlflow-sync", "--study", "workflow/studies/soak.yaml")
        if synced.returncode or "unchanged" not in synced.stdout or "added" in synced.stdout:
            yield f"MLflow was not up to date: {synced.stdout[-500:]}"

    def tell(self) -> None:
        """Write what was found so far."""
        made_on = {"seed": self.seed, "minutes": round(self.now() / 60, 1), "calls": self.calls}
        found = {**made_on, **self.counts, "faults": self.rows, "problems": self.problems}
        self.report.write_text(json.dumps(found))
        print(json.dumps({**made_on, **self.counts, "faults": len(self.rows)}), flush=True)

    # Faults

    def disturb(self) -> None:
        """Make one of the faults that are possible now."""
        possible = {kind: make for kind, make in self.kinds().items() if self.wanted(kind)}
        kind = self.draw.choice(sorted(possible)) if possible else None
        if kind is None:
            return
        print(f"seed {self.seed}, {self.now():.0f} s: {kind}", file=sys.stderr, flush=True)
        self.in_force = self.disturbed = True
        self.idle_calls = 0
        self.pending.append(Fault(kind, self.now(), self.finished_files()))
        possible[kind]()
        self.in_force = False

    def wanted(self, kind: str) -> bool:
        """Return whether a kind of fault was asked for."""
        return not self.only or any(word in kind for word in self.only)

    def kinds(self) -> dict[str, Callable[[], None]]:
        """Return the faults that are possible now, by kind."""
        results = self.folder / "results"
        kinds: dict[str, Callable[[], None]] = {
            "disk full": self.disk_full,
            "folder read-only": self.read_only,
            "files from the future": lambda: self.dated(2 * 86400),
            "files from the past": lambda: self.dated(-2 * 86400),
            "plug-in edited": self.edited,
            "everything killed": self.everything_killed,
            "everything killed, .snakemake deleted": self.notes_deleted,
            "second Snakemake": self.second,
        }
        for target, processes in self.targets().items():
            if processes:
                for name in ("SIGKILL", "SIGTERM", "SIGINT"):
                    number = signal.Signals[name]
                    kinds[f"{name} to {target}"] = lambda t=target, n=number: self.signalled(t, n)
        if self.targets()["a run"]:
            kinds["no memory for a run"] = self.no_memory
        if self.snakemake is not None:
            kinds["SIGHUP to Snakemake"] = lambda: self.signalled("Snakemake", signal.SIGHUP)
        if (results / "mlflow.db").exists():
            kinds["MLflow's store moved away"] = self.store_away
            kinds["MLflow's store read-only"] = self.store_read_only
            kinds["MLflow's store locked"] = self.store_locked
        if self.finished:
            kinds["result damaged"] = self.damaged
        return kinds

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the namespace but this one and its parents."""
        ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
        found = (process for process in psutil.process_iter() if process.pid not in ours)
        return [process for process in found if _lives(process)]

    def targets(self) -> dict[str, list[psutil.Process]]:
        """Return the processes that a signal can hit, by what they are."""
        found: dict[str, list[psutil.Process]] = {
            name: [] for name in ("a run", "the warm process", "Snakemake", "tracking", "any step")
        }
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                words, parent = process.cmdline(), process.parent()
                warm = "clipnoise.cli.warm" in " ".join(words)
                forked = parent is not None and "clipnoise.cli.warm" in " ".join(parent.cmdline())
                command = words[2] if len(words) > 2 and words[1].endswith("/clipnoise") else ""
                if warm:
                    found["any step" if forked else "the warm process"].append(process)
                elif command == "train":
                    found["a run"].append(process)
                elif command == "mlflow-sync":
                    found["tracking"].append(process)
                elif command:
                    found["any step"].append(process)
        if self.snakemake is not None and self.snakemake.poll() is None:
            found["Snakemake"].append(psutil.Process(self.snakemake.pid))
        return found

    def signalled(self, target: str, number: int) -> None:
        """Send a signal to one of the processes of a kind."""
        there = self.targets()[target]  # it may have ended since the fault was chosen
        for process in self.draw.sample(there, k=min(1, len(there))):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def everything_killed(self) -> None:
        """Kill all processes at once, as when the machine loses its power."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def notes_deleted(self) -> None:
        """Lose what Snakemake has noted, too."""
        self.everything_killed()
        if self.snakemake is not None:
            self.snakemake.wait()
        shutil.rmtree(self.folder / ".snakemake", ignore_errors=True)

    def disk_full(self) -> None:
        """Take all space that is left for some seconds."""
        filler = self.folder / "filler"
        with filler.open("wb", buffering=0) as stream:
            for size in (2**20, 2**12):
                with suppress(OSError):
                    while True:
                        stream.write(bytes(size))
        self.watch(self.draw.uniform(0.5, 8))
        filler.unlink()

    def read_only(self) -> None:
        """Make the folder read-only for some seconds, as soon as no file is open for writing."""
        mount = ["mount", "-o", "remount,bind,ro", str(self.folder)]
        end = time.monotonic() + WRITING
        while subprocess.run(mount, capture_output=True).returncode and time.monotonic() < end:
            self.watch(POLL)
        self.watch(self.draw.uniform(0.5, 8))
        subprocess.run(["mount", "-o", "remount,bind,rw", str(self.folder)], check=True)

    def dated(self, shift: float) -> None:
        """Give some of the study's files another time."""
        files = [path for name in ("results", "data", "workflow", "plugins")
                 for path in (self.folder / name).rglob("*") if path.is_file()]  # fmt: skip
        moment = time.time() + shift
        for path in self.draw.sample(files, k=len(files) // 2):
            with suppress(FileNotFoundError):
                os.utime(path, (moment, moment))

    def edited(self) -> None:
        """Edit the user's method, and undo it after some seconds."""
        file = self.folder / "plugins" / "edited.py"
        self.excused |= {path for path in self.finished if "/edited/" in str(path)}
        file.write_text(METHOD.replace(*EDIT))
        self.watch(self.draw.choice([0.2, 1, 5, 15]) * self.draw.random())
        self.excused |= set(self.folder.glob("results/runs/*/*/edited/**/summary.json"))
        file.write_text(METHOD)

    def damaged(self) -> None:
        """Change a digit of a result, or cut it off."""
        path = self.draw.choice(sorted(self.finished))
        self.excused.add(path)
        with suppress(FileNotFoundError):
            text = path.read_text()
            position = self.draw.choice([i for i, x in enumerate(text) if x in "0123456789"])
            digit = str((int(text[position]) + 1) % 10)
            cut = self.draw.random() < 0.5
            path.write_text(text[:position] + ("" if cut else digit + text[position + 1 :]))

    def second(self) -> None:
        """Start Snakemake a second time in the folder."""
        done = self.call("snakemake", "--cores", "2") if self.running() else None
        if done is not None and done.returncode == 0 and self.running():
            self.problem("second Snakemake", done.stdout[-500:])

    def running(self) -> bool:
        """Return whether Snakemake holds its lock."""
        return self.snakemake is not None and self.snakemake.poll() is None

    def no_memory(self) -> None:
        """Let a run have no more memory than it has taken."""
        for process in self.targets()["any step"]:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                most = process.memory_info().vms
                resource.prlimit(process.pid, resource.RLIMIT_AS, (most, most))

    def store_away(self) -> None:
        """Move MLflow's store away for some seconds, unless another one has been made."""
        store, away = self.folder / "results" / "mlflow.db", self.folder / "away.db"
        store.rename(away)
        self.watch(self.draw.uniform(0.5, 10))
        if not store.exists() and store.parent.exists():
            away.rename(store)
        away.unlink(missing_ok=True)

    def store_read_only(self) -> None:
        """Make MLflow's store read-only for some seconds."""
        store = str(self.folder / "results" / "mlflow.db")
        subprocess.run(["mount", "--bind", store, store], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", store], check=True)
        self.watch(self.draw.uniform(0.5, 10))
        subprocess.run(["umount", "--lazy", store], check=True)

    def store_locked(self) -> None:
        """Lock MLflow's store for some seconds, as another program might."""
        connection = sqlite3.connect(self.folder / "results" / "mlflow.db", timeout=0)
        with closing(connection), suppress(sqlite3.OperationalError):
            connection.execute("BEGIN EXCLUSIVE")
            self.watch(self.draw.uniform(0.5, 20))


def _lives(process: psutil.Process) -> bool:
    """Return whether a process has not ended, also where it ends while it is asked."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def copy_checkout(folder: Path) -> None:
    """Copy the files of the checkout, as they are now, but no tests."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def write_study(folder: Path) -> None:
    """Write the study, the method and the configuration."""
    (folder / "workflow" / "studies" / "soak.yaml").write_text(yaml.safe_dump(STUDY))
    (folder / "plugins").mkdir()
    (folder / "plugins" / "edited.py").write_text(METHOD)
    config = folder / "config.yaml"
    values = {**yaml.safe_load(config.read_text()), "studies": ["soak"], "device": "cpu"}
    config.write_text(yaml.safe_dump(values))


def without_times(path: Path) -> list[dict[str, str]]:
    """Read the metrics of a run without what differs from call to call."""
    with path.open(newline="") as stream:
        return [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(stream)]


def write_page(faults: pd.DataFrame, found: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write soak.svg and soak.md beside the CSV file."""
    kinds = sorted(faults["kind"].unique())
    draw(faults, kinds, folder / "soak.svg")
    lines = ["# A study under faults", "", __doc__.strip().split("\n\n")[1], ""]
    lines += ["| seed | minutes | rounds | calls of Snakemake | faults | results compared |"
              " numbers compared | lost | wrong | other problems |"]  # fmt: skip
    lines += [f"|{'---:|' * 10}"]
    for one in found:
        other = len(one["problems"]) - one["lost"] - one["wrong"]
        cells = [one[x] for x in ("seed", "minutes", "rounds", "calls")]
        cells += [len(one["faults"]), *(one[x] for x in ("results", "numbers", "lost", "wrong"))]
        lines.append(f"| {' | '.join(f'{cell:,}' for cell in [*cells, other])} |")
    lines += ["", MEANING, "", "![Seconds to recover by kind of fault](soak.svg)", ""]
    lines += ["| fault | times | recovered | median seconds | most |", "|---|---:|---:|---:|---:|"]
    for kind in kinds:
        seconds = faults.loc[faults["kind"] == kind, "recovered"]
        numbers = f"{len(seconds)} | {seconds.notna().sum()}"
        lines.append(f"| {kind} | {numbers} | {seconds.median():.1f} | {seconds.max():.1f} |")
    problems = [line for one in found for line in one["problems"]]
    lines += ["", "## Problems", "", *(f"- {line}" for line in problems or ["none"])]
    (folder / "soak.md").write_text("\n".join([*lines, ""]))


def draw(faults: pd.DataFrame, kinds: Sequence[str], path: Path) -> None:
    """Draw the seconds to recover, a line of points for each kind."""
    figure, axes = plt.subplots(figsize=(7, 1 + 0.24 * len(kinds)), layout="constrained")
    for place, kind in enumerate(kinds):
        seconds = faults.loc[faults["kind"] == kind, "recovered"].dropna()
        axes.plot(seconds, [place] * len(seconds), "o", color="C0", alpha=0.3, markersize=4)
        axes.plot([seconds.median()], [place], "|", color="black", markersize=12)
    axes.set_yticks(range(len(kinds)), kinds)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="seconds to recover (bar: median)")
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
