"""Shuffled epochs."""

from __future__ import annotations

from typing import ClassVar

from clipnoise.lazy import Tensor, torch
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.samplers.base import Sampler, Sampling


class ShuffledSampler(Sampler):
    """Epochs over a fresh random order, cut into batches of B examples; the last may be smaller.

    ε is not that of Poisson sampling at rate B/n, and can be far larger: see
    `shuffled_epsilon_at_least` in `privacy/accountants/fixed_size.py`. The ε of an accountant for
    Poisson sampling is nominal. "per-epoch" covers it: an order that depends on no example can be
    thought of as public.
    """

    id = "shuffled"
    proved: ClassVar = {"zero-out": ("per-epoch",)}

    def __init__(self, examples: int, batch_size: int, generator: torch.Generator | None) -> None:
        """Start the stream at B ≥ 1."""
        super().__init__(examples, generator)
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.batch_size = batch_size
        self._order = torch.empty(0, dtype=torch.int64)

    def sample(self) -> Tensor:
        if len(self._order) == 0:
            self._order = self.permutation(self.examples)
        batch = self._order[: self.batch_size]
        self._order = self._order[self.batch_size :]
        return batch.sort().values

    def get_state(self) -> dict[str, Tensor]:
        """Return the rest of the epoch and the position in the stream, for a checkpoint."""
        return {**super().get_state(), "order": self._order.clone()}

    def set_state(self, state: dict[str, Tensor]) -> None:
        super().set_state(state)
        self._order = state["order"].clone()

    @classmethod
    def start(
        cls, of: Sampling, participation: Participation, generator: torch.Generator | None
    ) -> Sampler:
        return cls(of.unit.count, int(of.expected_batch_size), generator)

    @classmethod
    def participation(cls, of: Sampling) -> Participation:
        if of.accountant == "per-epoch":
            return cls._participation(of, 1.0, groups=of.epoch)
        return super().participation(of)
