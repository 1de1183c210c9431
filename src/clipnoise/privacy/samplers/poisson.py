"""Samplers: which examples take part in a step. An accountant's ε holds for one of them only.

Besides them, the assignment of examples to micro-batches, which has no part in who is drawn.
"""

from __future__ import annotations

from typing import Protocol

import torch

from clipnoise.resumable import Resumable


class Sampler(Resumable, Protocol):
    """A stream of batches that can be saved and resumed."""

    def sample(self) -> torch.Tensor:
        """Draw the next batch: indices of examples, int64, shape (b,)."""
        ...


class PoissonSampler:
    """Each step takes each example independently with probability q.

    One float64 uniform per example decides: its grid of 2^-53 keeps q to 16 digits, where float32
    (grid 2^-24) would be off by up to 6% of q at q = 1e-6. A million examples take about 8 ms.
    Batches are drawn on the CPU whatever the device, so that a seed means the same batches
    everywhere and for every method. An empty batch is a batch.
    """

    def __init__(self, examples: int, sampling_rate: float, generator: torch.Generator) -> None:
        """Start the stream.

        Args:
            examples: n.
            sampling_rate: q in [0, 1].
            generator: a CPU stream of random numbers, used by nothing else.

        Raises:
            ValueError: q is not a probability, n is negative, or the generator is not on the CPU.
        """
        if not 0 <= sampling_rate <= 1:
            raise ValueError(f"sampling_rate must lie in [0, 1], got {sampling_rate}")
        if examples < 0:
            raise ValueError(f"examples must not be negative, got {examples}")
        if generator.device.type != "cpu":
            raise ValueError(f"the generator must be on the CPU, got {generator.device}")
        self.examples = examples
        self.sampling_rate = sampling_rate
        self._generator = generator

    def sample(self) -> torch.Tensor:
        """Draw the next batch: sorted indices, int64, shape (b,) with b ~ Binomial(n, q)."""
        uniform = torch.rand(self.examples, generator=self._generator, dtype=torch.float64)
        return (uniform < self.sampling_rate).nonzero().squeeze(1)

    def get_state(self) -> dict[str, torch.Tensor]:
        """Return the position in the stream, for a checkpoint."""
        return {"generator": self._generator.get_state()}

    def set_state(self, state: dict[str, torch.Tensor]) -> None:
        """Go to a saved position; the batches that follow are the same bit for bit."""
        self._generator.set_state(state["generator"])


class MicroBatchAssignment:
    """Each step puts every position into one of K micro-batches, uniformly and independently.

    All n positions are assigned, drawn or not, so that no example's place depends on another's.
    """

    def __init__(self, examples: int, count: int, generator: torch.Generator) -> None:
        """Start the stream.

        Args:
            examples: n.
            count: K = B/m ≥ 1.
            generator: a CPU stream of random numbers, used by nothing else.
        """
        self.examples = examples
        self.count = count
        self._generator = generator

    def arrange(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Assign the next step and bring its batch into the order of the micro-batches.

        Args:
            batch: the examples drawn in this step, indices of shape (b,).

        Returns:
            The indices in their new order, and the micro-batch of each; both int64 of shape (b,).
            Members of a micro-batch are next to each other, and so are micro-batches of one size.
        """
        assigned = torch.randint(self.count, (self.examples,), generator=self._generator)[batch]
        sizes = torch.bincount(assigned, minlength=self.count)[assigned]
        order = (sizes * self.count + assigned).argsort(stable=True)
        return batch[order], assigned[order]

    def get_state(self) -> dict[str, torch.Tensor]:
        """Return the position in the stream, for a checkpoint."""
        return {"generator": self._generator.get_state()}

    def set_state(self, state: dict[str, torch.Tensor]) -> None:
        """Go to a saved position; the assignments that follow are the same bit for bit."""
        self._generator.set_state(state["generator"])
