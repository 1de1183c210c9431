"""Participation: when an example can take part, and what T steps with such turns cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, get_args

from annotated_types import Ge, Le

from clipnoise.errors import UserError, unknown
from clipnoise.fields import STRICT, Count, Natural, Positive, parse
from clipnoise.privacy import nodes
from clipnoise.privacy.accountants.fixed_size import fixed_size_epsilon
from clipnoise.privacy.accountants.poisson import AccountantError, Delta, Rate, epsilon
from clipnoise.privacy.nodes import node_epsilon

Sampler = Literal[
    "poisson", "truncated-poisson", "cyclic-poisson", "cyclic", "full", "fixed-size", "shuffled"
]
SAMPLERS: tuple[Sampler, ...] = get_args(Sampler)
Analysis = Literal["rdp", "prv", "pld", "per-epoch", "rdp-replace"]
ANALYSES: tuple[Analysis, ...] = get_args(Analysis)
Overflow = Annotated[float, Ge(0), Le(1)]
IN_EPOCHS = ("cyclic", "full", "shuffled")  # each example once an epoch, whatever the order


@dataclass(frozen=True, kw_only=True)
class Participation:
    """Groups of examples take turns; in its group's turn each example joins with one probability.

    One group is Poisson sampling. Probability 1 is a fixed order without amplification. An
    example's turns lie `groups` steps apart, so with noise of at most that many bands they touch
    disjoint columns of the strategy, and T steps cost ⌈T/groups⌉ releases of the Poisson-subsampled
    Gaussian mechanism at σ.

    Attributes:
        groups: how many groups take turns.
        sampling_rate: the probability within the group; q·groups for an expected batch of q·n.
        steps: T.
        overflow: probability that a step draws more examples than its batch may have.
        terms: how many of the gradients one unit can change: 1, or K + 1 for a node of a graph.
        examples: n, where a step draws batches of a fixed size and the analysis depends on n.

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", theorem 4.
    """

    __pydantic_config__: ClassVar = STRICT

    groups: Count
    sampling_rate: Rate
    steps: Natural
    overflow: Overflow = 0.0
    terms: Count = 1
    examples: Count | None = None

    def releases(self, steps: int | None = None) -> int:
        """Return how many turns the first `steps` steps (all T by default) give an example."""
        return -(-(self.steps if steps is None else steps) // self.groups)

    def epsilon(
        self, accountant: str, *, noise_multiplier: float, delta: float, steps: int | None = None
    ) -> float:
        """Bound the ε spent by the first `steps` steps (all T by default).

        Args:
            accountant: as in `accountants.epsilon`; not used at probability 1, where ε is exact.
            noise_multiplier: σ, relative to a strategy whose columns have norm at most 1.
            delta: δ.
            steps: t ≤ T.

        Returns:
            ε under adding or removing one example (or node), or with "rdp-replace" replacing one.

        Raises:
            UserError: as `accountants.epsilon`.
        """
        releases = self.releases(steps)

        def spent(delta: float) -> float:
            if releases == 0:
                return 0.0
            if accountant == "rdp-replace":
                assert self.examples is not None
                return fixed_size_epsilon(
                    noise_multiplier=noise_multiplier,
                    examples=self.examples,
                    batch_size=round(self.sampling_rate * self.examples),
                    steps=releases,
                    delta=delta,
                )
            if self.sampling_rate < 1 and self.terms > 1:
                return node_epsilon(
                    noise_multiplier=noise_multiplier,
                    terms=self.terms,
                    sampling_rate=self.sampling_rate,
                    examples=self.examples,
                    steps=releases,
                    delta=delta,
                )
            if self.sampling_rate < 1:
                return epsilon(
                    accountant,
                    noise_multiplier=noise_multiplier,
                    sampling_rate=self.sampling_rate,
                    steps=releases,
                    delta=delta,
                )
            return gaussian_epsilon(noise_multiplier / math.sqrt(releases), delta)

        return truncated_epsilon(spent, delta, releases * self.overflow)


def participation(
    sampler: str,
    *,
    examples: int,
    expected_batch_size: float,
    steps: int,
    bands: int = 1,
    accountant: str = "rdp",
    largest_batch: int | None = None,
    degree: int | None = None,
) -> Participation:
    """Work out the turns that a sampler gives, and check that the noise fits them.

    Args:
        sampler: "poisson" (everyone, every step), "cyclic-poisson" (as many groups as bands),
            "cyclic" (⌈n/B⌉ groups, each whole in its turn: epochs in one fixed order), "full"
            (B = n), "truncated-poisson" (Poisson, of too many examples some are left out), or
            "fixed-size" and "shuffled", whose turns are taken for those of Poisson sampling and
            whose ε is nominal then, unless an accountant of their own is asked for.
        examples: n.
        expected_batch_size: B ≤ n.
        steps: T.
        bands: b of the noise; 1 for independent noise, T for dense noise.
        accountant: "per-epoch" counts one turn of each example an epoch and no amplification, which
            covers "shuffled", too: an order that depends on no example can be thought of as public.
            "rdp-replace" is that of "fixed-size", for replacing an example.
        largest_batch: K of "truncated-poisson".
        degree: the bound on the out-degree of a node of a graph, see `for_nodes`; None for
            examples that are in no graph.

    Returns:
        The participation.

    Raises:
        UserError: the sampler is unknown, an example can take part again within b steps, or the
            accountant or the largest batch belongs to another sampler.

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", algorithm 2
    (cyclic-poisson); On Design Principles for Private Adaptive Optimizers, section 5.2 (cyclic).
    """
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS, key="sampler")
    if (accountant == "rdp-replace") and sampler != "fixed-size":
        raise UserError(
            f"accountant: 'rdp-replace' is for the sampler 'fixed-size', got {sampler!r}."
        )
    if accountant == "per-epoch" and sampler not in IN_EPOCHS:
        raise UserError(
            f"accountant: 'per-epoch' counts one turn of each example an epoch, but the sampler "
            f"{sampler!r} has no epochs. Allowed: {', '.join(IN_EPOCHS)}."
        )
    if (largest_batch is None) == (sampler == "truncated-poisson"):
        raise UserError(
            "largest_batch: goes with the sampler 'truncated-poisson', and only with it; "
            f"got {largest_batch} with {sampler!r}."
        )
    turns = _turns(sampler, examples, expected_batch_size, steps, bands, accountant, largest_batch)
    if degree is None:
        return turns
    return for_nodes(turns, sampler, accountant, degree=degree, examples=examples)


def _turns(
    sampler: str,
    examples: int,
    expected_batch_size: float,
    steps: int,
    bands: int,
    accountant: str,
    largest_batch: int | None,
) -> Participation:
    rate = expected_batch_size / examples
    if sampler == "cyclic":
        turns = math.ceil(examples / expected_batch_size)
        if bands > turns:
            raise UserError(
                f"noise.bands: {bands} bands need as many steps from one participation of an "
                f"example to its next; the sampler 'cyclic' leaves {turns}. "
                f"Allowed: at most {turns}."
            )
        return Participation(groups=turns, sampling_rate=1.0, steps=steps)
    if sampler != "cyclic-poisson":
        if sampler == "full" and expected_batch_size != examples:
            raise UserError(
                f"sampler: 'full' takes every example in every step, so the expected batch size "
                f"must be {examples}, got {expected_batch_size:g}."
            )
        if bands > 1:
            raise UserError(
                f"sampler: {sampler!r} lets an example take part in steps next to each other, but "
                f"noise with {bands} bands needs {bands} steps between them. "
                "Allowed: cyclic-poisson, cyclic."
            )
        if sampler == "shuffled" and accountant == "per-epoch":
            turns = math.ceil(examples / expected_batch_size)
            return Participation(groups=turns, sampling_rate=1.0, steps=steps)
        if accountant == "rdp-replace":
            return Participation(groups=1, sampling_rate=rate, steps=steps, examples=examples)
        overflow = 0.0 if largest_batch is None else overflow_rate(examples, rate, largest_batch)
        return Participation(groups=1, sampling_rate=rate, steps=steps, overflow=overflow)
    if bands * expected_batch_size > examples:
        most = int(examples // expected_batch_size)
        raise UserError(
            "noise.bands: the groups of the sampler 'cyclic-poisson' have n/b examples, for "
            f"{bands} bands fewer than the expected batch size {expected_batch_size:g}. "
            f"Allowed: at most n/B = {most}."
        )
    return Participation(
        groups=bands, sampling_rate=bands * expected_batch_size / examples, steps=steps
    )


def for_nodes(
    turns: Participation, sampler: str, accountant: str, *, degree: int, examples: int
) -> Participation:
    """Return what turns mean for the K + 1 gradients that one node of a graph can change.

    Args:
        turns: those of single examples.
        sampler: "poisson", "fixed-size" or "full".
        accountant: "rdp".
        degree: K.
        examples: n.

    Raises:
        UserError: the sampler or the accountant has no analysis for nodes.
    """
    if sampler not in nodes.SAMPLERS:
        raise UserError(
            f"sampler: no analysis covers {sampler!r} for nodes of a graph. "
            f"Allowed: {', '.join(nodes.SAMPLERS)}."
        )
    if accountant != nodes.ACCOUNTANT:
        raise UserError(
            f"accountant: {accountant!r} has no analysis for nodes of a graph. "
            f"Allowed: {nodes.ACCOUNTANT}."
        )
    counted = examples if sampler == "fixed-size" else None
    return replace(turns, terms=nodes.changed_terms(degree), examples=counted)


def overflow_rate(examples: int, sampling_rate: float, largest: int) -> float:
    """Return the probability that Poisson sampling draws more than K examples.

    Args:
        examples: n.
        sampling_rate: q.
        largest: K.
    """
    from scipy.stats import binom

    return float(binom.sf(largest, examples, sampling_rate))


def truncated_epsilon(spent: Callable[[float], float], delta: float, overflow: float) -> float:
    """Bound ε when steps that draw too many examples leave some out.

    The steps are (ε, δ′)-DP without truncation; with it they are (ε, δ′ + (1 + e^ε) T P)-DP, where
    P is the probability that a step draws too many. The smallest ε that keeps the sum at δ is
    approached from below, so the last step is rounded up.

    Args:
        spent: ε without truncation, by δ′.
        delta: δ.
        overflow: T·P.

    Returns:
        ε ≥ 0.

    Raises:
        AccountantError: truncation alone costs more than δ.

    Source: Chua et al. 2024, "Scalable DP-SGD: Shuffling vs. Poisson Subsampling".
    """
    value = spent(delta)
    if overflow == 0:
        return value
    for _ in range(100):
        left = delta - (1 + math.exp(min(value, 700.0))) * overflow
        if left <= 0:
            break
        following = spent(left)
        if following <= value:
            return value
        value = following * (1 + 1e-9)
    raise AccountantError(
        f"largest_batch: batches are cut so often ({overflow:.2g} expected times in all steps) "
        f"that this alone costs more than delta {delta:g}. Give a larger one."
    )


@dataclass(frozen=True, kw_only=True)
class _Gaussian:
    __pydantic_config__: ClassVar = STRICT

    noise_multiplier: Positive
    delta: Delta


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return the ε of one release of the Gaussian mechanism, exact to rounding (rounded up).

    k releases at σ, or one of sensitivity √k, are one release at σ/√k.

    Args:
        noise_multiplier: σ, relative to the sensitivity; above 0.
        delta: δ in (0, 1).

    Returns:
        ε ≥ 0.

    Raises:
        UserError: a value out of range.

    Source: Balle, Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy",
    theorem 8.
    """
    from scipy.optimize import brentq

    values = parse(_Gaussian, {"noise_multiplier": noise_multiplier, "delta": delta})
    ratio = 1 / values.noise_multiplier
    target = math.log(values.delta)

    def excess(value: float) -> float:
        return _log_delta(value, ratio) - target

    if excess(0.0) <= 0:
        return 0.0
    high = ratio**2 / 2 + ratio * math.sqrt(-2 * target)  # from the tail bound of the normal
    root = float(brentq(excess, 0.0, high, xtol=1e-14, rtol=1e-14))
    return root + 1e-12 * max(1.0, root)


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest σ at which one release of the Gaussian mechanism costs at most ε.

    Args:
        epsilon: ε > 0.
        delta: δ in (0, 1).

    Returns:
        σ, to a relative 1e-9, rounded up.

    Source: Balle, Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy",
    theorem 8.
    """
    low, high = -40.0, 40.0  # log σ
    while high - low > 1e-9:
        middle = (low + high) / 2
        enough = gaussian_epsilon(math.exp(middle), delta) <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return math.exp(high)


def _log_delta(value: float, ratio: float) -> float:
    """Return log δ(ε) = log(Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)) for μ = 1/σ."""
    from scipy.special import log_ndtr

    first = float(log_ndtr(ratio / 2 - value / ratio))
    second = value + float(log_ndtr(-ratio / 2 - value / ratio))
    if second >= first:  # equal but for rounding
        return -math.inf
    return first + math.log(-math.expm1(second - first))
