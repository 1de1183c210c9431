"""The training loop, and what a run adds to each step: the batch, the noise and θ."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from clipnoise.core.method import WithClipRule
from clipnoise.core.query import declared
from clipnoise.core.state import Public, State
from clipnoise.core.step import Crossing, privatize, step
from clipnoise.data.base import PARTS, Examples, Splits
from clipnoise.errors import UserError, explained
from clipnoise.gradients.checks import check_model
from clipnoise.gradients.choice import choose_engine
from clipnoise.gradients.clipping import is_finite
from clipnoise.gradients.engine import GradientEngine, LogicalBatch, physical_batches
from clipnoise.gradients.kept import Kept
from clipnoise.gradients.users import UserEngine
from clipnoise.kinds import as_sealed
from clipnoise.models.pretrained import tensors_digest
from clipnoise.privacy.noise import NoiseSource
from clipnoise.privacy.samplers import Sampler
from clipnoise.resumable import gather, restore
from clipnoise.run.diagnostics import Diagnostics
from clipnoise.run.memory import PeakMemory, PhysicalBatch
from clipnoise.run.outcome import Clock, DivergenceError, Metrics, Outcome
from clipnoise.run.public import PublicData, public_data, side_information
from clipnoise.run.setup import (
    WEIGHTS,
    Units,
    build_network,
    load_data,
    noise_source,
    on_device,
    private_units,
    sampler,
    step_key,
)
from clipnoise.seeds import derive

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clipnoise.core.clipping import ClippedSum, Clipping
    from clipnoise.data.signature import Task
    from clipnoise.privacy.calibration import Calibration
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
        checkpoint: where the run resumes, and what is saved as it trains; None saves nothing.

    Returns:
        The outcome; a run that diverges has one too.

    Raises:
        UserError: the dataset is not prepared, or the model mixes examples.
        InterruptedRunError: the process was asked to stop; the checkpoint is written.
    """
    sigma = 0.0 if calibration is None else calibration.noise_multiplier
    run = Run.prepare(spec, cache, device, weights, noise_multiplier=sigma)
    outcome = Outcome(run.provenance(), engine=run.engine_name, parameters=run.theta.numel())
    clock = Clock(partial(torch.cuda.synchronize, device)) if "cuda" in device else Clock()
    spent = calibration.spent if calibration is not None and run.diagnostics is None else None
    due = set(spec.evaluation_steps())

    def evaluate_at(t: int) -> None:
        metrics = run.evaluate(t, None if spent is None else spent[t], clock)
        outcome.metrics.append(metrics)
        on_metrics(metrics)
        if not spec.strict and not math.isfinite(metrics.train_loss + metrics.test_loss):
            raise DivergenceError(f"the loss is not finite after step {t}")

    try:
        if not _resume(checkpoint, run, outcome, clock, on_metrics):
            evaluate_at(0)
        for t in run.steps(clock):
            outcome.steps_done = t
            if t in due:
                evaluate_at(t)
            if checkpoint is not None and t < spec.steps and checkpoint.due():
                notes = {"outcome": outcome.get_state(), "clock": clock.get_state()}
                checkpoint.save(run.get_state(), notes)
    except DivergenceError as reason:
        outcome.status, outcome.reason = "diverged", str(reason)
        outcome.steps_done = run.state.step
    if run.diagnostics is not None and outcome.status == "completed" and outcome.steps_done:
        outcome.diagnostics = run.diagnostics.result()
    outcome.cost = clock.cost()
    outcome.physical_batch_size = run.physical.size
    outcome.scale_spread = run.scale_spread()
    return outcome


def _resume(
    checkpoint: Checkpoint | None,
    run: Run,
    outcome: Outcome,
    clock: Clock,
    on_metrics: Callable[[Metrics], None],
) -> bool:
    """Bring a run to where its checkpoint is and return whether there is one.

    Raises:
        UserError: it is sound, but holds what this run cannot have saved.
    """
    saved = None if checkpoint is None else checkpoint.load()
    if checkpoint is None or saved is None:
        return False
    try:
        run.set_state(saved.tensors)
        outcome.set_state(saved.notes["outcome"])
        clock.set_state(saved.notes["clock"])
        if run.state.step != outcome.steps_done:
            raise ValueError(f"it is of step {run.state.step} and {outcome.steps_done}")
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise UserError(
            f"{checkpoint.path}: does not fit this run ({error!r}). Delete it, and the run starts "
            "again from the beginning."
        ) from None
    outcome.seconds_before = clock.elapsed
    for metrics in outcome.metrics:
        on_metrics(metrics)
    return True


