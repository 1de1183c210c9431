"""The state of a workflow: jobs running, done and left, and the time they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Job:
    """A job that has started.

    Attributes:
        rule: the rule it belongs to.
        label: distinguishes it from the other jobs of its rule.
        started: time at its start, seconds on any monotonic clock.
    """

    rule: str
    label: str
    started: float

    @property
    def name(self) -> str:
        """The rule and the label."""
        return f"{self.rule} {self.label}".rstrip()


@dataclass
class Progress:
    """The state of a workflow, kept up to date by its events.

    Attributes:
        planned: jobs of each rule, the finished ones included.
        finished: finished jobs of each rule.
        seconds: time that the finished jobs of each rule took, summed.
        running: jobs that have started and not ended, by job number.
        failed: how many jobs ended in an error; each attempt counts.
        began: when the first job started.
    """

    planned: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    running: dict[int, Job] = field(default_factory=dict)
    failed: int = 0
    began: float | None = None

    @property
    def total(self) -> int:
        """How many jobs there are."""
        return self.planned.total()

    @property
    def done(self) -> int:
        """How many jobs are finished."""
        return self.finished.total()

    def plan(self, counts: Mapping[str, int]) -> None:
        """Set how many jobs of each rule there are."""
        self.planned = Counter({rule: count for rule, count in counts.items() if rule != "total"})

    def start(self, number: int, rule: str, label: str, now: float) -> Job:
        """Record that a job starts; a retried job starts again."""
        self.began = now if self.began is None else self.began
        self.running[number] = Job(rule, label, now)
        return self.running[number]

    def finish(self, number: int, now: float) -> Job | None:
        """Record that a job is finished and return it; None if its start was not seen."""
        job = self.running.pop(number, None)
        if job is not None:
            self.finished[job.rule] += 1
            self.seconds[job.rule] += now - job.started  # type: ignore[assignment]
        return job

    def fail(self, number: int) -> None:
        """Record that a job ended in an error."""
        self.running.pop(number, None)
        self.failed += 1

    def elapsed(self, now: float) -> float:
        """Return the seconds since the first job started."""
        return 0.0 if self.began is None else now - self.began

    def remaining(self, now: float) -> float | None:
        """Estimate the remaining seconds; None before the first job is finished.

        Each job that is left is taken to need the mean time of the finished ones of its rule, or
        of all rules where none of its rule is finished. The sum is divided by the mean number of
        jobs that ran at the same time so far.

        Args:
            now: on the clock of `start` and `finish`.
        """
        if not self.done:
            return None
        mean = self.seconds.total() / self.done
        work = 0.0
        for rule, planned in self.planned.items():
            finished = self.finished[rule]
            work += (planned - finished) * (self.seconds[rule] / finished if finished else mean)
        spent = sum(now - job.started for job in self.running.values())
        elapsed = self.elapsed(now)
        side_by_side = (self.seconds.total() + spent) / elapsed if elapsed > 0 else 1.0
        return max(0.0, work - spent) / max(side_by_side, 1.0)


def clock(seconds: float) -> str:
    """Format a time span: `8 s`, `1:05`, `2:03:04`."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest} s"
