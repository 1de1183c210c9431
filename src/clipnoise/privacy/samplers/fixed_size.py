"""Batches of a fixed size, drawn without replacement at each step."""

from __future__ import annotations

import torch

from clipnoise.privacy.samplers.poisson import Sampler


class FixedSizeSampler(Sampler):
    """Each step takes B of the n examples, every set of B equally likely, independently of others.

    Its analysis is for replacing an example, `fixed_size_epsilon`. The ε of an accountant for
    adding or removing one is nominal.
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
        super().__init__(examples, generator)
        if not 0 <= batch_size <= examples:
            raise ValueError(f"batch_size must lie in 0 … {examples}, got {batch_size}")
        self.batch_size = batch_size

    def sample(self) -> torch.Tensor:
        """Draw the next batch: sorted indices, int64, shape (B,)."""
        order = torch.randperm(self.examples, generator=self._generator)
        return order[: self.batch_size].sort().values
