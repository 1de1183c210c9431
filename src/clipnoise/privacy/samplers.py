"""Samplers: which examples take part in a step. An accountant's ε holds for some of them only.

To add a sampler, write it, enter it here, and say in `participation_under` and in ACCOUNTANTS how
its batches are accounted.
"""

from __future__ import annotations

from typing import Literal, get_args

from clipnoise.lazy import Tensor, torch
from clipnoise.privacy.draws import Draws

SamplerName = Literal[
    "poisson", "truncated-poisson", "cyclic-poisson", "cyclic", "full", "fixed-size", "shuffled"
]
SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)


def start_sampler(
    name: SamplerName,
    generator: torch.Generator | None,
    *,
    examples: int,
    batch_size: int,
    sampling_rate: float,
    groups: int,
    largest_batch: int | None = None,
) -> Sampler:
    """Start a stream of batches.

    Args:
        name: which sampler.
        generator: a CPU stream of random numbers, used by nothing else; None draws from a
            cryptographic source.
        examples: n.
        batch_size: B, for batches of a fixed size.
        sampling_rate: the probability that an example is drawn in its group's turn.
        groups: how many groups take turns.
        largest_batch: K of "truncated-poisson".
    """
    if name == "fixed-size":
        return FixedSizeSampler(examples, batch_size, generator)
    if name == "shuffled":
        return ShuffledSampler(examples, batch_size, generator)
    if largest_batch is not None:
        return TruncatedPoissonSampler(examples, sampling_rate, largest_batch, generator)
    if groups == 1:
        return PoissonSampler(examples, sampling_rate, generator)
    return CyclicPoissonSampler(examples, groups, sampling_rate, generator)


class Sampler(Draws):
    """Base of all samplers: a stream of batches that can be saved and resumed.

    Batches are drawn on the CPU whatever the device, so that a seed means the same batches
    everywhere and for every method. An empty batch is a batch.

    Attributes:
        examples: n.
    """

    def __init__(self, examples: int, generator: torch.Generator | None) -> None:
        """Start the stream.

        Args:
            examples: n.
            generator: a CPU stream of random numbers, used by nothing else; None draws from a
                cryptographic source.

        Raises:
            ValueError: here and in all samplers, a value is out of range, or the generator is not
                on the CPU.
        """
        if examples < 0:
            raise ValueError(f"examples must not be negative, got {examples}")
        if generator is not None and generator.device.type != "cpu":
            raise ValueError(f"the generator must be on the CPU, got {generator.device}")
        super().__init__(generator)
        self.examples = examples

    def sample(self) -> Tensor:
        """Draw the next batch: sorted indices of examples, int64, shape (b,)."""
        raise NotImplementedError


class PoissonSampler(Sampler):
    """Each step takes each example independently with probability q: b ~ Binomial(n, q).

    One float64 uniform per example decides: its grid of 2^-53 keeps q to 16 digits, where float32
    (grid 2^-24) would be off by up to 6% of q at q = 1e-6. A million examples take about 8 ms.
    """

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


class TruncatedPoissonSampler(PoissonSampler):
    """Poisson sampling whose batches have at most K examples: of more, K are kept at random.

    For hardware that needs batches of one shape. It costs a little δ: see `truncated_epsilon`.
    """

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


class CyclicPoissonSampler(PoissonSampler):
    """Step t takes each example of group t mod b independently with probability q̃.

    The groups are fixed before training by a random permutation; their sizes differ by at most one.
    One group is the Poisson sampler; probability 1 is one fixed order, repeated.

    The group of an example must not depend on the other examples. With a permutation of the n
    positions this holds if a removed example leaves its position empty (zero-out), which is how
    add-remove is commonly understood for this sampler.

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", algorithm 2.
    """

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
        """Go to a saved position; the batches that follow are the same bit for bit.

        Raises:
            ValueError: the state is of a sampler over another number of examples.
        """
        if len(state["order"]) != self.examples:
            raise ValueError(f"the state has {len(state['order'])} examples, not {self.examples}")
        super().set_state(state)
        self._order = state["order"].clone()
        self._step = int(state["step"])


class FixedSizeSampler(Sampler):
    """Each step takes B of the n examples, every set of B equally likely, independently of others.

    Its analysis is for replacing an example, `fixed_size_epsilon`. The ε of an accountant for
    adding or removing one is nominal.
    """

    def __init__(self, examples: int, batch_size: int, generator: torch.Generator | None) -> None:
        """Start the stream at B ≤ n."""
        super().__init__(examples, generator)
        if not 0 <= batch_size <= examples:
            raise ValueError(f"batch_size must lie in 0 … {examples}, got {batch_size}")
        self.batch_size = batch_size

    def sample(self) -> Tensor:
        return self.permutation(self.examples)[: self.batch_size].sort().values


class ShuffledSampler(Sampler):
    """Epochs over a fresh random order, cut into batches of B examples; the last may be smaller.

    ε is not that of Poisson sampling at rate B/n, and can be far larger: see
    `shuffled_epsilon_at_least`. The ε of an accountant for Poisson sampling is nominal.
    """

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
