"""The training loop, and what a run adds to each step: the batch, the noise and θ."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from clipnoise.data.base import PARTS, Examples, Splits
from clipnoise.data.measures import MEASURES, column_of
from clipnoise.data.several import call
from clipnoise.errors import UserError
from clipnoise.models.pretrained import tensors_digest
from clipnoise.run.confusion import MOST_CLASSES, Confusion
from clipnoise.run.correctness import packed
from clipnoise.run.memory import peak_megabytes
from clipnoise.run.outcome import Chance, Clock, DivergenceError, Metrics, Outcome, Predicted
from clipnoise.run.published import tensors_of
from clipnoise.run.ranks import Ranks
from clipnoise.run.setup import (
    WEIGHTS,
    Material,
    build_network,
    load_data,
    on_device,
)
from clipnoise.run.trainer import Trainer
from clipnoise.seeds import generator

if TYPE_CHECKING:
    from clipnoise.data.measures import Measure
    from clipnoise.data.signature import Task
    from clipnoise.privacy.calibration import Calibration
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
    ranks: Ranks | None = None,
    physical_batch_size: int | None = None,
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
        ranks: the processes that train together, each of which calls this; None for one alone.
        physical_batch_size: that of a run which is repeated; None takes what fits.

    Returns:
        The outcome; a run that diverges has one too.

    Raises:
        UserError: the dataset is not prepared, or the model mixes examples.
        InterruptedRunError: the process was asked to stop; the checkpoint is written.
    """
    sigma = 0.0 if calibration is None else calibration.noise_multiplier
    ranks = ranks or Ranks()
    run = Run.prepare(
        spec,
        cache,
        ranks.device(device),
        weights,
        noise_multiplier=sigma,
        ranks=ranks,
        physical_batch_size=physical_batch_size,
    )
    outcome = Outcome(run.provenance(), engine=run.engine_name, parameters=run.state.theta.numel())
    begun = 0
    clock = Clock(partial(torch.cuda.synchronize, device)) if "cuda" in device else Clock()
    watched = spec.training.diagnostics or spec.counterfactual is not None
    spent = None if calibration is None or watched else calibration.spent
    due = set(spec.evaluation_steps())

    def evaluate_at(t: int) -> None:
        with clock.evaluation():
            metrics = run.evaluate(t, None if spent is None else spent[t], clock)
        outcome.metrics.append(metrics)
        on_metrics(metrics)
        if not spec.strict and not math.isfinite(metrics.train_loss + metrics.test_loss):
            raise DivergenceError(f"the loss is not finite after step {t}")

    try:
        resumed = _resume(checkpoint, run, outcome, clock, on_metrics)
        begun = run.state.step
        ranks.require_same(run.state.theta, run.state.step)
        if not resumed:
            evaluate_at(0)
        for t in run.steps(clock):
            outcome.steps_done = t
            if t in due:
                evaluate_at(t)
            if checkpoint is not None and t < spec.steps and _due(checkpoint, ranks):
                notes = {"outcome": outcome.get_state(), "clock": clock.get_state()}
                checkpoint.save(t, run.get_state(), notes)
    except DivergenceError as reason:
        outcome.status, outcome.reason = "diverged", str(reason)
        outcome.steps_done = run.state.step
    if run.diagnostics is not None and outcome.status == "completed" and outcome.steps_done:
        outcome.diagnostics = run.diagnostics.result()
    if spec.training.save and outcome.status == "completed":
        run.engine.flat.load(run.evaluated())
        outcome.tensors = tensors_of(run.engine.network)
    outcome.cost, outcome.evaluating = clock.cost(), clock.evaluating
    outcome.bytes_per_step = ranks.sent // max(1, outcome.steps_done - begun)
    outcome.cost["cpu_seconds"] = sum(ranks.each(clock.cpu_seconds))
    outcome.physical_batch_size = run.units.physical.size
    outcome.scale_spread = run.scale_spread()
    outcome.chance = run.chance()
    if outcome.status == "completed":
        outcome.confusion = run.confused()
        outcome.correct = run.correct
    return outcome


def _due(checkpoint: Checkpoint, ranks: Ranks) -> bool:
    """Return whether the run is to be saved; a request to stop one process stops all of them."""
    asked = ranks.each((checkpoint.due(), checkpoint.stop.signal))
    signals = [signal for _, signal in asked if signal is not None]
    checkpoint.stop.signal = signals[0] if signals else None
    return any(due for due, _ in asked)


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


