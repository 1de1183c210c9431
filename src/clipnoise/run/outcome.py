"""What a run measures, how long it took, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from clipnoise.lazy import Tensor


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Counts of the coordinates in equal bins, by quantity.

    Attributes:
        low, high: the ends of the bins.
        log10: whether these are powers of ten.
        counts: by quantity, such as `v_private`.
    """

    low: float
    high: float
    log10: bool
    counts: dict[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What the diagnostics of a run recorded.

    Attributes:
        step: after which moments were taken.
        phi: Φ, which the noise adds to second moments; 0 without noise.
        statistics: by quantity and statistic, such as `v_private.median`.
        histograms: by what they show.
        sorted: second moments in ascending order, by quantity.
        series: `step`, and values after each of these steps.
    """

    step: int
    phi: float
    statistics: dict[str, float | None]
    histograms: dict[str, Histogram]
    sorted: dict[str, tuple[float, ...]]
    series: dict[str, tuple[float | None, ...]]


@dataclass(frozen=True, kw_only=True)
class Chance:
    """The best constant prediction: its name, and its level on the test split by column."""

    name: str
    levels: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """How often each class was predicted on the test split.

    Attributes:
        classes: their names, if they have some.
        column: what the groups are of, if there are groups.
        groups: by group, a row per true class and in it a number per predicted class.
    """

    classes: tuple[str, ...]
    column: str | None
    groups: dict[str, tuple[tuple[float, ...], ...]]


@dataclass(frozen=True)
class Metrics:
    """What is measured at one evaluation.

    Attributes:
        step: steps taken so far.
        epsilon: ε spent so far; None for a non-private run.
        train_loss, train_accuracy: over all private training examples.
        validation_loss, validation_accuracy: over the validation split.
        test_loss, test_accuracy: over the test split.
        examples_per_second: processed in training since the last evaluation.
        peak_memory_mb: the most memory the process or the GPU has held.
        seconds: since training began, with evaluations, without the time between a stop and the
            resumption.
        learning_rate: η of the last step, or of the first one before it, where η follows a
            schedule; None where it does not change.
        measured: what else the run was asked to measure, by column.
    """

    step: int
    epsilon: float | None
    train_loss: float
    train_accuracy: float
    validation_loss: float
    validation_accuracy: float
    test_loss: float
    test_accuracy: float
    examples_per_second: float
    peak_memory_mb: float
    seconds: float
    learning_rate: float | None = None
    measured: dict[str, float] = field(default_factory=dict)

    def row(self) -> dict[str, float | None]:
        """Return every value by its column in metrics.csv."""
        values = asdict(self)
        measured = values.pop("measured")
        if self.learning_rate is None:
            del values["learning_rate"]
        return {**values, **measured}


class Clock:
    """Counts examples and time spent in steps.

    Attributes:
        processed: examples so far.
        seconds: time in steps so far, work of the device included.
        cpu_seconds: time that processors worked in steps for this process, all threads together.
        evaluating: time in evaluations so far.
    """

    def __init__(self, synchronize: Callable[[], object] = lambda: None) -> None:
        """Start to count; `synchronize` waits until the device has done its work."""
        self.processed = 0
        self.seconds = self.cpu_seconds = self.evaluating = 0.0
        self._synchronize = synchronize
        self._start = time.perf_counter()
        self._mark = (0, 0.0)

    @property
    def elapsed(self) -> float:
        """Seconds since training began, evaluations included."""
        return time.perf_counter() - self._start

    @contextmanager
    def training(self, examples: int) -> Iterator[None]:
        """Count what the `with` block does as training on this many examples."""
        self._synchronize()
        began, worked = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self._synchronize()
            self.seconds += time.perf_counter() - began
            self.cpu_seconds += time.process_time() - worked
            self.processed += examples

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Count what the `with` block does as an evaluation."""
        self._synchronize()
        began = time.perf_counter()
        try:
            yield
        finally:
            self._synchronize()
            self.evaluating += time.perf_counter() - began

    def speed_since_last(self) -> float:
        """Return examples per second since the last call; 0 before the first step."""
        examples, seconds = self.processed - self._mark[0], self.seconds - self._mark[1]
        self._mark = (self.processed, self.seconds)
        return examples / seconds if seconds > 0 else 0.0

    def cost(self) -> dict[str, float]:
        """Return what all steps cost, as the summary of a run has it."""
        return {
            "processed": self.processed,
            "examples_per_second": self.processed / self.seconds if self.seconds else 0.0,
            "training_seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
        }

    def get_state(self) -> dict[str, float]:
        """Return the counts so far, for a checkpoint."""
        examples, seconds = self._mark
        return {
            "processed": self.processed,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "evaluating": self.evaluating,
            "marked": examples,
            "marked_seconds": seconds,
            "elapsed": self.elapsed,
        }

    def set_state(self, state: Mapping[str, float]) -> None:
        """Resume from saved counts, as if no time had passed since."""
        self.processed, self.seconds = int(state["processed"]), state["seconds"]
        self.cpu_seconds = state["cpu_seconds"]
        self.evaluating = state["evaluating"]
        self._mark = (int(state["marked"]), state["marked_seconds"])
        self._start = time.perf_counter() - state["elapsed"]


@dataclass
class Outcome:
    """How a run ended.

    Attributes:
        provenance: where private, public and side information came from.
        status: "completed", or "diverged" when parameters or losses are no longer finite.
        reason: why it diverged, with the step.
        steps_done: steps taken.
        metrics: one row per evaluation.
        engine: which gradient engine ran, and why.
        parameters: d, the number of trained parameters.
        physical_batch_size: examples held in memory at once; below what the spec says where that
            many did not fit.
        bytes_per_step: of vectors, that the processes of the run together send in a step.
        resumed: the steps after which the run resumed from a checkpoint.
        cost: of all steps, evaluations excluded, as `Clock.cost` gives it.
        evaluating: seconds in evaluations.
        seconds_before: time that the run took before it last resumed from a checkpoint.
        scale_spread: how much the factors that gradients are multiplied by before the clip vary
            over coordinates in the last step: their 99% quantile over their 1% quantile; None where
            there are none. At 1 nothing is scaled.
        diagnostics: what was seen of the moments; None where nothing watched.
        tensors: the model's parameters and buffers by name, where the run saves them.
        chance: the best constant prediction; None where it is withheld, or the task has none.
        confusion: how often each class was predicted; None where it is withheld, or the task has no
            classes.
        correct: a bit for each test example, as `packed` returns them, where the run keeps them.
    """

    provenance: dict[str, str]
    status: str = "completed"
    reason: str | None = None
    steps_done: int = 0
    metrics: list[Metrics] = field(default_factory=list)
    engine: str = ""
    parameters: int = 0
    physical_batch_size: int = 0
    bytes_per_step: int = 0
    resumed: list[int] = field(default_factory=list)
    cost: dict[str, float] = field(default_factory=lambda: Clock().cost())
    evaluating: float = 0.0
    seconds_before: float = 0.0
    scale_spread: float | None = None
    diagnostics: Recorded | None = None
    tensors: dict[str, Tensor] | None = None
    chance: Chance | None = None
    confusion: Predicted | None = None
    correct: str | None = None

    def get_state(self) -> dict[str, object]:
        """Return the progress so far as plain data, for a checkpoint."""
        rows = [asdict(row) for row in self.metrics]
        return {"steps_done": self.steps_done, "metrics": rows, "resumed": self.resumed}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take saved progress over."""
        self.steps_done = state["steps_done"]
        self.metrics = [Metrics(**row) for row in state["metrics"]]
        self.resumed = [*state["resumed"], self.steps_done]


class DivergenceError(Exception):
    """Parameters or losses are no longer finite. A result, not a fault."""


class LostRankError(Exception):
    """Another process that trains the run, too, has ended, so that this one cannot go on."""
