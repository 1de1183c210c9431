"""Batches of a fixed size: drawn without replacement at each step, or cut from shuffled epochs."""

from __future__ import annotations

import torch

from clipnoise.privacy.samplers.poisson import Sampler


class FixedSizeSampler(Sampler):
    """Each step takes B of the n examples, every set of B equally likely, independently of others.

    Its analysis is for replacing an example, `fixed_size_epsilon`. The ε of an accountant for
    adding or removing one is nominal.
    """

    def __init__(self, examples: int, batch_size: int, generator: torch.Generator | None) -> None:
        """Start the stream.

        Args:
            examples: n.
            batch_size: B ≤ n.
            generator: a CPU stream of random numbers, used by nothing else; None draws from a
                cryptographic source.

        Raises:
            ValueError: a value is out of range, or the generator is not on the CPU.
        """
        super().__init__(examples, generator)
        if not 0 <= batch_size <= examples:
            raise ValueError(f"batch_size must lie in 0 … {examples}, got {batch_size}")
        self.batch_size = batch_size

    def sample(self) -> torch.Tensor:
        """Draw the next batch: sorted indices, int64, shape (B,)."""
        order = self._draws.permutation(self.examples)
        return order[: self.batch_size].sort().values


class ShuffledSampler(Sampler):
    """Epochs over a fresh random order, cut into batches of B examples; the last may be smaller.

    ε is not that of Poisson sampling at rate B/n, and can be far larger: see
    `shuffled_epsilon_at_least`. The ε of an accountant for Poisson sampling is nominal.
    """

    def __init__(self, examples: int, batch_size: int, generator: torch.Generator | None) -> None:
        """Start the stream.

        Args:
            examples: n.
            batch_size: B ≥ 1.
            generator: a CPU stream of random numbers, used by nothing else; None draws from a
                cryptographic source.

        Raises:
            ValueError: a value is out of range, or the generator is not on the CPU.
        """
        super().__init__(examples, generator)
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.batch_size = batch_size
        self._order = torch.empty(0, dtype=torch.int64)

    def sample(self) -> torch.Tensor:
        """Draw the next batch: sorted indices, int64, shape (b,) with b ≤ B."""
        if len(self._order) == 0:
            self._order = self._draws.permutation(self.examples)
        batch = self._order[: self.batch_size]
        self._order = self._order[self.batch_size :]
        return batch.sort().values

    def get_state(self) -> dict[str, torch.Tensor]:
        """Return the rest of the epoch and the position in the stream, for a checkpoint."""
        return {**super().get_state(), "order": self._order.clone()}

    def set_state(self, state: dict[str, torch.Tensor]) -> None:
        """Go to a saved position; the batches that follow are the same bit for bit."""
        super().set_state(state)
        self._order = state["order"].clone()
