"""Batches of a fixed size."""

from __future__ import annotations

from typing import ClassVar

from clipnoise.lazy import Tensor, torch
from clipnoise.privacy.accountants import AccountantName
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.samplers.base import Sampler, Sampling


class FixedSizeSampler(Sampler):
    """Each step takes B of the n examples, every set of B equally likely, independently of others.

    Its analysis is for replacing an example: `fixed_size_epsilon` in
    `privacy/accountants/fixed_size.py`. The ε of an accountant for adding or removing one is
    nominal.
    """

    id = "fixed-size"
    proved: ClassVar = {"replace": ("rdp-replace",), "add-remove-node": ("rdp",)}

    def __init__(self, examples: int, batch_size: int, generator: torch.Generator | None) -> None:
        """Start the stream at B ≤ n."""
        super().__init__(examples, generator)
        if not 0 <= batch_size <= examples:
            raise ValueError(f"batch_size must lie in 0 … {examples}, got {batch_size}")
        self.batch_size = batch_size

    def sample(self) -> Tensor:
        return self.permutation(self.examples)[: self.batch_size].sort().values

    @classmethod
    def start(
        cls, of: Sampling, participation: Participation, generator: torch.Generator | None
    ) -> Sampler:
        return cls(of.unit.count, int(of.expected_batch_size), generator)

    @classmethod
    def participation(cls, of: Sampling) -> Participation:
        counted = cls.depends_on_n(of.accountant, of.unit.affected_examples)
        examples = of.unit.count if counted else None
        return cls._participation(of, of.sampling_rate, examples=examples)

    @classmethod
    def depends_on_n(cls, accountant: AccountantName, affected_examples: int) -> bool:
        return affected_examples > 1 or cls.adjacency(accountant) == "replace"
