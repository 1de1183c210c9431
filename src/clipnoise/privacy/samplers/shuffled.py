"""Shuffled batches: what most training code draws, and how much more than Poisson it can cost."""

from __future__ import annotations

import torch


class ShuffledSampler:
    """Epochs over a fresh random order, cut into batches of B examples; the last may be smaller.

    Its ε is not that of Poisson sampling at rate B/n, and can be far larger: see
    `shuffled_epsilon_at_least`. A run with it has a nominal ε.
    """

    def __init__(self, examples: int, batch_size: int, generator: torch.Generator) -> None:
        """Start the stream.

        Args:
            examples: n.
            batch_size: B ≥ 1.
            generator: a CPU stream of random numbers, used by nothing else.

        Raises:
            ValueError: a value is out of range, or the generator is not on the CPU.
        """
        if examples < 0 or batch_size < 1:
            raise ValueError(
                f"need examples >= 0 and batch_size >= 1, got {examples} and {batch_size}"
            )
        if generator.device.type != "cpu":
            raise ValueError(f"the generator must be on the CPU, got {generator.device}")
        self.examples = examples
        self.batch_size = batch_size
        self._generator = generator
        self._order = torch.empty(0, dtype=torch.int64)

    def sample(self) -> torch.Tensor:
        """Draw the next batch: sorted indices, int64, shape (b,) with b ≤ B."""
        if len(self._order) == 0:
            self._order = torch.randperm(self.examples, generator=self._generator)
        batch = self._order[: self.batch_size]
        self._order = self._order[self.batch_size :]
        return batch.sort().values

    def get_state(self) -> dict[str, torch.Tensor]:
        """Return the rest of the epoch and the position in the stream, for a checkpoint."""
        return {"generator": self._generator.get_state(), "order": self._order.clone()}

    def set_state(self, state: dict[str, torch.Tensor]) -> None:
        """Go to a saved position; the batches that follow are the same bit for bit."""
        self._generator.set_state(state["generator"])
        self._order = state["order"].clone()


def shuffled_epsilon_at_least(noise_multiplier: float, batches: int, delta: float) -> float:
    """Return an ε that one epoch of shuffled batches costs at least.

    The neighbouring datasets: every other example pulls one way, the one that differs the other
    way. With it, one of the T batches is off by 2, without it by 1, and the largest of the T
    released values tells. An attack, so a lower bound: no accountant can truthfully report less.

    Args:
        noise_multiplier: σ.
        batches: T, the number of batches in the epoch.
        delta: δ.

    Returns:
        ε ≥ 0.

    Source: Chua et al. 2024, "How Private are DP-SGD Implementations?".
    """
    import numpy as np
    from scipy.special import log_ndtr

    sigma = noise_multiplier
    threshold = np.linspace(-2 * sigma, 2 + 12 * sigma, 20_001)
    others = (batches - 1) * log_ndtr(threshold / sigma)
    with_it = -np.expm1(others + log_ndtr((threshold - 2) / sigma))
    without = -np.expm1(others + log_ndtr((threshold - 1) / sigma))
    usable = (with_it > delta) & (without > 1e-300)
    if not usable.any():
        return 0.0
    ratios = np.log(with_it[usable] - delta) - np.log(without[usable])
    return max(0.0, float(ratios.max()))
