"""The training loop: sample, form the clipped sum, cross the privacy boundary, update, evaluate."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from clipnoise.data.base import Examples, Splits
from clipnoise.gradients.checks import check_model
from clipnoise.gradients.choice import choose_engine
from clipnoise.gradients.engine import GradientEngine, physical_batches
from clipnoise.methods.base import Public, State, step
from clipnoise.privacy.noise.independent import NoiseSource
from clipnoise.privacy.samplers.poisson import Sampler
from clipnoise.run.diagnostics import Diagnostics
from clipnoise.run.memory import PeakMemory, PhysicalBatch
from clipnoise.run.outcome import Clock, DivergenceError, Metrics, Outcome
from clipnoise.run.public import SIDE_INFORMATION, PublicData, public_data
from clipnoise.run.setup import (
    WEIGHTS,
    build_network,
    dropout_stream,
    load_data,
    noise_source,
    on_device,
    sampler,
)
from clipnoise.run.units import Units, private_units

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clipnoise.data.signature import Task
    from clipnoise.privacy.calibration import Calibration
    from clipnoise.privacy.queries import Clipping, Unreleased
    from clipnoise.resumable import Resumable
    from clipnoise.run.checkpoint import Checkpoint
    from clipnoise.run.spec import RunSpec

EVALUATION_BATCH = 1024
EVALUATION_NUMBERS = 2**26  # most outputs at once: 256 MB in float32


def train(
    spec: RunSpec,
    *,
    cache: Path,
    calibration: Calibration | None,
    weights: Path = WEIGHTS,
    device: str = "cpu",
    on_metrics: Callable[[Metrics], None] = lambda metrics: None,
    checkpoint: Checkpoint | None = None,
) -> Outcome:
    """Train one run from its spec.

    Args:
        spec: everything that can change the result.
        cache: the folder of prepared datasets.
        calibration: σ and the ε spent at each evaluation step; None for a non-private run.
        weights: the folder of pretrained weights.
        device: a torch device name.
        on_metrics: called at each evaluation, in order; those before a checkpoint included.
        checkpoint: where the run goes on from, and what is saved as it goes; None saves nothing.

    Returns:
        The outcome; a run that diverges is one too.

    Raises:
        UserError: the dataset is not prepared, or the model mixes examples.
        InterruptedRunError: the process was asked to stop; the checkpoint is written.
    """
    run = Run.prepare(spec, cache, device, weights)
    progress = _Progress(run, calibration, on_metrics, checkpoint)
    outcome = progress.outcome
    try:
        progress.begin()
        progress.take_steps()
    except DivergenceError as reason:
        outcome.status, outcome.reason = "diverged", str(reason)
    if run.diagnostics is not None and outcome.status == "completed" and outcome.steps_done:
        outcome.diagnostics = run.diagnostics.result()
    outcome.processed, outcome.training_seconds = progress.clock.processed, progress.clock.seconds
    outcome.physical_batch_size = run.held.size
    return outcome


class _Progress:
    """A run on its way: what it has measured, and how it is saved."""

    def __init__(
        self,
        run: Run,
        calibration: Calibration | None,
        on_metrics: Callable[[Metrics], None],
        checkpoint: Checkpoint | None,
    ) -> None:
        self.outcome = Outcome(
            provenance=run.provenance(), engine=run.engine_name, parameters=run.theta.numel()
        )
        self.clock = Clock()
        self._run = run
        self._sigma = 0.0 if calibration is None else calibration.noise_multiplier
        private = run.diagnostics is None
        self._spent = calibration.spent if calibration is not None and private else None
        self._on_metrics = on_metrics
        self._checkpoint = checkpoint

    def begin(self) -> None:
        """Go to where the checkpoint is, or measure the parameters before the first step."""
        saved = None if self._checkpoint is None else self._checkpoint.load()
        if saved is None:
            self._evaluate(0)
            return
        self._run.set_state(saved.tensors)
        self.outcome.set_state(saved.notes["outcome"])
        self.clock.set_state(saved.notes["clock"])
        self.outcome.seconds_before = self.clock.elapsed
        for metrics in self.outcome.metrics:
            self._on_metrics(metrics)

    def take_steps(self) -> None:
        """Take the steps that are left."""
        run, done = self._run, self.outcome.steps_done
        due = set(run.spec.evaluation_steps())
        for t, batch in enumerate(run.batches(after=done), start=done + 1):
            with self.clock.training(run.units.examples_in(batch)):
                run.step(batch, self._sigma)
            self.outcome.steps_done = t
            if not _finite(run.theta):
                raise DivergenceError(f"a parameter is not finite after step {t}")
            if t in due:
                self._evaluate(t)
            if t < run.spec.steps:
                self._save()

    def _evaluate(self, t: int) -> None:
        spent = None if self._spent is None else self._spent[t]
        metrics = self._run.evaluate(t, spent, self.clock)
        self.outcome.metrics.append(metrics)
        self._on_metrics(metrics)
        if not math.isfinite(metrics.train_loss + metrics.test_loss):
            raise DivergenceError(f"the loss is not finite after step {t}")

    def _save(self) -> None:
        if self._checkpoint is not None and self._checkpoint.due():
            notes = {"outcome": self.outcome.get_state(), "clock": self.clock.get_state()}
            self._checkpoint.save(self._run.get_state(), notes)


def _finite(theta: Tensor) -> bool:
    """Return whether every entry is finite: one pass, unless the sum itself is too large."""
    return bool(torch.isfinite(theta.sum())) or bool(torch.isfinite(theta).all())


@dataclass
class Run:
    """What one run holds while it trains.

    Attributes:
        sums: how a logical batch becomes a clipped sum; another one only where an audit tries what
            a mistake would do.
        held: how many examples are in memory at once.
        diagnostics: what watches the steps of a run that is marked non-private for it, or None.
    """

    spec: RunSpec
    splits: Splits
    units: Units
    engine: GradientEngine
    engine_name: str
    task: Task
    theta: Tensor
    state: State
    noise: NoiseSource
    sampler: Sampler
    public: PublicData | None
    side_information: Tensor | None
    past: deque[Tensor]
    memory: PeakMemory
    held: PhysicalBatch
    diagnostics: Diagnostics | None = None
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
        task = spec.dataset.signature.task
        network = build_network(spec, weights).to(device)
        check_model(network, splits.train.take(slice(2))[0])
        choice = choose_engine(network.train(), task.losses, splits.train, spec.training.precision)
        theta = choice.engine.flat.theta.clone()
        public = public_data(spec, splits.public, choice.engine)
        side_information = None
        if public is not None:
            with dropout_stream(spec, 0, device):
                if spec.method.uses_side_information:
                    side_information = public.side_information(theta)
                theta = public.warm(theta)
        return cls(
            spec=spec,
            splits=splits,
            units=private_units(spec, splits, choice.engine, side_information),
            engine=choice.engine,
            engine_name=f"{choice.name}: {choice.reason}",
            task=task,
            theta=theta,
            state=State(like=theta),
            noise=noise_source(spec, theta, device),
            sampler=sampler(spec),
            public=public,
            side_information=side_information,
            past=deque(maxlen=spec.method.iterates()),
            memory=PeakMemory(device),
            held=PhysicalBatch(spec.training.physical_batch_size),
            diagnostics=Diagnostics(spec.method, theta) if spec.training.diagnostics else None,
        )

    def batches(self, after: int = 0) -> Iterator[Tensor]:
        """Yield the examples (or users) drawn for each of the T steps, as indices.

        Args:
            after: steps that were taken already.
        """
        for _ in range(after, self.spec.steps):
            yield self.sampler.sample()

    def _parts(self) -> dict[str, Resumable]:
        parts: dict[str, Resumable | None] = {
            "state": self.state,
            "noise": self.noise,
            "sampler": self.sampler,
            "public": self.public,
            "micro-batches": self.units.assignment,
            "diagnostics": self.diagnostics,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def get_state(self) -> dict[str, Tensor]:
        """Return all that changes from step to step, for a checkpoint."""
        tensors = {"theta": self.theta, "held": torch.tensor(self.held.size)}
        tensors.update((f"past {age}", iterate) for age, iterate in enumerate(self.past))
        for name, part in self._parts().items():
            tensors.update((f"{name}/{key}", value) for key, value in part.get_state().items())
        return tensors

    def set_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Go to a saved position; the steps that follow are the same bit for bit."""
        device = self.theta.device
        self.theta = tensors["theta"].to(device)
        self.held.size = int(tensors["held"])
        ages = sum(name.startswith("past ") for name in tensors)
        self.past.extend(tensors[f"past {age}"].to(device) for age in range(ages))
        for name, part in self._parts().items():
            prefix = f"{name}/"
            part.set_state(
                {
                    key.removeprefix(prefix): t
                    for key, t in tensors.items()
                    if key.startswith(prefix)
                }
            )

    def step(self, batch: Tensor, sigma: float) -> None:
        """Take one step on a logical batch."""
        with dropout_stream(self.spec, self.state.step + 1, str(self.theta.device)):
            self._step(batch, sigma)

    def _step(self, batch: Tensor, sigma: float) -> None:
        self.past.appendleft(self.theta)
        batch, groups = self.units.arrange(batch)

        def form(clipping: Clipping) -> Unreleased:
            iterates = list(self.past)[: len(clipping.weights)]
            whole, population = self.units.clipping(clipping, groups), self.units.population
            return self.held.fit(
                lambda size: self.sums(self.units.engine, population, batch, iterates, whole, size)
            )

        draws, microbatches = self.spec.method.query.draws, self.spec.microbatches
        public = Public(
            noise_multiplier=sigma,
            noise_row_norm_squared=self.noise.row_norm_squared(self.state.step + 1),
            expected_batch_size=microbatches.count(self.spec.training.expected_batch_size),
            sensitivity_factor=self.spec.sensitivity_factor,
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
            observe=None if self.diagnostics is None else self.diagnostics.observe,
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

    def evaluate(self, t: int, epsilon: float | None, clock: Clock) -> Metrics:
        """Measure losses and accuracies on every split at the current parameters."""
        self.engine.flat.load(self.theta)
        size = EVALUATION_NUMBERS // self.spec.dataset.signature.numbers
        train, validation, test = (
            evaluate(self.engine.network, self.task, examples, max(1, min(EVALUATION_BATCH, size)))
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
            seconds=clock.elapsed,
        )


@torch.no_grad()
def evaluate(
    network: nn.Module, task: Task, examples: Examples, size: int = EVALUATION_BATCH
) -> tuple[float, float]:
    """Return the mean loss and the mean score over a split; nan for an empty one.

    The score is nan, too, for a task that has only a loss.

    Args:
        network: at the parameters to be measured.
        task: the losses and scores.
        examples: the split.
        size: most examples in memory at once.
    """
    loss, score = 0.0, 0.0
    network.eval()
    for start in range(0, len(examples), size):
        inputs, targets = examples.take(slice(start, start + size))
        outputs = network(inputs)
        loss += float(task.losses(outputs, targets).double().sum())
        if task.score is not None:
            score += float(task.scores(outputs, targets).double().sum())
    network.train()
    count = len(examples)
    if task.score is None:
        score = math.nan
    return (loss / count, score / count) if count else (math.nan, math.nan)
