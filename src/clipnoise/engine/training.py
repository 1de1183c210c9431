"""The training loop: sample, form the clipped sum, cross the privacy boundary, update, evaluate."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from clipnoise.data.base import Examples, Splits
from clipnoise.engine.ingredients import (
    WEIGHTS,
    build_network,
    load_data,
    noise_source,
    on_device,
    sampler,
)
from clipnoise.engine.memory import PeakMemory
from clipnoise.engine.public import SIDE_INFORMATION, PublicData, public_data
from clipnoise.engine.units import Units, private_units
from clipnoise.gradients.checks import check_model
from clipnoise.gradients.choice import choose_engine
from clipnoise.gradients.engine import GradientEngine, physical_batches
from clipnoise.methods.base import Public, State, step
from clipnoise.privacy.noise import NoiseSource
from clipnoise.privacy.sampling import Sampler

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clipnoise.data.tasks import Task
    from clipnoise.engine.spec import RunSpec
    from clipnoise.privacy.calibration import Calibration
    from clipnoise.privacy.queries import Clipping, Unreleased

EVALUATION_BATCH = 1024


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
        seconds: since training began, evaluations included.
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
        processed: examples whose gradients were taken.
        training_seconds: time in steps, evaluations excluded.
    """

    provenance: dict[str, str]
    status: str = "completed"
    reason: str | None = None
    steps_done: int = 0
    metrics: list[Metrics] = field(default_factory=list)
    engine: str = ""
    parameters: int = 0
    processed: int = 0
    training_seconds: float = 0.0


class DivergenceError(Exception):
    """Parameters or losses are no longer finite. A result, not a fault."""


def train(
    spec: RunSpec,
    *,
    cache: Path,
    calibration: Calibration | None,
    weights: Path = WEIGHTS,
    device: str = "cpu",
    on_metrics: Callable[[Metrics], None] = lambda metrics: None,
) -> Outcome:
    """Train one run from its spec.

    Args:
        spec: everything that can change the result.
        cache: the folder of prepared datasets.
        calibration: σ and the ε spent at each evaluation step; None for a non-private run.
        weights: the folder of pretrained weights.
        device: a torch device name.
        on_metrics: called at each evaluation, in order.

    Returns:
        The outcome; a run that diverges is one too.

    Raises:
        UserError: the dataset is not prepared, or the model mixes examples.
    """
    run = Run.prepare(spec, cache, device, weights)
    outcome = Outcome(
        provenance=run.provenance(), engine=run.engine_name, parameters=run.theta.numel()
    )
    sigma = 0.0 if calibration is None else calibration.noise_multiplier
    spent = None if calibration is None else calibration.spent
    due = set(spec.evaluation_steps())
    clock = _Clock()

    def evaluate(t: int) -> None:
        metrics = run.evaluate(t, None if spent is None else spent[t], clock)
        outcome.metrics.append(metrics)
        on_metrics(metrics)
        if not math.isfinite(metrics.train_loss + metrics.test_loss):
            raise DivergenceError(f"the loss is not finite after step {t}")

    try:
        evaluate(0)
        for t, batch in enumerate(run.batches(), start=1):
            with clock.training(run.units.examples_in(batch)):
                run.step(batch, sigma)
            outcome.steps_done = t
            if not torch.isfinite(run.theta).all():
                raise DivergenceError(f"a parameter is not finite after step {t}")
            if t in due:
                evaluate(t)
    except DivergenceError as reason:
        outcome.status, outcome.reason = "diverged", str(reason)
    outcome.processed, outcome.training_seconds = clock.processed, clock.seconds
    return outcome


