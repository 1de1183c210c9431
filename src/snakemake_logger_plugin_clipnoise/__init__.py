"""Snakemake's progress display for clipnoise: `snakemake --logger clipnoise`.

On a terminal: the running jobs, how many of each rule are left, and how long that will take. In a
file or a pipe: one line per job that starts or ends. Errors are shown as Snakemake words them, and
so is a dry run. Belongs here: what Snakemake's events look like. Does not: anything about runs.
"""

from __future__ import annotations

import logging
import time

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from snakemake_logger_plugin_clipnoise.progress import Progress, clock

ROUTINE = (
    "Assuming unrestricted",
    "Building DAG",
    "Execute ",
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
            self._print(record)
        elif event == LogEvent.RUN_INFO:
            self.progress.plan(values["stats"])
        elif event == LogEvent.JOB_INFO:
            label = values["rule_msg"] or " ".join(map(str, values["wildcards"].values()))
            job = self.progress.start(values["jobid"], values["rule_name"], label, now)
            self._line(f"start  {job.name}")
        elif event == LogEvent.JOB_FINISHED:
            done = self.progress.finish(values["job_id"], now)
            if done is not None:
                self._line(f"done   {done.name} ({clock(now - done.started)})", now)
        elif event not in SILENT:
            if event == LogEvent.JOB_ERROR:
                self.progress.fail(values["jobid"])
            self._print(record)
        self._keep_live()

    def _line(self, text: str, now: float | None = None) -> None:
        """Write a plain line where the output is not a terminal."""
        if self.console.is_terminal:
            return
        if now is not None:
            text += f"; {summary(self.progress, now)}"
        self.console.print(text, soft_wrap=True, markup=False)

    def _print(self, record: logging.LogRecord) -> None:
        """Write a message in Snakemake's words."""
        text = self.format(record)
        if not text or text == "None" or (record.levelno == logging.INFO and routine(text)):
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


def routine(text: str) -> bool:
    """Return whether a message only repeats what the display shows."""
    return text.startswith(ROUTINE)


def summary(progress: Progress, now: float) -> str:
    """Return in one line how much is done and how long the rest takes."""
    words = [f"{progress.done} of {progress.total} jobs done"]
    if progress.failed:
        words.append(f"{progress.failed} failed")
    words.append(f"{clock(progress.elapsed(now))} so far")
    remaining = progress.remaining(now)
    if remaining is not None and progress.done < progress.total:
        words.append(f"about {clock(remaining)} left")
    return ", ".join(words)


def panel(progress: Progress, now: float) -> Group:
    """Return the display: running jobs, jobs left of each rule, and the time left."""
    running = Table.grid(padding=(0, 2))
    for job in list(progress.running.values()):
        running.add_row("▸", job.rule, job.label, clock(now - job.started))
    left = [
        f"{rule} {count}"
        for rule, planned in progress.planned.items()
        if (count := planned - progress.finished[rule]) > 0
    ]
    bar = Table.grid(padding=(0, 2), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    bar.add_row(
        ProgressBar(total=max(progress.total, 1), completed=progress.done),
        Text(summary(progress, now), style="red" if progress.failed else "bold"),
    )
    return Group(running, bar, Text("left: " + ", ".join(left), style="dim"))
