"""The empirical audit: guess from the releases which canaries took part, and refute the claim."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from clipnoise.audit.canaries import CanaryEngine, WithCanaries, as_users
from clipnoise.audit.curve import SHARES, Guesses, curve_of
from clipnoise.audit.findings import Bound, EmpiricalFinding, Settings
from clipnoise.audit.subject import SummedBy, digits_for, recorded_run, run_spec
from clipnoise.errors import UserError
from clipnoise.privacy.calibration import calibrate
from clipnoise.privacy.claim import claim
from clipnoise.run.spec import units_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from clipnoise.audit.curve import Curve
    from clipnoise.audit.subject import Release, Subject
    from clipnoise.core.clipping import Clipping
    from clipnoise.core.query import Query
    from clipnoise.gradients.units import PrivateUnits
    from clipnoise.privacy.budget import Budget
    from clipnoise.privacy.calibration import Calibration
    from clipnoise.run.spec import RunSpec

SCORE = (
    "log-likelihood ratio of a canary's coordinate over all steps, for each released value and for "
    "all together, real examples taken out, in units of the noise, whitened where noise is "
    "correlated"
)
FINAL_SCORE = (
    "change of a canary's coordinate from the first to the last parameters, less the change to "
    "which real examples lead without noise"
)
EPSILONS = np.concatenate([[0.0], np.geomspace(0.01, 50, 60)])  # points of a claimed curve
DOUBLING = 32  # how many σ are looked at between one and twice as much
LEAST, MOST = 1 / 8, 64  # σ that are looked at, as multiples of the one that is claimed
WORDS = "An audit can refute a guarantee. It can never prove one: a better attack may do better."


def audit(subject: Subject, cache: Path, settings: Settings | None = None) -> EmpiricalFinding:
    """Audit a method by its releases, and by the parameters that it ends with.

    The sampler, query, noise and calibration are the real ones.

    Args:
        subject: the method; its query adds noise.
        cache: the folder of prepared datasets.
        settings: how much to spend.

    Returns:
        The claim, the guesses, both bounds, the p-value of the claim over all guesses, and the
        verdict.

    Raises:
        ValueError: the method claims nothing.
    """
    chosen = settings or Settings()
    spec, calibration, runs = observe(subject, cache, chosen)
    by_release, by_parameters, coins = (
        np.concatenate(part, axis=-1) for part in zip(*runs, strict=True)
    )
    guesses = Guesses.by(np.vstack([by_release, by_parameters]), coins)
    of_releases = np.arange(len(guesses.made)) < len(by_release) * len(SHARES)
    shown = Refutation(guesses, calibration.budget, calibration.noise_multiplier, chosen.confidence)
    return EmpiricalFinding(
        method=subject.method.id,
        adjacency=spec.mechanism.adjacency,
        claim=claim(spec.mechanism),
        claimed_epsilon=calibration.epsilon,
        accountant=spec.mechanism.accountant,
        sampler=spec.mechanism.sampler,
        sampling_rate=spec.mechanism.sampling_rate,
        score=SCORE,
        settings=chosen,
        final_score=FINAL_SCORE,
        guesses=guesses,
        p_value=guesses.p_value(shown.curve(0)),
        bound=shown.bound(of_releases),
        final_bound=shown.bound(~of_releases),
        verdict="refuted" if shown.ways(0).any() else "not refuted",
        words=WORDS,
    )


def claimed_curve(budget: Budget, noise_multiplier: float) -> Curve:
    """Return the curve that a budget claims at σ; its one point (ε, δ) if no more is known."""
    try:
        deltas = budget.participation.deltas(
            budget.accountant, EPSILONS, noise_multiplier=noise_multiplier, least=budget.delta
        )
    except UserError:
        return curve_of([budget.spent(noise_multiplier)], [budget.delta])
    return curve_of(EPSILONS, deltas)


@dataclass(frozen=True)
class Refutation:
    """What guesses refute of a claim, and of the same claim with another σ.

    Attributes:
        guesses: all that are made, each of which has its share of the allowed error.
        budget: the claim, but for σ.
        noise_multiplier: the σ that is claimed.
        confidence: of all bounds and of the verdict together.
    """

    guesses: Guesses
    budget: Budget
    noise_multiplier: float
    confidence: float
    _curves: dict[int, Curve] = field(default_factory=dict)

    def sigma(self, number: int) -> float:
        """Return one of the σ that are looked at, in steps that double it; 0 is the claimed one."""
        return float(self.noise_multiplier * 2 ** (number / DOUBLING))

    def curve(self, number: int) -> Curve:
        """Return the curve that would be claimed with one of the σ."""
        if number not in self._curves:
            self._curves[number] = claimed_curve(self.budget, self.sigma(number))
        return self._curves[number]

    def ways(self, number: int) -> NDArray[np.bool_]:
        """Return which ways to guess refute the claim with one of the σ."""
        return self.guesses.refute(self.curve(number), confidence=self.confidence)

    def bound(self, among: NDArray[np.bool_]) -> Bound:
        """Return the smallest σ that is refuted by some of the ways to guess."""
        first, last = (round(DOUBLING * math.log2(end)) for end in (LEAST, MOST))
        numbers = range(first, last + 1)
        place = bisect_left(numbers, True, key=lambda number: bool(self.ways(number)[among].any()))
        if place == len(numbers):
            return Bound(0.0, None)
        sigma = self.sigma(numbers[place])
        return Bound(self.budget.spent(sigma), sigma)


def observe(
    subject: Subject, cache: Path, settings: Settings
) -> tuple[RunSpec, Calibration, list[tuple[np.ndarray[Any, Any], ...]]]:
    """Train runs with canaries.

    Returns:
        The spec of the first run, what its noise costs, and of each run the scores of its canaries
        by releases, of shape (k, m), those by final parameters, and the coins, of shape (m,).

    Raises:
        UserError: the method claims nothing, or there are more canaries than parameters.
    """
    if not subject.method.private:
        raise UserError(f"{subject.method.id}: makes no claim that an audit could refute.")
    spec = _spec(subject, settings)
    target = spec.budget
    assert target is not None
    calibration = calibrate(target)
    seeds = range(settings.seed, settings.seed + settings.runs)
    sigma = calibration.noise_multiplier
    return spec, calibration, [_one_run(subject, spec.at_seed(i), cache, sigma) for i in seeds]


def _spec(subject: Subject, settings: Settings) -> RunSpec:
    count = 1 if subject.method.query.of.losses else settings.canaries
    dataset = WithCanaries(inner=digits_for(subject), canaries=count)
    units = units_of(dataset, subject.method).count
    return run_spec(
        subject,
        noise_multiplier=settings.noise_multiplier,
        expected_batch_size=round(settings.sampling_rate * units),
        steps=settings.steps,
        delta=settings.delta,
        accountant=settings.accountant,
        dataset=dataset,
        seed=settings.seed,
    )


def _one_run(
    subject: Subject, spec: RunSpec, cache: Path, sigma: float
) -> tuple[np.ndarray[Any, Any], ...]:
    """Train with canaries; return both scores of each, by releases and by parameters, and its coin.

    A second set of parameters takes the same steps on what real examples add, without noise.
    """
    m = spec.dataset.canaries  # type: ignore[attr-defined]
    method, draw = subject.method, torch.Generator().manual_seed(10**6 + spec.seed)
    run, recorder = recorded_run(subject, spec, cache, sigma)
    coin = torch.rand(m, generator=draw) < 0.5
    d = len(method.query.of.vector(run.state.theta))
    if m > d:
        raise UserError(f"canaries: must be at most one for each of {d} parameters, not {m}.")
    places = torch.randperm(d, generator=draw)[:m]
    replaced = method.query.adjacency == "replace"
    engine = CanaryEngine(run.engine, coin, places, replaced=replaced)
    users = spec.dataset.user_unit() is not None

    def sums(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
        engine.known = method.query.of.zeros(run.state.theta)  # of the last sum of a step
        examples = as_users(units.examples.dense(), m) if users else units.examples
        return subject.sums(replace(units, engine=engine, examples=examples), indices, clipping)

    run.units = SummedBy.of(run.units, sums)
    state, seen = run.state.copy(), []
    for batch in run.batches():
        run.step(batch)
        engine.known = subject.ranks.total(engine.known)
        release = recorder.releases[-1]
        seen.append(_seen(method.query, release, engine, sigma))
        b, c = release.public.expected_batch_size, release.clipping.bound
        clean = method.query.values(engine.known / b, c)
        state.step += 1
        state.theta = state.theta + method.update(cast("Any", clean), state, release.public)
    scores = _scores(spec, torch.stack(seen), run.sampler)
    sign = 1 if users else -1  # users send changes of parameters, not gradients
    moved = run.evaluated() - method.evaluated(state.theta, state)
    return scores.numpy(), (sign * moved[places]).numpy(), coin.numpy()


def _seen(query: Query, release: Release, engine: CanaryEngine, sigma: float) -> Tensor:
    """Return what a step shows of each canary, float64 of shape (released vectors, 4, m).

    In each released vector: how far its coordinate is from where real examples have it; how far a
    canary that takes part moves it, and one with the opposite gradient; and the deviation of the
    noise. Canaries have coordinates of their own, so that all can be moved at once.
    """
    b, c = release.public.expected_batch_size, release.clipping.bound
    mean, length = engine.known / b, engine.known.numel() - query.of.extra
    moved = torch.zeros_like(mean)
    moved[:length] = engine.toward * c / b
    if release.clipping.scale is not None:  # a canary at a coordinate that is masked is as if out
        moved[:length] *= release.clipping.scale != 0
    clean, up, down = (query.values(mean + x, c) for x in (torch.zeros_like(mean), moved, -moved))
    rows = [
        torch.stack([value - zero, one - zero, other - zero, torch.full_like(zero, deviation)])
        for value, zero, one, other, deviation in zip(
            release.values,
            clean,
            up,
            down,
            [sigma * x.noise_factor * x.sensitivity for x in query.components(c, b)],
            strict=True,
        )
        if len(zero) >= length
    ]
    return torch.stack([row[:, :length] for row in rows]).double()[..., engine.places]


def _scores(spec: RunSpec, seen: Tensor, sampler: Any) -> Tensor:
    """Return Σ log p(y | in)/p(y | out) over steps for each canary.

    The first row is the sum over released values, which is the best score if each has the noise
    that is declared. Where there are several, a row of each follows: one that is released without
    noise is lost in a sum, but not by itself.

    y is whitened and projected: with C the strategy, ⟨C[:, t], C y⟩/‖C[:, t]‖² is what
    participation at step t adds, plus noise of standard deviation σ/‖C[:, t]‖, for participations
    at least b steps apart. Where they are closer the order is fixed, and the sum is the best score
    up to a constant per group. Where the turn of an example is secret, the likelihood is averaged
    over all turns.

    Args:
        spec: of the run.
        seen: what `_seen` returns of each step, shape (T, released vectors, 4, m).
        sampler: of the run.
    """
    participation, m = spec.mechanism.participation, seen.shape[-1]
    strategy = spec.mechanism.noise.strategy(spec.steps, participation.groups)
    matrix = np.eye(spec.steps) if strategy is None else strategy.matrix()
    columns = torch.as_tensor(matrix, dtype=seen.dtype)
    lengths = columns.square().sum(dim=0)[:, None]
    found = []
    for signals, inside, opposite, deviation in (one.unbind(1) for one in seen.unbind(1)):
        y = (columns.T @ (columns @ signals)) / lengths
        variance = deviation.square() / lengths
        evidence = _evidence(y, inside, variance, participation.sampling_rate)
        if spec.method.query.adjacency == "replace":
            evidence -= _evidence(y, opposite, variance, participation.sampling_rate)
        found.append(evidence)
    rows = torch.stack(found)
    if len(rows) > 1:
        rows = torch.cat([rows.sum(dim=0, keepdim=True), rows])
    groups = participation.groups
    if groups == 1 or (participation.sampling_rate < 1 and not sampler.turns):
        return rows.sum(dim=1)
    if not sampler.turns:
        turns = [rows[:, turn::groups].sum(dim=1) for turn in range(groups)]
        return torch.stack(turns).logsumexp(dim=0)
    steps = torch.arange(spec.steps)
    first = spec.mechanism.unit.count - m
    mine = torch.zeros_like(rows[0])
    for group in range(groups):
        members = sampler.group(group)
        mask = torch.zeros(m)
        mask[members[members >= first] - first] = 1
        mine[steps % groups == group] = mask.to(mine)
    return (rows * mine).sum(dim=1)


def _evidence(y: Tensor, effect: Tensor, variance: Tensor, rate: float) -> Tensor:
    """Return log(1 − q + q·N(y; effect, s²)/N(y; 0, s²)), without overflow."""
    ratio = (2 * y - effect) * effect / (2 * variance)
    if rate == 1:
        return ratio
    one = torch.ones_like(ratio)
    return torch.logaddexp(np.log1p(-rate) * one, np.log(rate) * one + ratio)
