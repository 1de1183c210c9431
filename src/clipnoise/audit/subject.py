"""What is audited: a method with settings, and the code that forms its sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from clipnoise.core.clipping import ClippedSum
from clipnoise.core.step import Crossing, privatize
from clipnoise.fields import parse
from clipnoise.gradients.engine import LogicalBatch, physical_batches
from clipnoise.methods.registry import example_settings, method_class
from clipnoise.privacy.accountants.nodes import sensitivity_factor
from clipnoise.privacy.microbatches import MicroBatchAssignment, MicroBatches
from clipnoise.privacy.noise import NoiseCorrelation
from clipnoise.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.core.clipping import Clipping
    from clipnoise.core.method import Method
    from clipnoise.core.query import Query, Released
    from clipnoise.core.state import StepConstants

PLACES = 10_000  # more than any dataset under attack has examples

Form = Callable[[LogicalBatch], ClippedSum]  # as `physical_batches`


@dataclass(frozen=True)
class Subject:
    """A method under audit.

    Attributes:
        method: the optimizer, its hyper-parameters set.
        form: how a logical batch becomes a clipped sum; another than the real code only in a
            deliberately broken variant.
        cross: how a sum crosses the privacy boundary; another way only in a deliberately broken
            variant.
        noise: how noise is correlated across steps.
        sampler: how batches are drawn.
        batches: "as declared", or another stream of batches in a deliberately broken variant.
        microbatches: how examples are averaged before clipping.
        node_sensitivity: what noise for nodes of a graph is scaled to, by K; another than the real
            code only in a deliberately broken variant.
    """

    method: Method
    form: Form = physical_batches
    cross: Crossing = privatize
    noise: NoiseCorrelation = field(default_factory=NoiseCorrelation)
    sampler: str = "poisson"
    batches: Literal["as declared", "shuffled"] = "as declared"
    microbatches: MicroBatches = field(default_factory=MicroBatches)
    node_sensitivity: Callable[[int], float] = sensitivity_factor

    @property
    def sensitivity_factor(self) -> float:
        """What noise is scaled to, relative to the sensitivity that the query declares."""
        return self.microbatches.sensitivity_factor(self.method.query)


def subject(name: str, options: Mapping[str, Any] | None = None, **settings: Any) -> Subject:
    """Return a registered method with settings, ready to be audited.

    Args:
        name: a method id.
        options: hyper-parameters by name; what has no default and is not given is chosen here.
        settings: further attributes of `Subject`.

    Raises:
        UserError: an unknown method or hyper-parameter, or a value out of range.
    """
    kind = method_class(name)
    return Subject(parse(kind, {**example_settings(kind), **(options or {})}, key=name), **settings)


def at_clip_norm(subject: Subject, factor: float) -> Subject:
    """Return a subject whose clip norms are multiplied by a factor."""
    method, changed = subject.method, {}
    if hasattr(method, "clip_norm"):
        changed["clip_norm"] = method.clip_norm * factor
    if hasattr(method, "clip_norms"):
        changed["clip_norms"] = tuple(norm * factor for norm in method.clip_norms)
    return replace(subject, method=replace(method, **changed))


def in_microbatches(subject: Subject, expected_batch_size: float) -> Subject:
    """Return a subject that forms its sums in its micro-batches, as the training loop forms them.

    Every place in a dataset keeps its micro-batch, so that neighbouring datasets share them.

    Args:
        subject: with the real code as its form, if its micro-batches have more than one example.
        expected_batch_size: B.
    """
    size = subject.microbatches.size
    if size == 1:
        return subject
    count = round(subject.microbatches.count(expected_batch_size))

    def microbatched(batch: LogicalBatch) -> ClippedSum:
        draws = generator("micro-batches", 0)
        arranged, groups = MicroBatchAssignment(PLACES, count, draws).arrange(batch.indices)
        grouped = replace(batch.clipping, group_size=size, groups=groups)
        return physical_batches(replace(batch, indices=arranged, clipping=grouped))

    return replace(subject, form=microbatched)


@dataclass(frozen=True)
class Release:
    """What crossed the privacy boundary in one step, and the constants of the crossing."""

    values: tuple[Released, ...]
    clip_norm: float
    constants: StepConstants

    @property
    def expected_batch_size(self) -> float:
        """B, the declared denominator."""
        return self.constants.expected_batch_size


class Recorder:
    """A crossing of the privacy boundary that keeps what it releases.

    Attributes:
        releases: what was released so far, one entry per step.
    """

    def __init__(self, cross: Crossing) -> None:
        """Record what another crossing releases."""
        self._cross = cross
        self.releases: list[Release] = []

    def __call__(
        self,
        total: ClippedSum,
        query: Query,
        clipping: Clipping,
        noise: Sequence[Tensor],
        constants: StepConstants,
    ) -> tuple[Released, ...]:
        """Release as the crossing does, and keep the values."""
        values = self._cross(total, query, clipping, noise, constants)
        self.releases.append(Release(values, clipping.bound, constants))
        return values