class _Clock:
    """Counts examples and seconds spent in steps."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.processed = 0
        self.seconds = 0.0
        self._mark = (0, 0.0)
        self._entered = 0.0
        self._entering = 0

    def training(self, examples: int) -> _Clock:
        """Count what the `with` block does as training on this many examples."""
        self._entering = examples
        return self

    def __enter__(self) -> None:
        self._entered = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._entered
        self.processed += self._entering

    def speed_since_last(self) -> float:
        """Return examples per second since the last call; 0 before the first step."""
        examples, seconds = self.processed - self._mark[0], self.seconds - self._mark[1]
        self._mark = (self.processed, self.seconds)
        return examples / seconds if seconds > 0 else 0.0


@dataclass
class Run:
    """What one run holds while it trains.

    Attributes:
        sums: how a logical batch becomes a clipped sum; another one only where an audit tries what
            a mistake would do.
    """

    spec: RunSpec
    splits: Splits
    units: Units
    engine: GradientEngine
    engine_name: str
    goal: Task
    theta: Tensor
    state: State
    noise: NoiseSource
    sampler: Sampler
    public: PublicData | None
    side_information: Tensor | None
    past: deque[Tensor]
    memory: PeakMemory
    sums: Callable[..., Unreleased] = physical_batches

    @classmethod
    def prepare(cls, spec: RunSpec, cache: Path, device: str, weights: Path = WEIGHTS) -> Run:
        """Load the data, build the network and start every random stream.

        Args:
            spec: the run.
            cache: the folder of prepared datasets.
            device: a torch device name.
            weights: the folder of pretrained weights.

        Raises:
            UserError: the dataset is not prepared, or the model mixes examples.
        """
        splits = on_device(load_data(spec, cache), device)
        goal = spec.dataset.signature.goal
        network = build_network(spec, weights).to(device)
        check_model(network, splits.train.take(slice(2))[0])
        choice = choose_engine(network.train(), goal.losses, splits.train)
        theta = choice.engine.flat.theta.clone()
        public = public_data(spec, splits.public, choice.engine)
        side_information = None
        if public is not None and spec.method.uses_side_information:
            side_information = public.side_information(theta)
        if public is not None:
            theta = public.warm(theta)
        return cls(
            spec=spec,
            splits=splits,
            units=private_units(spec, splits, choice.engine, side_information),
            engine=choice.engine,
            engine_name=f"{choice.name}: {choice.reason}",
            goal=goal,
            theta=theta,
            state=State(like=theta),
            noise=noise_source(spec, theta, device),
            sampler=sampler(spec),
            public=public,
            side_information=side_information,
            past=deque(maxlen=spec.method.iterates()),
            memory=PeakMemory(device),
        )

    def batches(self) -> Iterator[Tensor]:
        """Yield the examples (or users) drawn for each of the T steps, as indices."""
        for _ in range(self.spec.steps):
            yield self.sampler.sample()

    def step(self, batch: Tensor, sigma: float) -> None:
        """Take one step on a logical batch."""
        self.past.appendleft(self.theta)
        batch, groups = self.units.arrange(batch)

        def form(plan: Clipping) -> Unreleased:
            return self.sums(
                self.units.engine,
                self.units.population,
                batch,
                list(self.past)[: len(plan.weights)],
                self.units.plan(plan, groups),
                self.spec.training.physical_batch_size,
            )

        draws, microbatches = self.spec.method.query.draws, self.spec.microbatches
        public = Public(
            noise_multiplier=sigma,
            noise_row_norm_squared=self.noise.row_norm_squared(self.state.step + 1),
            expected_batch_size=microbatches.count(self.spec.training.expected_batch_size),
            sensitivity_factor=microbatches.sensitivity_factor(self.spec.method.query),
            total_steps=self.spec.steps,
            gradient=self._public_gradient(),
            side_information=self.side_information,
        )
        change = step(
            self.spec.method,
            self.state,
            public,
            available=len(self.past),
            clipped_sum=form,
            noise=self.noise.next(draws) if draws else (),
        )
        self.theta = self.theta + change

    def _public_gradient(self) -> Tensor | None:
        if self.public is None or not self.spec.method.uses_public_gradient:
            return None
        return self.public.gradient(self.theta)

    def provenance(self) -> dict[str, str]:
        """Return where the data of the run came from, public knowledge included."""
        if self.side_information is None:
            return self.splits.provenance
        return {**self.splits.provenance, "side_information": SIDE_INFORMATION}

    def evaluate(self, t: int, epsilon: float | None, clock: _Clock) -> Metrics:
        """Measure losses and accuracies on every split at the current parameters."""
        self.engine.flat.load(self.theta)
        train, validation, test = (
            evaluate(self.engine.network, self.goal, examples)
            for examples in (self.splits.train, self.splits.validation, self.splits.test)
        )
        return Metrics(
            step=t,
            epsilon=epsilon,
            train_loss=train[0],
            train_accuracy=train[1],
            validation_loss=validation[0],
            validation_accuracy=validation[1],
            test_loss=test[0],
            test_accuracy=test[1],
            examples_per_second=clock.speed_since_last(),
            peak_memory_mb=self.memory.megabytes(),
            seconds=time.perf_counter() - clock.start,
        )


@torch.no_grad()
def evaluate(network: nn.Module, goal: Task, examples: Examples) -> tuple[float, float]:
    """Return the mean loss and the mean score over a split; nan for an empty one.

    The score is nan, too, for a task that has only a loss.
    """
    loss, score = 0.0, 0.0
    network.eval()
    for start in range(0, len(examples), EVALUATION_BATCH):
        inputs, targets = examples.take(slice(start, start + EVALUATION_BATCH))
        outputs = network(inputs)
        loss += float(goal.losses(outputs, targets).double().sum())
        if goal.score is not None:
            score += float(goal.scores(outputs, targets).double().sum())
    network.train()
    count = len(examples)
    if goal.score is None:
        score = math.nan
    return (loss / count, score / count) if count else (math.nan, math.nan)