@dataclass
class Run:
    """What one run holds while it trains.

    Attributes:
        theta: θ, shape (d,). It is owned here, and here only: the vector inside the network
            (`engine.flat.theta`) is overwritten at each pass and each evaluation.
        kept: what the network holds besides its trained parameters, which must not change.
        known: what the update knows at every step: σ, B, T and side information.
        origin: where side information and weights come from, as data of the result.
        past: the last iterates, newest first.
        sums: how a logical batch becomes a clipped sum; only an audit that tries out a mistake
            replaces it.
        cross: how a sum crosses the privacy boundary; only an audit replaces it.
        physical: how many examples are in memory at once.
        scale: s of the last step, shape (d,); None where nothing is scaled.
        average: θ̄ after the last step, shape (d,); None where the last iterate is published.
        diagnostics: observes the steps; the run is then marked non-private. None otherwise.
    """

    spec: RunSpec
    splits: Splits
    units: Units
    engine: GradientEngine
    kept: Kept
    engine_name: str
    task: Task
    theta: Tensor
    state: State
    known: Public
    origin: dict[str, str]
    noise: NoiseSource
    sampler: Sampler
    public: PublicData | None
    past: deque[Tensor]
    memory: PeakMemory
    physical: PhysicalBatch
    scale: Tensor | None = None
    average: Tensor | None = None
    diagnostics: Diagnostics | None = None
    sums: Callable[[LogicalBatch], ClippedSum] = physical_batches
    cross: Crossing = privatize

    @classmethod
    def prepare(
        cls,
        spec: RunSpec,
        cache: Path,
        device: str,
        weights: Path = WEIGHTS,
        *,
        noise_multiplier: float = 0.0,
    ) -> Run:
        """Load the data, build the network and start every random stream.

        Args:
            spec: the run.
            cache: the folder of prepared datasets.
            device: a torch device name.
            weights: the folder of pretrained weights.
            noise_multiplier: σ of the noise on the sum.

        Raises:
            UserError: the dataset is not prepared, or the model mixes examples.
        """
        splits = on_device(load_data(spec, cache), device)
        task = spec.dataset.signature.task
        network = build_network(spec, weights).to(device)
        counters = check_model(network, splits.train.take(slice(1))[0])
        if isinstance(spec.method, WithClipRule):
            as_sealed(spec.method.clip_rule, "check")(spec.method.clip_norm_at(1) or 1.0)
        if (clip_norm := spec.method.clip_norm_at(1)) is not None:
            with explained("method.query"):
                declared(spec.method.query, clip_norm, spec.training.expected_batch_size)
        training = spec.training
        batch = math.ceil(training.views * training.expected_batch_size)
        choice = choose_engine(
            network.train(),
            task.losses,
            splits.train,
            training.precision,
            batch=min(batch, training.physical_batch_size),
        )
        theta = choice.engine.flat.theta.clone()
        public = public_data(spec, splits.public, choice.engine)
        side, origin = side_information(spec, cache, choice.engine.flat, public)
        origin |= tensors_digest(spec.model, weights)
        if public is not None:
            theta = public.warm(theta)
        known = Public(
            noise_multiplier=noise_multiplier,
            expected_batch_size=spec.mechanism.denominator,
            sensitivity_factor=spec.mechanism.sensitivity_factor,
            total_steps=spec.steps,
            seed=derive("directions", spec.seed),
            side_information=side,
        )
        return cls(
            spec=spec,
            splits=splits,
            units=private_units(spec, splits, choice.engine, side),
            engine=choice.engine,
            kept=Kept(network, task.losses, counters),
            engine_name=f"{choice.name}: {choice.reason}",
            task=task,
            theta=theta,
            state=State(like=theta, shapes=choice.engine.flat.shapes),
            known=known,
            origin=origin,
            noise=noise_source(spec, theta, device),
            sampler=sampler(spec),
            public=public,
            past=deque(maxlen=spec.method.iterates()),
            memory=PeakMemory(device),
            physical=PhysicalBatch(spec.training.physical_batch_size),
            average=None if spec.training.average is None else theta,
            diagnostics=Diagnostics(spec.method, theta) if spec.training.diagnostics else None,
        )

    def scale_spread(self) -> float | None:
        """Return q99/q1 over coordinates of what gradients were last multiplied by, or None."""
        engine = self.units.engine
        scale = engine.scale if isinstance(engine, UserEngine) else self.scale
        if scale is None:
            return None
        rank = max(1, round(0.01 * len(scale)))
        low, high = (scale.kthvalue(k).values for k in (rank, len(scale) + 1 - rank))
        return float(high / low)

    def batches(self, after: int = 0) -> Iterator[Tensor]:
        """Yield the examples (or users) drawn for each of the T steps, as indices.

        Args:
            after: how many steps have been taken already.
        """
        for _ in range(after, self.spec.steps):
            yield self.sampler.sample()

    def steps(self, clock: Clock) -> Iterator[int]:
        """Take the steps that are left, each when it is asked for.

        However many iterators there are, together they take no more than T steps.

        Args:
            clock: counts what each step takes.

        Yields:
            t, after step t.

        Raises:
            DivergenceError: a parameter is not finite.
            UserError: the network keeps something besides its trained parameters.
        """
        while self.state.step < self.spec.steps:
            batch = self.sampler.sample()
            with clock.training(self.units.examples_in(batch)):
                self.step(batch)
            # Layers that are known keep nothing; at the end, every value is compared.
            last = self.state.step == self.spec.steps
            if last or not self.engine.together:
                self.kept.require_unchanged(exactly=last)
            if not is_finite(self.theta):
                raise DivergenceError(f"a parameter is not finite after step {self.state.step}")
            yield self.state.step

    def step(self, batch: Tensor) -> None:
        """Take one step on a logical batch: the run's side of `clipnoise.core.step`.

        Args:
            batch: the drawn examples (or users), indices of shape (b,); b may be 0.
        """
        t, method = self.state.step + 1, self.spec.method
        key = step_key(self.spec, t)
        batch, groups = self.units.arrange(batch)
        self.past.appendleft(self.theta)

        def clipped_sum(clipping: Clipping) -> ClippedSum:
            self.scale = clipping.scale
            clipping = replace(clipping, key=key, examples=batch)
            if groups is not None:
                clipping = replace(clipping, group_size=self.units.size, groups=groups)
            engine, population = self.units.engine, self.units.population
            views = self.spec.training.views
            return self.physical.fit(
                lambda size: self.sums(
                    LogicalBatch(engine, population, batch, clipping, size, views)
                )
            )

        variance, gradient = self.noise.row_norm_squared(t), self._public_gradient(t)
        public = self.known
        if gradient is not None or variance != public.noise_row_norm_squared:
            public = replace(public, noise_row_norm_squared=variance, gradient=gradient)
        self.theta = step(
            self.theta,
            method,
            self.state,
            public,
            clipped_sum=clipped_sum,
            noise=self.noise.next(method.query.draws) if method.query.draws else (),
            past=list(self.past)[1:],
            cross=self.cross,
            observe=None if self.diagnostics is None else self.diagnostics.observe,
        )
        if self.average is not None:
            assert self.spec.training.average is not None
            share = self.spec.training.average.share(t, self.spec.steps)
            self.average = torch.lerp(self.average, self._last(), share)

    def _public_gradient(self, t: int) -> Tensor | None:
        if self.public is None or not self.spec.method.uses_public_gradient:
            return None
        return self.public.gradient(self.theta, t)

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
        past = {f"past {age}": iterate for age, iterate in enumerate(self.past)}
        size = torch.tensor(self.physical.size)
        average = {} if self.average is None else {"average": self.average}
        return {"theta": self.theta, "physical": size, **average, **past, **gather(self._parts())}

    def set_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Go to a saved position; the steps that follow are the same bit for bit.

        Raises:
            KeyError, ValueError: something is missing, or parameters of another kind are there.
        """
        device = self.theta.device
        for name, value in tensors.items():
            parameters = name in ("theta", "average") or name.startswith("past ")
            alike = (value.shape, value.dtype) == (self.theta.shape, self.theta.dtype)
            if parameters and not (alike and bool(value.isfinite().all())):
                raise ValueError(f"{name} is not {self.theta.numel()} finite parameters")
        if int(tensors["physical"]) < 1:
            raise ValueError("physical is less than 1")
        self.theta = tensors["theta"].to(device)
        self.average = tensors["average"].to(device) if "average" in tensors else None
        self.physical.size = int(tensors["physical"])
        ages = sum(name.startswith("past ") for name in tensors)
        self.past.extend(tensors[f"past {age}"].to(device) for age in range(ages))
        restore(self._parts(), tensors)

    def evaluated(self) -> Tensor:
        """Return the parameters that are measured and published as the model, shape (d,)."""
        return self._last() if self.average is None else self.average

    def _last(self) -> Tensor:
        return self.spec.method.evaluated(self.theta, self.state)

    def provenance(self) -> dict[str, str]:
        """Return where the data of the run came from, public knowledge included."""
        return {**self.splits.provenance, **self.origin}

    def evaluate(self, t: int, epsilon: float | None, clock: Clock) -> Metrics:
        """Measure losses and accuracies at the current parameters.

        A strict release has nan for what it withholds: see `RunSpec.withheld`.
        """
        self.engine.flat.load(self.evaluated())
        size = EVALUATION_NUMBERS // self.spec.dataset.signature.numbers
        train, validation, test = (
            (math.nan, math.nan)
            if part in self.spec.withheld
            else evaluate(
                self.engine.network,
                self.task,
                getattr(self.splits, part),
                max(1, min(EVALUATION_BATCH, size)),
            )
            for part in PARTS[:3]
        )
        costs = (clock.speed_since_last(), self.memory.megabytes(), clock.elapsed)
        speed, memory, seconds = (math.nan,) * 3 if self.spec.strict else costs
        return Metrics(
            step=t,
            epsilon=epsilon,
            train_loss=train[0],
            train_accuracy=train[1],
            validation_loss=validation[0],
            validation_accuracy=validation[1],
            test_loss=test[0],
            test_accuracy=test[1],
            examples_per_second=speed,
            peak_memory_mb=memory,
            seconds=seconds,
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
