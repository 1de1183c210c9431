"""Snakemake's progress display for clipnoise: `snakemake --logger clipnoise`.

On a terminal: the running jobs, how many of each rule are left, and how long that will take. In a
file or a pipe: one line per job that starts or ends. A dry run shows how many jobs of each rule
would run and why; with `-p`, every job and its command. A failed job is shown by the end of its
log; with `-p` also in Snakemake's words, as all other errors are.
Belongs here: what Snakemake's events look like. Does not: anything about runs.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

ROUTINE = (  # messages that only repeat what the display shows
    "Assuming unrestricted",
    "Building DAG",
    "Conda environments: ignored",
    "Execute ",
    "Job rate limit",
    "Provided ",
    "Rules claiming",
    "Select jobs",
    "Using shell",
    "host:",
)
SILENT = (
    LogEvent.JOB_STARTED,
    LogEvent.PROGRESS,
    LogEvent.RESOURCES_INFO,
    LogEvent.RULEGRAPH,
    LogEvent.WORKFLOW_STARTED,
)
NOTHING_LOST = "Cannot restore "  # said of every output that a failed job did not have before
COMMAND_FAILED = "RuleException:\nCalledProcessError"  # said before a job is said to have failed
STATUS = re.compile(r"exit status \d+|died with .*")
LAST_LINES = 12  # of the log of a failed job
INTERRUPTED = "Terminating processes on user request"
WHAT_NEXT = (
    "Stopping: runs save a checkpoint, other jobs end where they are. The same command continues."
)
# How many of the last finished jobs of a kind the expected time is averaged over. A kind has fast
# and slow methods, and the jobs of one method follow each other: fewer could all be of one method.
RECENT = 100


Kind = tuple[str, int]  # a rule and a priority: the more work a job takes, the earlier it starts


@dataclass(frozen=True)
class Job:
    """A job that has started, at a time in seconds on any monotonic clock."""

    rule: str
    label: str  # distinguishes it from the other jobs of its rule
    started: float
    priority: int = 0  # Snakemake's

    @property
    def name(self) -> str:
        """The rule and the label."""
        return f"{self.rule} {self.label}".rstrip()

    @property
    def kind(self) -> Kind:
        """What jobs that are expected to take equally long have in common."""
        return self.rule, self.priority


@dataclass
class Progress:
    """The state of a workflow, kept up to date by its events."""

    planned: Counter[str] = field(default_factory=Counter)  # of each rule, finished ones included
    kinds: Counter[Kind] = field(default_factory=Counter)  # likewise, once the workflow said so
    finished: Counter[str] = field(default_factory=Counter)  # of each rule
    ended: Counter[Kind] = field(default_factory=Counter)  # finished, of each kind
    recent: dict[Kind, deque[float]] = field(default_factory=dict)  # seconds of the last finished
    seconds: float = 0.0  # that all finished jobs took, summed
    running: dict[int, Job] = field(default_factory=dict)  # by job number
    failed: int = 0  # each attempt counts
    began: float | None = None  # when the first job started

    @property
    def done(self) -> int:
        """How many jobs are finished."""
        return self.finished.total()

    def plan(self, counts: Mapping[str, int]) -> None:
        """Set how many jobs of each rule there are."""
        self.planned = Counter({rule: count for rule, count in counts.items() if rule != "total"})

    def start(self, number: int, rule: str, label: str, now: float, priority: int = 0) -> Job:
        """Record that a job starts; a retried job starts again."""
        self.began = now if self.began is None else self.began
        self.running[number] = Job(rule, label, now, priority)
        return self.running[number]

    def finish(self, number: int, now: float) -> Job | None:
        """Record that a job is finished and return it; None if its start was not seen."""
        job = self.running.pop(number, None)
        if job is not None:
            self.finished[job.rule] += 1
            self.ended[job.kind] += 1
            self.recent.setdefault(job.kind, deque(maxlen=RECENT)).append(now - job.started)
            self.seconds += now - job.started
        return job

    def fail(self, number: int) -> Job | None:
        """Record that a job ended in an error and return it; None if its start was not seen."""
        self.failed += 1
        return self.running.pop(number, None)

    def elapsed(self, now: float) -> float:
        """Return the seconds since the first job started."""
        return 0.0 if self.began is None else now - self.began

    def remaining(self, now: float) -> float | None:
        """Estimate the remaining seconds; None while most of what is left is of unknown length.

        The expected times of the jobs that are left are summed, less what the running ones have
        spent, and divided by the mean number of jobs that ran at the same time so far. `now` is on
        the clock of `start` and `finish`.
        """
        left = self.planned - self.finished
        rules = {rule for rule, _ in self.recent}
        known = sum(count for rule, count in left.items() if rule in rules)
        if not known or 2 * max(known, self.done) < left.total():
            return None
        kinds = self.kinds - self.ended
        with_kinds = {rule for rule, _ in self.kinds}
        kinds |= {(rule, 0): n for rule, n in left.items() if rule not in with_kinds}
        work = sum(count * self._expected(kind) for kind, count in kinds.items())
        spent = {number: now - job.started for number, job in self.running.items()}
        work -= sum(min(spent[n], self._expected(job.kind)) for n, job in self.running.items())
        side_by_side = (self.seconds + sum(spent.values())) / max(self.elapsed(now), 1e-9)
        return max(0.0, work) / side_by_side

    def _expected(self, kind: Kind) -> float:
        """Return the seconds that a job of a kind is expected to take.

        That is the mean of the last ones of its kind, or of all jobs where none of its rule is
        finished. A kind that has not been seen is compared with the nearest one of its rule: ten
        more of priority are ten times the work, of which some takes no longer for more. The time is
        taken to grow with the root of the work, and to be at least that of the shortest job.
        """
        means = {seen: sum(times) / len(times) for seen, times in self.recent.items()}
        rule, priority = kind
        seen = [other for name, other in means if name == rule]
        if not seen:
            return self.seconds / self.done
        nearest = min(seen, key=lambda other: abs(other - priority))
        return max(means[rule, nearest] * 10 ** ((priority - nearest) / 20), min(means.values()))


def clock(seconds: float) -> str:
    """Format a time span: `8 s`, `1:05`, `2:03:04`."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest} s"


