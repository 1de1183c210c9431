"""What is audited: a method with settings, and the code that forms its sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from clipnoise.fields import parse
from clipnoise.gradients.engine import physical_batches
from clipnoise.methods.registry import method_class
from clipnoise.privacy.accountants.nodes import sensitivity_factor
from clipnoise.privacy.microbatches import MicroBatchAssignment, MicroBatches
from clipnoise.privacy.noise import NoiseCorrelation
from clipnoise.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.data.base import DenseExamples
    from clipnoise.gradients.engine import GradientEngine
    from clipnoise.methods.base import Method
    from clipnoise.privacy.queries import Clipping, Query, Released, Unreleased

PLACES = 1000  # more than any dataset under attack has examples

Form = Callable[..., Any]  # as `physical_batches`

# A value for each hyper-parameter without a default. None of them changes what ε rests on, except
# the clip norms, in whose units every result is given.
SETTINGS: dict[str, Any] = {
    "learning_rate": 0.1,
    "clip_norm": 1.0,
    "phase_lengths": (2, 2),
    "learning_rates": (0.1, 0.05),
    "clip_norms": (1.0, 2.0),
    "phi": 1e-3,
}


@dataclass(frozen=True)
class Subject:
    """A method under audit.

    Attributes:
        method: the optimizer, its hyper-parameters set.
        form: how a logical batch becomes a clipped sum; another than the real code only in a
            deliberately broken variant.
        noise: how noise is correlated across steps.
        sampler: how batches are drawn.
        batches: "as declared", or another stream of batches in a deliberately broken variant.
        microbatches: how examples are averaged before clipping.
        node_sensitivity: what noise for nodes of a graph is scaled to, by K; another than the real
            code only in a deliberately broken variant.
    """

    method: Method
    form: Form = physical_batches
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
    chosen = {
        option.name: SETTINGS[option.name]
        for option in fields(kind)
        if option.default is MISSING and option.name in SETTINGS
    }
    return Subject(parse(kind, {**chosen, **(options or {})}, key=name), **settings)


def in_microbatches(subject: Subject, expected_batch_size: float) -> Subject:
    """Return a subject whose sums are formed in micro-batches, as the training loop forms them.

    Every place in a dataset keeps its micro-batch, so that neighbouring datasets share them.

    Args:
        subject: with micro-batches of more than one example, and the real code as its form.
        expected_batch_size: B.
    """
    size = subject.microbatches.size
    count = round(subject.microbatches.count(expected_batch_size))

    def microbatched(
        engine: GradientEngine,
        examples: DenseExamples,
        batch: Tensor,
        iterates: Sequence[Tensor],
        clipping: Clipping,
        physical: int,
    ) -> Unreleased:
        draws = generator("micro-batches", 0)
        arranged, groups = MicroBatchAssignment(PLACES, count, draws).arrange(batch)
        grouped = replace(clipping, group_size=size, groups=groups)
        return physical_batches(engine, examples, arranged, iterates, grouped, physical)

    return replace(subject, form=microbatched)


@dataclass(frozen=True)
class Release:
    """What crossed the privacy boundary in one step, and the constants of the crossing."""

    values: tuple[Released, ...]
    clip_norm: float
    expected_batch_size: float


class Recorder:
    """A query that keeps what it releases; everything else is the query it stands for."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self.releases: list[Release] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    def release(
        self, total: Unreleased, noise: Sequence[Tensor], **constants: float
    ) -> tuple[Released, ...]:
        """Release as the query does, and keep the values."""
        values = self._query.release(total, noise, **constants)
        self.releases.append(
            Release(values, constants["clip_norm"], constants["expected_batch_size"])
        )
        return values


def recorded(method: Method) -> tuple[Method, Recorder]:
    """Return a copy of a method whose query keeps what it releases, and the record."""
    recorder, twin = Recorder(method.query), copy(method)
    object.__setattr__(twin, "query", recorder)
    return twin, recorder
