"""Poisson sampling, as it is, cut to a largest batch, or of everyone in every step."""

from __future__ import annotations

from typing import ClassVar

from clipnoise.errors import UserError
from clipnoise.lazy import Tensor, torch
from clipnoise.privacy.accountants.poisson import POISSON_ACCOUNTANTS, truncation_probability
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.samplers.base import Sampler, Sampling


class PoissonSampler(Sampler):
    """Each step takes each example independently with probability q: b ~ Binomial(n, q).

    One float64 uniform per example decides: its grid of 2^-53 keeps q to 16 digits, where float32
    (grid 2^-24) would be off by up to 6% of q at q = 1e-6. A million examples take about 8 ms.
    """

    id = "poisson"
    proved: ClassVar = {"add-remove": POISSON_ACCOUNTANTS, "add-remove-node": ("rdp",)}

    def __init__(
        self, examples: int, sampling_rate: float, generator: torch.Generator | None
    ) -> None:
        """Start the stream at q in [0, 1]."""
        super().__init__(examples, generator)
        if not 0 <= sampling_rate <= 1:
            raise ValueError(f"sampling_rate must lie in [0, 1], got {sampling_rate}")
        self.sampling_rate = sampling_rate

    def sample(self) -> Tensor:
        uniform = self.uniform(self.examples)
        return (uniform < self.sampling_rate).nonzero().squeeze(1)

    @classmethod
    def start(
        cls, of: Sampling, participation: Participation, generator: torch.Generator | None
    ) -> Sampler:
        return cls(of.unit.count, participation.sampling_rate, generator)


class TruncatedPoissonSampler(PoissonSampler):
    """Poisson sampling whose batches have at most K examples: of more, K are kept at random.

    For hardware that needs batches of one shape. It costs a little δ: see `truncated_epsilon`
    in `privacy/accountants/poisson.py`.
    """

    id = "truncated-poisson"
    proved: ClassVar = {"add-remove": POISSON_ACCOUNTANTS}
    truncated = True

    def __init__(
        self,
        examples: int,
        sampling_rate: float,
        largest_batch: int,
        generator: torch.Generator | None,
    ) -> None:
        """Start the stream at q in [0, 1] and K ≥ 0."""
        super().__init__(examples, sampling_rate, generator)
        if largest_batch < 0:
            raise ValueError(f"largest_batch must not be negative, got {largest_batch}")
        self.largest_batch = largest_batch

    def sample(self) -> Tensor:
        batch = super().sample()
        if len(batch) <= self.largest_batch:
            return batch
        kept = self.permutation(len(batch))[: self.largest_batch]
        return batch[kept].sort().values

    @classmethod
    def start(
        cls, of: Sampling, participation: Participation, generator: torch.Generator | None
    ) -> Sampler:
        assert of.largest_batch is not None
        rate = participation.sampling_rate
        return cls(of.unit.count, rate, of.largest_batch, generator)

    @classmethod
    def participation(cls, of: Sampling) -> Participation:
        rate, most = of.sampling_rate, of.largest_batch
        assert most is not None
        truncated = truncation_probability(of.unit.count, rate, most)
        return cls._participation(of, rate, truncation_probability=truncated)


class FullSampler(PoissonSampler):
    """Each step takes every example: B = n."""

    id = "full"
    proved: ClassVar = {
        "add-remove": (*POISSON_ACCOUNTANTS, "per-epoch"),
        "add-remove-node": ("rdp",),
    }
    correlated = "any"
    whole = True

    @classmethod
    def participation(cls, of: Sampling) -> Participation:
        examples, size = of.unit.count, of.expected_batch_size
        if size != examples:
            raise UserError(
                "sampler: 'full' takes every example in every step, so the expected batch size "
                f"must be {examples}, got {size:g}."
            )
        return super().participation(of)
