"""A training procedure: how private units are trained on, whatever they and the network are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from clipnoise.core.clip_rules import ClipRule
from clipnoise.core.method import Method, WithClipRule
from clipnoise.errors import UserError
from clipnoise.fields import (
    STRICT,
    Count,
    Decay,
    Natural,
    Positive,
    Precision,
    parse,
    to_plain,
    unhashed_at,
)
from clipnoise.kinds import OwnKind
from clipnoise.plugins import require_sealed
from clipnoise.privacy.budget import Budget, Privacy
from clipnoise.privacy.counterfactual import Counterfactual
from clipnoise.privacy.mechanism import ADDITIVE, Mechanism
from clipnoise.privacy.noise import NoiseCorrelation
from clipnoise.privacy.trials import DrawnTrials
from clipnoise.privacy.units import Unit


@dataclass(frozen=True, kw_only=True)
class ExponentialAverage:
    """θ̄_t = β_t θ̄_{t−1} + (1−β_t) θ_t with β_t = min(β, t/(t + 9)), θ̄_0 = θ_0.

    The smaller decay at the start lets the average forget θ_0.

    Source: De et al. 2022 (Unlocking High-Accuracy Differentially Private Image Classification
    through Scale), parameter averaging; jax_privacy, averaging.py, which counts t from 0.

    Attributes:
        decay: β.
    """

    __pydantic_config__: ClassVar = STRICT

    kind: Literal["ema"]
    decay: Decay

    def share(self, step: int, steps: int) -> float:
        """Return what share of the average the iterate of step t, from 1, has: 1 − β_t."""
        return 1 - min(self.decay, step / (step + 9))


@dataclass(frozen=True, kw_only=True)
class TailAverage:
    """The mean of the iterates after a share of the steps; before that, the last iterate.

    Source: Polyak and Juditsky 1992, from a later start; De et al. 2022, its released jax_privacy,
    averaging.py (polyak).

    Attributes:
        after: the share of the T steps whose iterates are left out: 0.5 averages the second half.
    """

    __pydantic_config__: ClassVar = STRICT

    kind: Literal["tail"]
    after: Decay

    def share(self, step: int, steps: int) -> float:
        """Return what share of the average the iterate of step t, from 1, has."""
        return 1 / max(1, step - int(self.after * steps))


Average = Annotated[ExponentialAverage | TailAverage, Field(discriminator="kind")]


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """How much of each split is measured before the last evaluation, which measures all of it.

    Attributes:
        examples: at most this many of each split, the same ones in every evaluation and run.
    """

    __pydantic_config__: ClassVar = STRICT

    examples: Count


@dataclass(frozen=True, kw_only=True)
class Training:
    """How long and in what pieces a run trains.

    Attributes:
        expected_batch_size: B = q·n; in federated training, of users.
        epochs: passes over the data, T = round(epochs·n/B).
        steps: T, instead of epochs; in federated training the rounds.
        views: K, the views (by augmentation and dropout) of an example whose mean gradient is
            clipped once.
        physical_batch_size: examples in memory at once; bounds memory, not privacy.
        evaluations: how many times metrics are taken.
        diagnostics: whether moments are also recorded without noise; the run is then non-private.
        average: of the iterates, measured and published in place of the last one: `{kind: ema,
            decay: 0.99}` or `{kind: tail, after: 0.5}`. It costs no ε.
        precision: of forward and backward passes; everything else is float32.
        save: whether the model is written, with its privacy statement.
        class_weights: by which losses are multiplied before clipping; public numbers. Metrics are
            not weighted.
        evaluate: `{examples: 2000}` measures at most that many of each split before the last
            evaluation.
        correctness: whether the result says of each test example if it is predicted right; only
            for classification, and not of the runs of a search.
    """

    __pydantic_config__: ClassVar = STRICT

    expected_batch_size: Count
    epochs: Positive | None = None
    steps: Natural | None = None
    views: Count = 1
    physical_batch_size: Count = 256
    evaluations: Count = 10
    diagnostics: bool = False
    average: Average | None = None
    precision: Precision = "float32"
    save: Annotated[bool, unhashed_at(False)] = False
    class_weights: Annotated[tuple[Positive, ...], unhashed_at(())] = ()
    evaluate: Annotated[Evaluate | None, unhashed_at(None)] = None
    correctness: Annotated[bool, unhashed_at(False)] = False

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give exactly one of epochs and steps")

    def total_steps(self, examples: int) -> int:
        """Return T for n private examples: fixed up front from public numbers."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, round(self.epochs * examples / self.expected_batch_size))