@dataclass(kw_only=True)
class Run(Trainer):
    """A run of a study while it trains.

    Attributes:
        procedure: everything that can change the result.
        splits: what it trains and is measured on.
        counts: how often each class was predicted on the test split, at the last evaluation.
        correct: which test examples were predicted right then; None where that is not kept.
    """

    procedure: RunSpec
    splits: Splits
    counts: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    correct: str | None = None

    @classmethod
    def prepare(
        cls,
        spec: RunSpec,
        cache: Path,
        device: str,
        weights: Path = WEIGHTS,
        *,
        noise_multiplier: float = 0.0,
        **more: Any,
    ) -> Run:
        """Load the data, build the network and start every random stream.

        Args:
            spec: the run.
            cache: the folder of prepared datasets.
            device: a torch device name.
            weights: the folder of pretrained weights.
            noise_multiplier: σ of the noise on the sum.
            more: ranks and physical batch size, as `Trainer.begin` takes them.

        Raises:
            UserError: the dataset is not prepared, or the model mixes examples.
        """
        splits = on_device(load_data(spec, cache), device)
        material = Material(
            network=build_network(spec, weights).to(device),
            losses=spec.trained_task.losses,
            examples=splits.train,
            signature=spec.dataset.signature,
            users=splits.users,
            public=splits.public,
            dataset=spec.dataset,
            cache=cache,
        )
        run = cls.begin(spec, material, noise_multiplier=noise_multiplier, splits=splits, **more)
        run.origin |= tensors_digest(spec.model, weights)
        return run

    def provenance(self) -> dict[str, str]:
        """Return where the data of the run came from, public knowledge included."""
        return {**self.splits.provenance, **self.origin}

    def evaluate(self, t: int, epsilon: float | None, clock: Clock) -> Metrics:
        """Measure losses and accuracies at the current parameters.

        A strict release has nan for what it withholds: see `RunSpec.withheld`.
        """
        self.engine.flat.load(self.evaluated())
        network, limit = self.engine.network, self.procedure.training.evaluate
        most = None if limit is None or t == self.procedure.steps else limit.examples
        train, validation, test = (self._measured(network, part, most) for part in PARTS[:3])
        memory = peak_megabytes(str(self.state.theta.device))
        costs = (clock.speed_since_last(), memory, clock.elapsed)
        self.counts = test.counts
        if t == self.procedure.steps and test.right is not None:
            self.correct = packed(test.right.numpy())
        speed, memory, seconds = (math.nan,) * 3 if self.procedure.strict else costs
        return Metrics(
            step=t,
            epsilon=epsilon,
            train_loss=train.loss,
            train_accuracy=train.score,
            validation_loss=validation.loss,
            validation_accuracy=validation.score,
            test_loss=test.loss,
            test_accuracy=test.score,
            examples_per_second=speed,
            peak_memory_mb=memory,
            seconds=seconds,
            learning_rate=self._learning_rate(t),
            measured={
                column_of(name, split): value
                for split, scores in (("test", test), ("validation", validation))
                for name, value in scores.measured.items()
            },
        )

    def _learning_rate(self, t: int) -> float | None:
        """Return η of step t, or of the first one, if it follows a schedule."""
        method = self.procedure.method
        if "learning_rate" not in method.schedules:
            return None
        rate: float = vars(method.at(max(1, t), self.procedure.steps))["learning_rate"]
        return rate

    def chance(self) -> Chance | None:
        """Return the best constant prediction; None where it is withheld, or the task has none.

        It is chosen on that split, so that no constant does better there.
        """
        signature, test = self.procedure.dataset.signature, self.splits.test
        if signature.task.guess is None or "test" in self.procedure.withheld or not len(test):
            return None
        targets = test.targets[slice(None)]
        constant = ConstantPrediction(signature.task.constant(targets, signature.outputs))
        found = self._measured(constant, "test")
        values = {"loss": found.loss, "accuracy": found.score, **found.measured}
        known = {column_of(name): one for name, one in values.items() if math.isfinite(one)}
        return Chance(name=signature.task.guess, levels=known)

    def confused(self) -> Predicted | None:
        """Return how often each class was predicted; None where it was not counted."""
        dataset = self.procedure.dataset
        if not self.counts:
            return None
        return Predicted(
            classes=dataset.class_names,
            column=getattr(dataset, "groups", None),
            groups={name: tuple(map(tuple, rows)) for name, rows in self.counts.items()},
        )

    def _measured(self, network: nn.Module, part: str, most: int | None = None) -> Scores:
        """Measure a network on a part of the dataset; further metrics not on training examples.

        With `most`, so many of its examples are measured, which are drawn once and for all.
        """
        signature = self.procedure.dataset.signature
        further = part in ("test", "validation")
        measures = [MEASURES[name] for name in self.procedure.metrics] if further else []
        if part in self.procedure.withheld:
            return Scores(math.nan, math.nan, {one.id: math.nan for one in measures})
        size = max(1, min(EVALUATION_BATCH, EVALUATION_NUMBERS // signature.numbers))
        classifies = signature.task_name == "classification" and signature.outputs <= MOST_CLASSES
        counted = None
        examples: Examples = getattr(self.splits, part)
        chosen = None if most is None else some_of(len(examples), most)
        if part == "test" and classifies and chosen is None:
            counted = Confusion(signature.outputs, self.splits.groups)
        keeps = part == "test" and chosen is None and self.procedure.training.correctness
        right: list[torch.Tensor] | None = [] if keeps else None
        return evaluate(network, signature.task, examples, size, measures, counted, chosen, right)


def some_of(available: int, most: int) -> torch.Tensor:
    """Return the positions of some examples, in order: the same for every run and seed."""
    order = torch.randperm(available, generator=generator("evaluation", 0))
    return order[:most].sort().values


class ConstantPrediction(nn.Module):
    """A network that predicts the same for every example."""

    def __init__(self, outputs: torch.Tensor) -> None:
        """Predict these outputs, of shape (outputs,)."""
        super().__init__()
        self.outputs = outputs

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        """Return the outputs for each input."""
        first = next(iter((*inputs, *named.values())))
        return self.outputs.expand(len(first), -1)


class Scores(NamedTuple):
    """What is measured of a split.

    Attributes:
        loss, score: means over its examples; nan where there is none.
        measured: the other metrics, by id.
        counts: of predictions, as `Confusion.counts` returns them, where they are counted.
        right: whether each example is predicted right, bool of shape (n,), where that is kept.
    """

    loss: float
    score: float
    measured: dict[str, float]
    counts: Mapping[str, list[list[int]]] = MappingProxyType({})
    right: torch.Tensor | None = None


@torch.no_grad()
def evaluate(
    network: nn.Module,
    task: Task,
    examples: Examples,
    size: int = EVALUATION_BATCH,
    measures: Sequence[Measure] = (),
    counted: Confusion | None = None,
    chosen: torch.Tensor | None = None,
    right: list[torch.Tensor] | None = None,
) -> Scores:
    """Return the mean loss, the mean score and other metrics of a split; nan for an empty one.

    The score is nan, too, for a task that has only a loss, and the other metrics where outputs are
    not finite.

    Args:
        network: at the parameters to be measured.
        task: the losses and scores.
        examples: the split.
        size: most examples in memory at once.
        measures: the other metrics.
        counted: counts the predictions; None where they are not wanted.
        chosen: the positions of those that are measured, int64 of shape (k,); None takes all.
        right: takes which examples have a score of 1, of each batch; None where it is not wanted.
    """
    loss, score = 0.0, 0.0
    count = len(examples) if chosen is None else len(chosen)
    kept: dict[str, list[tuple[torch.Tensor, ...]]] = {one.id: [] for one in measures}
    network.eval()
    for start in range(0, count, size):
        part = slice(start, start + size)
        inputs, targets = examples.take(part if chosen is None else chosen[part])
        outputs = call(network, inputs)
        loss += float(task.losses(outputs, targets).double().sum())
        if task.score is not None:
            scores = task.scores(outputs, targets)
            score += float(scores.double().sum())
            if right is not None:
                right.append((scores == 1).cpu())
        if counted is not None:
            counted.add(outputs, targets)
        for one in measures:
            kept[one.id].append(tuple(each.cpu() for each in one.kept(outputs, targets)))
    network.train()
    if task.score is None:
        score = math.nan
    values = {one.id: _value(one, kept[one.id]) for one in measures}
    means = (loss / count, score / count) if count else (math.nan, math.nan)
    counts = {} if counted is None else counted.counts()
    return Scores(*means, values, counts, torch.cat(right) if right else None)


def _value(measure: Measure, batches: Sequence[tuple[torch.Tensor, ...]]) -> float:
    """Return a metric from what it kept of each batch; nan for none, or where one is not finite."""
    joined = [torch.cat(parts).double() for parts in zip(*batches, strict=True)]
    if not joined or not all(bool(part.isfinite().all()) for part in joined):
        return math.nan
    return measure.value(*(part.numpy() for part in joined))
