"""Batches of a fixed size: drawn anew at each step, or Poisson batches cut at a largest size."""

from __future__ import annotations

import math

import torch

from clipnoise.privacy.participation import overflow_rate
from clipnoise.privacy.samplers.poisson import PoissonSampler


class FixedSizeSampler:
    """Each step takes B of the n examples, every set of B equally likely, independently of others.

    Its analysis is for replacing an example, `fixed_size_epsilon`. For adding or removing one, as
    the accountants have it, a run with it has a nominal ε.
    """

    def __init__(self, examples: int, batch_size: int, generator: torch.Generator) -> None:
        """Start the stream.

        Args:
            examples: n.
            batch_size: B ≤ n.
            generator: a CPU stream of random numbers, used by nothing else.

        Raises:
            ValueError: a value is out of range, or the generator is not on the CPU.
        """
        if not 0 <= batch_size <= examples:
            raise ValueError(f"batch_size must lie in 0 … {examples}, got {batch_size}")
        if generator.device.type != "cpu":
            raise ValueError(f"the generator must be on the CPU, got {generator.device}")
        self.examples = examples
        self.batch_size = batch_size
        self._generator = generator

    def sample(self) -> torch.Tensor:
        """Draw the next batch: sorted indices, int64, shape (B,)."""
        order = torch.randperm(self.examples, generator=self._generator)
        return order[: self.batch_size].sort().values

    def get_state(self) -> dict[str, torch.Tensor]:
        """Return the position in the stream, for a checkpoint."""
        return {"generator": self._generator.get_state()}

    def set_state(self, state: dict[str, torch.Tensor]) -> None:
        """Go to a saved position; the batches that follow are the same bit for bit."""
        self._generator.set_state(state["generator"])


class TruncatedPoissonSampler(PoissonSampler):
    """Poisson sampling whose batches have at most K examples: of more, K are kept at random.

    Hardware that wants batches of one shape wants this. It costs a little δ: see
    `truncation_delta`.
    """

    def __init__(
        self, examples: int, sampling_rate: float, largest: int, generator: torch.Generator
    ) -> None:
        """Start the stream.

        Args:
            examples: n.
            sampling_rate: q in [0, 1].
            largest: K ≥ 0.
            generator: a CPU stream of random numbers, used by nothing else.

        Raises:
            ValueError: a value is out of range, or the generator is not on the CPU.
        """
        super().__init__(examples, sampling_rate, generator)
        if largest < 0:
            raise ValueError(f"largest must not be negative, got {largest}")
        self.largest = largest

    def sample(self) -> torch.Tensor:
        """Draw the next batch: sorted indices, int64, shape (b,) with b ≤ K."""
        batch = super().sample()
        if len(batch) <= self.largest:
            return batch
        kept = torch.randperm(len(batch), generator=self._generator)[: self.largest]
        return batch[kept].sort().values


def truncation_delta(
    epsilon: float, *, examples: int, sampling_rate: float, largest: int, steps: int
) -> float:
    """Return what truncation adds to δ: (1 + e^ε)·T·P[Binomial(n, q) > K].

    Args:
        epsilon: ε of the same steps with Poisson sampling.
        examples: n.
        sampling_rate: q.
        largest: K.
        steps: T.

    Source: Chua et al. 2024, "Scalable DP-SGD: Shuffling vs. Poisson Subsampling".
    """
    return (1 + math.exp(epsilon)) * steps * overflow_rate(examples, sampling_rate, largest)
