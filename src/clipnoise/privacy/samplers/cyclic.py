"""Groups that take turns: each example of a group with some probability, or the whole group."""

from __future__ import annotations

from typing import ClassVar

from clipnoise.errors import UserError
from clipnoise.lazy import Tensor, torch
from clipnoise.privacy.accountants.poisson import POISSON_ACCOUNTANTS
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.samplers.base import Sampler, Sampling
from clipnoise.privacy.samplers.poisson import PoissonSampler


class CyclicPoissonSampler(PoissonSampler):
    """Step t takes each example of group t mod b independently with probability q̃.

    The groups are fixed before training by a random permutation; their sizes differ by at most one.
    One group is the Poisson sampler; probability 1 is one fixed order, repeated.

    The group of an example must not depend on the other examples. With a permutation of the n
    positions this holds if a removed example leaves its position empty (zero-out), which is how
    add-remove is commonly understood for this sampler.

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", algorithm 2.
    """

    id = "cyclic-poisson"
    proved: ClassVar = {"zero-out": POISSON_ACCOUNTANTS}
    correlated = "banded"
    turns = True

    def __init__(
        self, examples: int, groups: int, sampling_rate: float, generator: torch.Generator | None
    ) -> None:
        """Assign b ≥ 1 groups and start the stream at q̃ in [0, 1]."""
        super().__init__(examples, sampling_rate, generator)
        if groups < 1:
            raise ValueError(f"groups must be at least 1, got {groups}")
        self.groups = groups
        self._order = self.permutation(examples)
        self._step = 0

    def group(self, index: int) -> Tensor:
        """Return the examples of one group: sorted indices, int64."""
        return self._order[index :: self.groups].sort().values

    def sample(self) -> Tensor:
        members = self.group(self._step % self.groups)
        self._step += 1
        return members[self.uniform(len(members)) < self.sampling_rate]

    def get_state(self) -> dict[str, Tensor]:
        """Return the groups and the position in the stream, for a checkpoint."""
        step = torch.tensor(self._step)
        return {**super().get_state(), "order": self._order.clone(), "step": step}

    def set_state(self, state: dict[str, Tensor]) -> None:
        self.require_each(state["order"])
        super().set_state(state)
        self._order = state["order"].clone()
        self._step = int(state["step"])

    @classmethod
    def start(
        cls, of: Sampling, participation: Participation, generator: torch.Generator | None
    ) -> Sampler:
        n, takes_part = of.unit.count, participation
        if takes_part.groups == 1:  # no order to draw
            return PoissonSampler(n, takes_part.sampling_rate, generator)
        return cls(n, takes_part.groups, takes_part.sampling_rate, generator)

    @classmethod
    def participation(cls, of: Sampling) -> Participation:
        bands, size = of.bands, of.expected_batch_size
        if bands > 1 and bands * size > of.unit.count:
            most = int(of.unit.count // size)
            raise UserError(
                f"noise: it has {bands} bands, so the sampler 'cyclic-poisson' needs {bands} "
                f"groups, which have fewer examples than the expected batch size {size:g}. "
                f"Allowed: at most n/B = {most} bands (only kind banded has fewer bands than "
                "steps), or the sampler 'cyclic', which does not amplify."
            )
        return cls._participation(of, bands * size / of.unit.count, groups=bands)


class CyclicSampler(CyclicPoissonSampler):
    """⌈n/B⌉ groups, each whole in its turn: epochs in one fixed random order.

    Source: On Design Principles for Private Adaptive Optimizers, section 5.2.
    """

    id = "cyclic"
    proved: ClassVar = {"zero-out": (*POISSON_ACCOUNTANTS, "per-epoch")}
    correlated = "any"
    whole = True

    @classmethod
    def participation(cls, of: Sampling) -> Participation:
        return cls._participation(of, 1.0, groups=of.epoch)