class LogHandler(LogHandlerBase):
    """Show the events of one workflow on standard error."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = False
    has_formatter = False
    needs_rulegraph = False

    def __post_init__(self) -> None:
        """Set up the console; Snakemake calls this at the end of `__init__`."""
        settings = self.common_settings
        self.console = Console(
            stderr=not settings.stdout, no_color=settings.nocolor, highlight=False
        )
        self.progress = Progress()
        self.live: Live | None = None
        self.stopping = False
        self.shown = ""  # the jobs of a dry run, which Snakemake counts before and after them
        self.commands: list[str] = []  # what Snakemake said of commands that failed

    def emit(self, record: logging.LogRecord) -> None:
        """Show one event; Snakemake calls this from a single thread."""
        try:
            self._show(record)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Remove the display, so that further output appears below it."""
        if self.live is not None:
            self.live.stop()
            self.live = None
            self.console.print(summary(self.progress, time.monotonic()), soft_wrap=True)
        super().close()

    def _show(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        values = vars(record)
        now = time.monotonic()
        if self.common_settings.dryrun:
            self._plan(record, event)
        elif event == LogEvent.RUN_INFO:
            self.progress.plan(values["stats"])
            jobs = ", ".join(f"{count} {rule}" for rule, count in self.progress.planned.items())
            self.console.print(f"To do: {jobs}", soft_wrap=True, markup=False)
        elif event == LogEvent.JOB_INFO:
            rule, message = values["rule_name"], values["rule_msg"]
            wildcards = " ".join(map(str, values["wildcards"].values()))
            label = message.removeprefix(f"{rule} ") if message else wildcards
            job = self.progress.start(values["jobid"], rule, label, now, values["priority"])
            self._line(f"start  {job.name}")
        elif event == LogEvent.JOB_FINISHED:
            done = self.progress.finish(values["job_id"], now)
            if done is not None:
                self._line(f"done   {done.name} ({clock(now - done.started)})", now)
        elif event == LogEvent.JOB_ERROR:
            if not self.stopping:  # every job that is stopped ends in an error
                self._fail(record)
        elif event not in SILENT:
            self.progress.kinds = values.get("kinds", self.progress.kinds)
            if str(record.msg).startswith(INTERRUPTED):
                self.stopping = True
                self.console.print(WHAT_NEXT, soft_wrap=True)
            text = record.getMessage()
            if text.startswith(COMMAND_FAILED):
                self.commands.append(text)
            elif not self.stopping and not text.startswith(NOTHING_LOST):
                self._print(record)
        self._keep_live()

    def _fail(self, record: logging.LogRecord) -> None:
        """Write which job failed, what Snakemake knows of the reason, and how its log ends."""
        values = vars(record)
        job = self.progress.fail(values["jobid"])
        name = job.name if job is not None else values["rule_name"]
        self._error(", ".join(filter(None, [f"failed {name}", self._status(values["shellcmd"])])))
        if values["rule_msg"]:  # of the cluster
            self._error(f"  {values['rule_msg']}")
        for log in values["log"]:
            self._error(f"  {log}, its last lines:")
            self._error("\n".join(f"    {line}" for line in last_lines(Path(log))))
        if self.common_settings.printshellcmds or not values["log"]:
            self._print(record)

    def _plan(self, record: logging.LogRecord, event: str | None) -> None:
        """Write what a dry run says of all jobs; of each one only where commands are asked for."""
        if event in (LogEvent.JOB_INFO, LogEvent.GROUP_INFO):
            if self.common_settings.printshellcmds:
                self._print(record)
        elif event == LogEvent.RUN_INFO:
            repeated, self.shown = record.getMessage() == self.shown, record.getMessage()
            if not repeated:
                self._print(record)
        elif event not in SILENT:
            self._print(record)

    def _line(self, text: str, now: float | None = None) -> None:
        """Write a plain line where the output is not a terminal."""
        if self.console.is_terminal:
            return
        if now is not None:
            text += f"; {summary(self.progress, now)}"
        self.console.print(text, soft_wrap=True, markup=False)

    def _status(self, command: str | None) -> str:
        """Return how a shell command ended, from what Snakemake said of it just before."""
        said = [text for text in self.commands if command and command.strip() in text]
        self.commands = [text for text in self.commands if text not in said]
        found = STATUS.search(said[-1][-100:]) if said else None
        return found[0].rstrip(".") if found else ""

    def _error(self, text: str) -> None:
        self.console.print(Text(text, style="red"), soft_wrap=True)

    def _print(self, record: logging.LogRecord) -> None:
        """Write a message in Snakemake's words."""
        text = self.format(record).replace(
            "(check individual jobs above for details)", "(`snakemake -n -p` shows each job)"
        )
        routine = record.levelno == logging.INFO and text.startswith(ROUTINE)
        if routine or text in ("", "None"):
            return
        style = {logging.WARNING: "yellow", logging.ERROR: "red"}.get(record.levelno, "")
        self.console.print(Text(text, style=style), soft_wrap=True)

    def _keep_live(self) -> None:
        if self.live is None and self.progress.running and self.console.is_terminal:
            self.live = Live(
                console=self.console,
                get_renderable=lambda: panel(self.progress, time.monotonic()),
                refresh_per_second=4,
                transient=True,
            )
            self.live.start()


def last_lines(log: Path) -> list[str]:
    """Return how the log of a failed job ends."""
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    except OSError as error:
        return [f"(cannot be read: {error.strerror})"]


def summary(progress: Progress, now: float) -> str:
    """Return in one line how much is done and how long the rest takes."""
    total = progress.planned.total()
    words = [f"{progress.done} of {total} jobs done"]
    if progress.failed:
        words.append(f"{progress.failed} failed")
    words.append(f"{clock(progress.elapsed(now))} so far")
    remaining = progress.remaining(now)
    if remaining is not None and progress.done < total:
        words.append(f"about {clock(remaining)} left")
    return ", ".join(words)


def panel(progress: Progress, now: float) -> Group:
    """Return the display: running jobs, jobs left of each rule, and the time left."""
    running = Table.grid(padding=(0, 2))
    for job in list(progress.running.values()):
        # As text: what looks like rich's markup is part of a label.
        running.add_row("▸", job.rule, Text(job.label), clock(now - job.started))
    left = [
        f"{rule} {count}"
        for rule, planned in progress.planned.items()
        if (count := planned - progress.finished[rule]) > 0
    ]
    bar = Table.grid(padding=(0, 2), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    bar.add_row(
        ProgressBar(total=max(progress.planned.total(), 1), completed=progress.done),
        Text(summary(progress, now), style="red" if progress.failed else "bold"),
    )
    return Group(running, bar, Text("left: " + ", ".join(left), style="dim"))
