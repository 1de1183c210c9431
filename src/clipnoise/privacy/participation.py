"""Participation: in which steps an example can take part, and what the steps cost it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from clipnoise.errors import UserError, unknown
from clipnoise.fields import STRICT, Count, Fraction, Natural, parse
from clipnoise.privacy.accountants import ACCOUNTANTS, AccountantName, check_accountant
from clipnoise.privacy.accountants.nodes import affected_examples
from clipnoise.privacy.accountants.poisson import (
    Rate,
    Releases,
    truncated_epsilon,
    truncation_probability,
)
from clipnoise.privacy.samplers import SAMPLERS, SamplerName


@dataclass(frozen=True, kw_only=True)
class Participation:
    """Groups of examples take turns; in its group's turn, each example takes part with one rate.

    One group is Poisson sampling. Rate 1 is a fixed order without amplification. The steps in which
    an example can take part are `groups` apart. With noise of at most that many bands they touch
    disjoint columns of the strategy, and T steps cost ⌈T/groups⌉ releases of the Poisson-subsampled
    Gaussian mechanism at σ. Noise of more bands needs rate 1. The strategy is scaled so that T
    steps, again, cost ⌈T/groups⌉ releases of the Gaussian mechanism at σ: see `fitted`. The first
    t < T steps cost ⌈t/groups⌉ releases, or more where `prefix_cost` is above 1.

    Attributes:
        groups: how many groups take turns.
        sampling_rate: the probability within the group; q·groups for an expected batch of q·n.
        steps: T.
        truncation_probability: of a step that draws more examples than its batch may have.
        affected_examples: how many per-example gradients one unit can change: 1, or K + 1 for a
            node of a graph.
        examples: n, if batches have a fixed size and the analysis depends on n.
        prefix_cost: by how much the first t < T steps may cost more than the participations in
            them; above 1 for tree noise only. T steps never do.

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", theorem 4.
    """

    __pydantic_config__: ClassVar = STRICT

    groups: Count = 1
    sampling_rate: Rate
    steps: Natural
    truncation_probability: Fraction = 0.0
    affected_examples: Count = 1
    examples: Count | None = None
    prefix_cost: Annotated[float, Ge(1)] = 1.0

    def releases(self, steps: int | None = None) -> int:
        """Return how many releases the first `steps` steps (all T by default) cost an example.

        It is the number of steps that the example can be in, but for `prefix_cost`.
        """
        every = -(-self.steps // self.groups)
        if steps is None:
            return every
        return min(every, math.ceil(-(-steps // self.groups) * self.prefix_cost))

    def epsilon(
        self,
        accountant: AccountantName,
        *,
        noise_multiplier: float,
        delta: float,
        steps: int | None = None,
    ) -> float:
        """Bound the ε spent by the first `steps` steps (all T by default).

        Args:
            accountant: whose analysis is used.
            noise_multiplier, delta: σ, relative to a strategy scaled for these groups, and δ.
            steps: t ≤ T.

        Returns:
            ε for adding or removing one example (or node); for replacing one, if that is what the
            accountant is about.

        Raises:
            UserError: the accountant cannot bound ε for these values, or one is out of range.
        """
        releases = self.releases(steps)
        if releases == 0:
            return 0.0

        def spent(delta: float) -> float:
            values = {
                "noise_multiplier": noise_multiplier,
                "sampling_rate": self.sampling_rate,
                "steps": releases,
                "delta": delta,
                "affected_examples": self.affected_examples,
                "examples": self.examples,
            }
            return ACCOUNTANTS[accountant].epsilon(parse(Releases, values))

        return truncated_epsilon(spent, delta, releases * self.truncation_probability)


def participation_under(
    sampler: SamplerName,
    *,
    examples: int,
    expected_batch_size: float,
    steps: int,
    bands: int = 1,
    accountant: AccountantName = "rdp",
    largest_batch: int | None = None,
    degree: int | None = None,
) -> Participation:
    """Work out the participation that a sampler gives, and check that the noise fits it.

    Args:
        sampler: "poisson" (everyone, every step), "cyclic-poisson" (as many groups as bands),
            "cyclic" (⌈n/B⌉ groups, each whole in its turn: epochs in one fixed order), "full"
            (B = n), "truncated-poisson" (Poisson; batches that are too large lose examples), or
            "fixed-size" and "shuffled". The last two are accounted as if they were Poisson, which
            makes ε nominal, unless `accountant` is one that covers them.
        examples: n.
        expected_batch_size: B ≤ n.
        steps: T.
        bands: b of the noise; 1 for independent noise, T for a strategy without zeros.
        accountant: "per-epoch" counts one participation an epoch without amplification. It covers
            "shuffled", too: an order that depends on no example can be thought of as public.
            "rdp-replace" is for "fixed-size" and replacing an example.
        largest_batch: the most examples in a batch of "truncated-poisson".
        degree: K, if the units are nodes of a graph.

    Raises:
        UserError: the accountant or the bands do not fit the sampler.

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", algorithm 2
    (cyclic-poisson); On Design Principles for Private Adaptive Optimizers, section 5.2 (cyclic).
    """
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS, key="sampler")
    affected = 1 if degree is None else affected_examples(degree)
    check_accountant(accountant, sampler, affected_examples=affected)
    if (largest_batch is None) == (sampler == "truncated-poisson"):
        raise UserError(
            "largest_batch: required for the sampler 'truncated-poisson' and not allowed "
            f"otherwise; got {largest_batch} with {sampler!r}."
        )
    if sampler == "full" and expected_batch_size != examples:
        raise UserError(
            f"sampler: 'full' takes every example in every step, so the expected batch size must "
            f"be {examples}, got {expected_batch_size:g}."
        )
    epoch = math.ceil(examples / expected_batch_size)  # steps
    _check_bands(bands, sampler, examples, expected_batch_size)
    rate, groups, truncated = expected_batch_size / examples, 1, 0.0
    if sampler == "cyclic" or accountant == "per-epoch":
        groups, rate = epoch, 1.0
    elif sampler == "cyclic-poisson":
        groups, rate = bands, bands * expected_batch_size / examples
    elif largest_batch is not None:
        truncated = truncation_probability(examples, rate, largest_batch)
    fixed_size = accountant == "rdp-replace" or (sampler == "fixed-size" and affected > 1)
    return Participation(
        groups=groups,
        sampling_rate=rate,
        steps=steps,
        truncation_probability=truncated,
        affected_examples=affected,
        examples=examples if fixed_size else None,
    )


def _check_bands(
    bands: int, sampler: SamplerName, examples: int, expected_batch_size: float
) -> None:
    """Refuse noise whose cost under a sampler is not known."""
    if bands == 1 or sampler in ("cyclic", "full"):
        return
    if sampler != "cyclic-poisson":
        raise UserError(
            f"sampler: {sampler!r} lets an example take part in steps next to each other. No "
            f"accountant covers that for noise whose strategy has {bands} bands. "
            "Allowed: cyclic-poisson, cyclic, full."
        )
    if bands * expected_batch_size > examples:
        most = int(examples // expected_batch_size)
        raise UserError(
            f"noise: it has {bands} bands, so the sampler 'cyclic-poisson' needs {bands} groups, "
            f"which have fewer examples than the expected batch size {expected_batch_size:g}. "
            f"Allowed: at most n/B = {most} bands (only kind banded has fewer bands than steps), "
            "or the sampler 'cyclic', which does not amplify."
        )
