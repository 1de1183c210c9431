"""What is audited: a method with settings, how it trains, and what it releases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from clipnoise.core.clipping import ClippedSum
from clipnoise.core.step import Crossing, privatize
from clipnoise.data.digits import Digits, DigitsUsers
from clipnoise.data.side_information import PublicGradients
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.gradients.units import PrivateUnits
from clipnoise.methods.base import WithSideInformation, example_settings, method_class
from clipnoise.models.base import model_class
from clipnoise.models.dense import Logistic, MultilayerPerceptron
from clipnoise.privacy.budget import Privacy
from clipnoise.privacy.microbatches import MicroBatchAssignment, MicroBatches
from clipnoise.privacy.noise import IndependentNoise, NoiseCorrelation
from clipnoise.run import setup
from clipnoise.run.procedure import Training
from clipnoise.run.ranks import Ranks
from clipnoise.run.spec import RunSpec, units_of
from clipnoise.run.train import Run
from clipnoise.seeds import generator

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from clipnoise.core.clipping import Clipping
    from clipnoise.core.method import Method
    from clipnoise.core.query import Query, Released
    from clipnoise.core.state import Public
    from clipnoise.data.base import Dataset
    from clipnoise.privacy.accountants import AccountantName
    from clipnoise.privacy.samplers import Sampler

PLACES = 10_000  # more than any dataset under attack has examples
PUBLIC_EXAMPLES = 100

Values = tuple["Released", ...]
Sums = Callable[[PrivateUnits, "Tensor", "Clipping"], "Tensor"]  # as `PrivateUnits.clipped_sum`


@dataclass(frozen=True)
class Subject:
    """A method under audit.

    Attributes:
        method: the optimizer, its hyper-parameters set.
        sums: how a batch becomes a clipped sum; another than the real code only in a
            deliberately broken variant.
        cross: how a sum crosses the privacy boundary; another way only in a deliberately broken
            variant.
        noise: how noise is correlated across steps.
        sampler: how batches are drawn.
        batches: the stream of batches of a run; another than the real code only in a deliberately
            broken variant.
        microbatches: how examples are averaged before clipping.
        node_sensitivity: what noise for nodes of a graph is scaled to, in units of C; None for
            that of the real code, another one only in a deliberately broken variant.
        ranks: the processes that train together, each of which audits; others than those of the
            real code only in a deliberately broken variant.
    """

    method: Method
    sums: Sums = PrivateUnits.clipped_sum
    cross: Crossing = privatize
    noise: NoiseCorrelation = field(default_factory=IndependentNoise)
    sampler: str = "poisson"
    batches: Callable[[RunSpec], Sampler] = setup.sampler
    microbatches: MicroBatches = field(default_factory=MicroBatches)
    node_sensitivity: float | None = None
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def sensitivity_factor(self) -> float:
        """What noise is scaled to, relative to the sensitivity that the query declares."""
        return self.microbatches.sensitivity_factor(self.method.query)


def subject(name: str, options: Mapping[str, object] | None = None, **settings: Any) -> Subject:
    """Return a registered method with settings, ready to be audited.

    Args:
        name: a method id.
        options: hyper-parameters by name; what has no default and is not given is chosen here.
        settings: further attributes of `Subject`.

    Raises:
        UserError: an unknown method or hyper-parameter, or a value out of range.
    """
    return Subject(with_numbers(method_class(name), options or {}), **settings)


def with_numbers(kind: type[Method], options: Mapping[str, object]) -> Method:
    """Return a method whose hyper-parameters are the same in every step.

    Raises:
        UserError: an unknown hyper-parameter, a value out of range, or a schedule.
    """
    method = parse(kind, {**example_settings(kind), **options}, key=kind.id)
    for name in method.schedules:
        raise UserError(
            f"{kind.id}.{name}: give a number. What is attacked is the code of a step, and a step "
            "of a schedule has a number, too."
        )
    return method


def at_clip_norm(subject: Subject, factor: float) -> Subject:
    """Return a subject whose clip norms are multiplied by a factor.

    Raises:
        UserError: the method refuses them.
    """
    names = [name for name in ("clip_norm", "clip_norms") if hasattr(subject.method, name)]
    changed = {name: _times(getattr(subject.method, name), factor) for name in names}
    try:
        method = replace(subject.method, **changed)
        _ = method.query  # which one in another process is asked for: it checks its options then
    except UserError as error:
        tried = ", ".join(f"{name} {value}" for name, value in changed.items())
        raise UserError(
            f"{tried} is tried, too, {factor:g} times what is given, and refused: {error}"
        ) from None
    return replace(subject, method=method)


def _times(value: object, factor: float) -> object:
    """Return a number, or each of several, times a factor; anything else as it is."""
    if isinstance(value, tuple | list):
        return tuple(_times(one, factor) for one in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return value * factor


def in_microbatches(subject: Subject, expected_batch_size: float) -> Subject:
    """Return a subject that forms its sums in its micro-batches, as the training loop forms them.

    Every place in a dataset keeps its micro-batch, so that neighbouring datasets share them.

    Args:
        subject: with the sums of the real code, if its micro-batches have more than one example.
        expected_batch_size: B.
    """
    size = subject.microbatches.size
    if size == 1:
        return subject
    count = round(subject.microbatches.count(expected_batch_size))

    def microbatched(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
        draws = generator("micro-batches", 0)
        arranged, groups = MicroBatchAssignment(PLACES, count, draws).arrange(indices)
        return units.clipped_sum(arranged, replace(clipping, group_size=size, groups=groups))

    return replace(subject, sums=microbatched)


def digits_for(subject: Subject, units: int | None = None) -> Digits:
    """Return the digits, handed out to users where the method protects users.

    Args:
        subject: the method.
        units: n, the number of private examples or users; examples that are left over are public.
    """
    if subject.method.local_training() is not None:
        users = DigitsUsers(public_examples=PUBLIC_EXAMPLES)
        return users if units is None else replace(users, users=units)
    private = sum(Digits().sizes()[part] for part in ("train", "public"))
    return Digits(public_examples=PUBLIC_EXAMPLES if units is None else private - units)


def run_spec(
    subject: Subject,
    *,
    expected_batch_size: int,
    steps: int,
    noise_multiplier: float = 1.0,
    epsilon: float | None = None,
    delta: float = 1e-5,
    accountant: AccountantName = "rdp",
    evaluations: int = 1,
    units: int | None = None,
    hidden: int | None = None,
    dataset: Dataset | None = None,
    seed: int = 0,
) -> RunSpec:
    """Return the spec of a run of an audited method on digits.

    It trains logistic regression, a perceptron with so many hidden units where that is asked for,
    or the model that the method is made for.
    The expected batch size is in micro-batches and at most the number of private units, which is
    that of the digits unless it is given. Where ε is given, it is asked for in place of σ.
    """
    privacy = Privacy(
        epsilon=epsilon,
        noise_multiplier=noise_multiplier if epsilon is None else None,
        delta=delta,
        accountant=accountant,
        sampler=subject.sampler,
        noise=subject.noise,
        microbatch_size=subject.microbatches.size,
        microbatch_accounting=subject.microbatches.accounting,
    )
    chosen, method = dataset or digits_for(subject, units), subject.method
    if isinstance(method, WithSideInformation):  # digits occur in no public text
        method = replace(method, side_information=PublicGradients(source="public-gradients"))
    n, m = units_of(chosen, method).count, subject.microbatches.size
    size = min(expected_batch_size * m, n - n % m)
    training = Training(expected_batch_size=size, steps=steps, evaluations=evaluations)
    plain = Logistic() if hidden is None else MultilayerPerceptron(widths=(hidden,))
    return RunSpec(
        dataset=chosen,
        model=plain if method.made_for is None else model_class(method.made_for)(),
        method=method,
        privacy=privacy if subject.method.query.draws else None,
        training=replace(training, physical_batch_size=512),
        seed=seed,
    )


def recorded_run(
    subject: Subject, spec: RunSpec, cache: Path, sigma: float = 1.0
) -> tuple[Run, Recorder]:
    """Return a run of the real training loop at σ, and what records its releases."""
    run = Run.prepare(spec, cache, "cpu", noise_multiplier=sigma)
    run.cross = recorder = Recorder(subject.cross)
    run.sampler, run.ranks = subject.batches(spec), subject.ranks
    return run, recorder


@dataclass(frozen=True)
class SummedBy(PrivateUnits):
    """The private units of a run whose batches become sums in another way.

    Attributes:
        sums: that way; it is given the units as they were.
    """

    sums: Sums = PrivateUnits.clipped_sum

    @classmethod
    def of(cls, units: PrivateUnits, sums: Sums) -> SummedBy:
        """Return the same units, summed in another way."""
        return cls(units.engine, units.examples, units.physical, units.views, sums)

    def clipped_sum(self, indices: Tensor, clipping: Clipping) -> Tensor:
        plain = PrivateUnits(self.engine, self.examples, self.physical, self.views)
        return self.sums(plain, indices, clipping)


@dataclass(frozen=True)
class Release:
    """What crossed the privacy boundary in one step, and what is public about the crossing."""

    values: Values
    clipping: Clipping
    public: Public


@dataclass
class Recorder:
    """A crossing of the privacy boundary that keeps what it releases.

    Attributes:
        cross: the crossing that it records.
        shown: makes what the method is handed from what was released.
        releases: what was released so far, one entry per step.
    """

    cross: Crossing
    shown: Callable[[Values], Values] = lambda values: values
    releases: list[Release] = field(default_factory=list)

    def __call__(
        self,
        total: ClippedSum,
        query: Query,
        clipping: Clipping,
        noise: Sequence[Tensor],
        public: Public,
    ) -> Values:
        """Release as the crossing does, and keep the values."""
        values = self.cross(total, query, clipping, noise, public)
        self.releases.append(Release(values, clipping, public))
        return self.shown(values)
