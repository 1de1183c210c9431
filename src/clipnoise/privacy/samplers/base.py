"""What every sampler is: a stream of batches, and what is known of the ε of such batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from clipnoise.kinds import as_sealed
from clipnoise.lazy import Tensor, torch
from clipnoise.privacy.accountants import ACCOUNTANTS, DEFAULT_ACCOUNTANT, AccountantName
from clipnoise.privacy.draws import Draws
from clipnoise.privacy.noise import IndependentNoise, NoiseCorrelation
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.units import Unit

if TYPE_CHECKING:
    from clipnoise.core.query import Adjacency


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """What decides in which steps a unit can take part, whoever draws.

    Attributes:
        unit: what is drawn, and n.
        expected_batch_size: B ≤ n.
        steps: T.
        largest_batch: the most units in a batch, for the samplers that cut batches.
        noise: how it is correlated across steps.
        accountant: whose analysis bounds ε.
    """

    unit: Unit
    expected_batch_size: float
    steps: int
    largest_batch: int | None = None
    noise: NoiseCorrelation = field(default_factory=IndependentNoise)
    accountant: AccountantName = DEFAULT_ACCOUNTANT

    @property
    def sampling_rate(self) -> float:
        """q = B/n."""
        return self.expected_batch_size / self.unit.count

    @property
    def epoch(self) -> int:
        """⌈n/B⌉, the number of steps of an epoch."""
        return math.ceil(self.unit.count / self.expected_batch_size)

    @cached_property
    def bands(self) -> int:
        """b of the noise: 1 for independent noise, T for a strategy without zeros."""
        return int(as_sealed(self.noise, "bands_over")(self.steps))


class Sampler(Draws):
    """Base of all samplers: a stream of batches that can be saved and resumed.

    Batches are drawn on the CPU whatever the device, so that a seed means the same batches
    everywhere and for every method. An empty batch is a batch.

    Attributes:
        id: its name in a study.
        proved: the accountants whose bound on ε is proven for its batches, by adjacency. What holds
            for add-remove also holds for users as units, and where a place stays empty.
        correlated: the noise that its batches may go with: "any"; "banded", of at most as many
            bands as there are groups; or None for independent noise only.
        turns: whether examples may take turns in groups.
        whole: whether an example takes part in every turn of its group, whoever accounts for it.
        waits: whether an example waits a random time between participations.
        truncated: whether a batch may lose examples.
        examples: n.
    """

    id: ClassVar[str]
    proved: ClassVar[Mapping[Adjacency, tuple[AccountantName, ...]]]
    correlated: ClassVar[str | None] = None
    turns: ClassVar[bool] = False
    whole: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    truncated: ClassVar[bool] = False

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

    def require_each(self, values: Tensor) -> None:
        """Refuse a saved state that is of a sampler over another number of examples.

        Args:
            values: what was saved of each example, shape (n,).

        Raises:
            ValueError: there are more or fewer than n.
        """
        if len(values) != self.examples:
            raise ValueError(f"the state has {len(values)} examples, not {self.examples}")

    def sample(self) -> Tensor:
        """Draw the next batch: sorted indices of examples, int64, shape (b,)."""
        raise NotImplementedError

    @classmethod
    def start(
        cls, of: Sampling, participation: Participation, generator: torch.Generator | None
    ) -> Sampler:
        """Start the stream of batches.

        Args:
            of: whose batches they are.
            participation: what follows from it.
            generator: a CPU stream of random numbers, used by nothing else; None draws from a
                cryptographic source.
        """
        raise NotImplementedError

    @classmethod
    def participation(cls, of: Sampling) -> Participation:
        """Return in which steps a unit can take part, and how often: by default at rate B/n.

        Raises:
            UserError: the sizes do not fit the sampler.
        """
        return cls._participation(of, of.sampling_rate)

    @staticmethod
    def _participation(
        of: Sampling,
        rate: float,
        *,
        groups: int = 1,
        truncation_probability: float = 0.0,
        examples: int | None = None,
    ) -> Participation:
        patterned = ACCOUNTANTS[of.accountant].patterned
        return Participation(
            groups=groups,
            sampling_rate=rate,
            steps=of.steps,
            truncation_probability=truncation_probability,
            affected_examples=of.unit.affected_examples,
            examples=examples,
            prefix_cost=1 if patterned else as_sealed(of.noise, "prefix_cost")(of.steps, groups),
            noise=of.noise if patterned else None,
        )

    @classmethod
    def noise(cls) -> str:
        """Return in words which noise its batches may go with."""
        return {
            "any": "any",
            "banded": "independent, or as many bands as groups",
            None: "independent",
        }[cls.correlated]

    @classmethod
    def depends_on_n(cls, accountant: AccountantName, affected_examples: int) -> bool:
        """Return whether the analysis needs n besides the sampling rate."""
        return False

    @classmethod
    def proves(cls, accountant: AccountantName, adjacency: Adjacency) -> bool:
        """Return whether an accountant's bound is proven for these batches and an adjacency."""
        alike: tuple[Adjacency, ...] = (adjacency,)
        if adjacency == "add-remove-user":
            alike = ("add-remove",)
        elif adjacency == "zero-out":
            alike = ("zero-out", "add-remove")
        return any(accountant in cls.proved.get(one, ()) for one in alike)

    @classmethod
    def adjacency(cls, accountant: AccountantName) -> Adjacency:
        """Return what an accountant's ε for single examples is about, with these batches.

        It is adding or removing one, or replacing one, or, where removing one would move the
        others to other batches, replacing one by nothing.
        """
        if ACCOUNTANTS[accountant].replaces:
            return "replace"
        in_place = cls.proves(accountant, "zero-out") and not cls.proves(accountant, "add-remove")
        return "zero-out" if in_place else "add-remove"
