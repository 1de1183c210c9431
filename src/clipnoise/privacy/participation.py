"""Participation: when an example can take part, and what T steps with such turns cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from clipnoise.errors import UserError, unknown
from clipnoise.fields import STRICT, Count, Natural, Positive, parse
from clipnoise.privacy.accountants import Delta, Rate, epsilon

Sampler = Literal["poisson", "cyclic-poisson", "cyclic", "full", "fixed-size", "shuffled"]
SAMPLERS: tuple[Sampler, ...] = get_args(Sampler)


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

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", theorem 4.
    """

    __pydantic_config__: ClassVar = STRICT

    groups: Count
    sampling_rate: Rate
    steps: Natural

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
            ε under adding or removing one example.

        Raises:
            UserError: as `accountants.epsilon`.
        """
        releases = self.releases(steps)
        if self.sampling_rate < 1 or releases == 0:
            return epsilon(
                accountant,
                noise_multiplier=noise_multiplier,
                sampling_rate=self.sampling_rate,
                steps=releases,
                delta=delta,
            )
        return gaussian_epsilon(noise_multiplier / math.sqrt(releases), delta)


def participation(
    sampler: str, *, examples: int, expected_batch_size: float, steps: int, bands: int = 1
) -> Participation:
    """Work out the turns that a sampler gives, and check that the noise fits them.

    Args:
        sampler: "poisson" (everyone, every step), "cyclic-poisson" (as many groups as bands),
            "cyclic" (⌈n/B⌉ groups, each whole in its turn: epochs in one fixed order), "full"
            (B = n), or "fixed-size" and "shuffled", whose turns are taken for those of Poisson
            sampling and whose ε is nominal.
        examples: n.
        expected_batch_size: B ≤ n.
        steps: T.
        bands: b of the noise; 1 for independent noise, T for dense noise.

    Returns:
        The participation.

    Raises:
        UserError: the sampler is unknown, or an example can take part again within b steps.

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", algorithm 2
    (cyclic-poisson); On Design Principles for Private Adaptive Optimizers, section 5.2 (cyclic).
    """
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS, key="sampler")
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
        return Participation(groups=1, sampling_rate=rate, steps=steps)
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