@dataclass(frozen=True, kw_only=True)
class Procedure:
    """How private units are trained on, whatever they and the network are.

    Attributes:
        method: the optimizer.
        privacy: what is asked of privacy; None for a method without noise.
        training: for how long, and in what pieces.
        seed: of every random stream.
    """

    method: Method
    privacy: Privacy | None
    training: Training
    seed: int

    def __post_init__(self) -> None:
        self._check_sealed()
        if self.method.query.draws and self.privacy is None:
            raise UserError(
                f"privacy: {self.method.id} adds noise; give an epsilon or a noise_multiplier."
            )
        if not self.method.query.draws and self.privacy is not None:
            raise UserError(
                f"privacy: {self.method.id} adds no noise; leave privacy out (null), "
                "so that no table can show an epsilon for it."
            )
        if not self.clips and self.method.query.of.extra:
            raise UserError(
                f"privacy.counterfactual.clipping: must be true for {self.method.id}, whose clip "
                "norm follows from the norms of the vectors."
            )
        unit = self.unit
        if self.training.expected_batch_size > unit.count:
            raise UserError(
                f"training.expected_batch_size: {self.training.expected_batch_size} is more than "
                f"the {self.population}."
            )
        if self.training.diagnostics and self.method.query.of.losses:
            raise UserError(
                f"training.diagnostics: must be false for {self.method.id}: it releases a number, "
                "which has no moments by coordinate."
            )
        _ = self.mechanism.denominator  # checks that B is a multiple of m
        if unit.name == "user" and self.training.views > 1:
            raise UserError(
                f"training.views: must be 1 for {self.method.id}, which clips one vector per user, "
                f"not a gradient; got {self.training.views}."
            )
        unit.check(self.method.query, self.mechanism.microbatches)
        self._check_minimum()
        self._check_noise()
        self._check_schedules()
        _ = self.budget  # checks that sampler, accountant and noise fit each other

    def _check_minimum(self) -> None:
        """Refuse what the proof of a release at a minimum does not cover."""
        if not self.method.query.of.spends:
            return
        of, mechanism = f"{self.method.id}, whose proof", self.mechanism
        if self.unit.affected_examples > 1 or mechanism.adjacency not in ADDITIVE:
            raise UserError(
                f"method.id: {of} is for an example that is added or removed, not for "
                f"{mechanism.adjacency}."
            )
        if mechanism.microbatches.size > 1:
            raise UserError(f"privacy.microbatch_size: must be 1 for {of} is for one example.")
        if mechanism.noise.id != "independent":
            raise UserError(f"privacy.noise.kind: must be independent for {of} is for one release.")
        if self.counterfactual is not None:
            raise UserError(
                f"privacy.counterfactual: not for {self.method.id}: noise and clip norm decide "
                "what is minimised."
            )

    def _check_noise(self) -> None:
        reason, kind = self.method.against_correlated_noise(), self.mechanism.noise.id
        if reason is not None and self.mechanism.bands > 1:
            raise UserError(f"privacy.noise.kind: {kind} is correlated across steps. {reason}")

    def _check_schedules(self) -> None:
        """Check the method with the smallest and the largest number of every schedule."""
        for step in self.method.extremes(self.steps) if self.steps else ():
            parse(type(self.method), to_plain(self.method.at(step, self.steps)), key="method")

    def _check_sealed(self) -> None:
        """Check the user's classes again: a mix-in can keep them from being checked at first."""
        for part in (*self.choices, self.method.query):
            try:
                require_sealed(type(part))
            except TypeError as error:
                raise UserError(f"{error}.") from None
            kind, known = type(part), ClipRule.package_kinds().values()
            if issubclass(kind, ClipRule) and not (kind in known or issubclass(kind, OwnKind)):
                raise UserError(f"method.clip_rule: {kind.__name__} must be an OwnClipRule.")

    @property
    def unit(self) -> Unit:
        """What is drawn, clipped and protected as a whole, and how many are private.

        Raises:
            UserError: the method protects users, and there are none.
        """
        raise NotImplementedError

    @property
    def population(self) -> str:
        """How many units are private, in words."""
        return f"{self.unit.count} private {self.unit.name}s"

    def caveat(self) -> str | None:
        """Return why no ε on these examples is a guarantee, in words, or None."""
        return None

    @property
    def search_law(self) -> DrawnTrials | None:
        """The law of the number of trials that chose for it, if it was drawn."""
        return None

    @property
    def choices(self) -> tuple[Method | ClipRule | NoiseCorrelation, ...]:
        """The method, its clip rule and the kind of noise: each may be a plug-in of the user's."""
        rule = (self.method.clip_rule,) if isinstance(self.method, WithClipRule) else ()
        return (self.method, *rule, *(() if self.privacy is None else (self.privacy.noise,)))

    @cached_property
    def mechanism(self) -> Mechanism:
        """What ε depends on."""
        return Mechanism.asked_for(
            self.privacy,
            unit=self.unit,
            size=self.training.expected_batch_size,
            steps=self.steps,
            query=self.method.query,
            learning_rate=getattr(self.method, "learning_rate", None),
        )

    @property
    def secure_noise(self) -> bool:
        """Whether noise and batches come from a cryptographic source, not from the seed."""
        return self.privacy is not None and self.privacy.secure_noise

    @property
    def counterfactual(self) -> Counterfactual | None:
        """What is left out of the private run; None where nothing is."""
        return None if self.privacy is None else self.privacy.counterfactual

    @property
    def protects(self) -> bool:
        """Whether what is released protects the units: ε is stated of no other run."""
        watched = self.training.diagnostics or self.counterfactual is not None
        return self.method.private and not watched

    @property
    def noise_factor(self) -> float:
        """What the noise of a private run is multiplied by; 1 in every private run."""
        return 1.0 if self.counterfactual is None else self.counterfactual.noise

    @property
    def clips(self) -> bool:
        """Whether vectors are clipped as the method says, as in every private run."""
        return self.counterfactual is None or self.counterfactual.clipping

    @property
    def strict(self) -> bool:
        """Whether nothing is written that depends on private data and that ε does not cover."""
        return self.privacy is not None and self.privacy.release == "strict"

    @property
    def passes(self) -> int:
        """How many gradients of a drawn example a step takes, each view counted."""
        return self.method.passes() * self.training.views

    @cached_property
    def steps(self) -> int:
        """T."""
        return self.training.total_steps(self.unit.count)

    @cached_property
    def budget(self) -> Budget | None:
        """What σ is calibrated for; None for a non-private run."""
        privacy = self.privacy
        if privacy is None:
            return None
        sigma = privacy.noise_multiplier
        if sigma is not None:
            batch = self.training.expected_batch_size
            sigma = self.method.effective_noise_multiplier(sigma, batch)
        return self.mechanism.budget(privacy, sigma, self.evaluation_steps())

    def evaluation_steps(self) -> list[int]:
        """Return the steps after which metrics are taken: 0, then evenly spaced, T last."""
        count, steps = self.training.evaluations, self.steps
        return sorted({round(steps * i / count) for i in range(count + 1)})
