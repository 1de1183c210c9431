"""Cyclic Poisson sampling: groups take turns, each drawn from as Poisson sampling does."""

from __future__ import annotations

import torch


class CyclicPoissonSampler:
    """Step t takes each example of group t mod b independently with probability q̃.

    The groups are fixed before training by a random permutation; their sizes differ by at most one.
    One group is the Poisson sampler; probability 1 is one fixed order, repeated. Drawn on the CPU,
    as the Poisson sampler is.

    The group of an example must not depend on the other examples. With a permutation of the n
    positions this holds when a removed example leaves its position empty (zero-out), which is how
    add-remove is commonly read for it.

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", algorithm 2.
    """

    def __init__(
        self, examples: int, groups: int, sampling_rate: float, generator: torch.Generator
    ) -> None:
        """Assign the groups and start the stream.

        Args:
            examples: n.
            groups: b ≥ 1.
            sampling_rate: q̃ in [0, 1], the probability within a group.
            generator: a CPU stream of random numbers, used by nothing else.

        Raises:
            ValueError: a value is out of range, or the generator is not on the CPU.
        """
        if not 0 <= sampling_rate <= 1:
            raise ValueError(f"sampling_rate must lie in [0, 1], got {sampling_rate}")
        if examples < 0 or groups < 1:
            raise ValueError(f"need examples >= 0 and groups >= 1, got {examples} and {groups}")
        if generator.device.type != "cpu":
            raise ValueError(f"the generator must be on the CPU, got {generator.device}")
        self.examples = examples
        self.groups = groups
        self.sampling_rate = sampling_rate
        self._generator = generator
        self._order = torch.randperm(examples, generator=generator)
        self._step = 0

    def group(self, index: int) -> torch.Tensor:
        """Return the examples of one group: sorted indices, int64."""
        return self._order[index :: self.groups].sort().values

    def sample(self) -> torch.Tensor:
        """Draw the next batch: sorted indices, int64, shape (b,)."""
        members = self.group(self._step % self.groups)
        self._step += 1
        uniform = torch.rand(len(members), generator=self._generator, dtype=torch.float64)
        return members[uniform < self.sampling_rate]

    def get_state(self) -> dict[str, torch.Tensor]:
        """Return the groups and the position in the stream, for a checkpoint."""
        return {
            "generator": self._generator.get_state(),
            "order": self._order.clone(),
            "step": torch.tensor(self._step),
        }

    def set_state(self, state: dict[str, torch.Tensor]) -> None:
        """Go to a saved position; the batches that follow are the same bit for bit.

        Raises:
            ValueError: the state is of a sampler over another number of examples.
        """
        if len(state["order"]) != self.examples:
            raise ValueError(f"the state has {len(state['order'])} examples, not {self.examples}")
        self._generator.set_state(state["generator"])
        self._order = state["order"].clone()
        self._step = int(state["step"])
