"""The mechanism: everything that ε depends on, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from clipnoise.core.query import Adjacency, Query
from clipnoise.errors import UserError
from clipnoise.kinds import as_sealed
from clipnoise.privacy.budget import Budget, Privacy
from clipnoise.privacy.microbatches import MicroBatches
from clipnoise.privacy.noise import NoiseSource
from clipnoise.privacy.noise.optimised import in_run
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.queries import ClippedMean
from clipnoise.privacy.samplers import (
    SAMPLERS,
    Sampler,
    SamplerName,
    Sampling,
    check_accountant,
    sampler_class,
)
from clipnoise.privacy.units import Unit

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

ADDITIVE = ("add-remove", "add-remove-user", "zero-out")  # what the cost of a search is about


@dataclass(frozen=True, kw_only=True)
class Mechanism(Sampling):
    """T releases of a query on batches of units: what they cost, and what may be claimed of them.

    Attributes:
        query: what is released of a batch.
        sampler: how batches are drawn.
        microbatches: how examples are averaged before clipping.
    """

    query: Query = field(default_factory=ClippedMean)
    sampler: SamplerName = "poisson"
    microbatches: MicroBatches = field(default_factory=MicroBatches)

    @classmethod
    def asked_for(
        cls,
        privacy: Privacy | None,
        *,
        unit: Unit,
        size: float,
        steps: int,
        query: Query,
        learning_rate: object = None,
    ) -> Mechanism:
        """Return the mechanism of a run; one that is not private draws Poisson batches.

        Args:
            privacy: what is asked for.
            unit, steps, query: as in `Mechanism`.
            size: B.
            learning_rate: η, which noise may be optimised for: see `in_run`.
        """
        if privacy is None:  # RDP goes with every unit
            return cls(
                unit=unit, expected_batch_size=size, steps=steps, query=query, accountant="rdp"
            )
        return cls(
            unit=unit,
            expected_batch_size=size,
            steps=steps,
            query=query,
            sampler=privacy.sampler,
            largest_batch=privacy.largest_batch,
            noise=in_run(privacy.noise, learning_rate, steps),
            microbatches=privacy.microbatches,
            accountant=privacy.accountant,
        )

    @property
    def denominator(self) -> float:
        """The constant that a clipped sum is divided by: B, or the number of micro-batches."""
        return self.microbatches.count(self.expected_batch_size)

    @property
    def _drawn(self) -> type[Sampler]:
        return sampler_class(self.sampler)

    @cached_property
    def participation(self) -> Participation:
        """In which steps a unit can take part, and with what probability.

        Raises:
            UserError: accountant, sampler, noise and sizes do not fit each other.
        """
        affected = self.unit.affected_examples
        check_accountant(self.accountant, self.sampler, affected_examples=affected)
        if (self.largest_batch is None) == self._drawn.truncated:
            raise UserError(
                "largest_batch: required for the sampler 'truncated-poisson' and not allowed "
                f"otherwise; got {self.largest_batch} with {self.sampler!r}."
            )
        if self.bands > 1 and self._drawn.correlated is None:
            allowed = ", ".join(kind.id for kind in SAMPLERS.values() if kind.correlated)
            raise UserError(
                f"sampler: {self.sampler!r} lets an example take part in steps next to each other. "
                f"No accountant covers that for noise whose strategy has {self.bands} bands. "
                f"Allowed: {allowed}."
            )
        return self._drawn.participation(self)

    @property
    def adjacency(self) -> Adjacency:
        """The relation between neighbouring datasets under which ε holds."""
        declared = self.unit.adjacency(self.query.adjacency)
        proved = self._drawn.adjacency(self.accountant)
        stays = proved == "zero-out" or self.unit.stays
        if stays and declared in ("add-remove", "add-remove-user"):
            return "zero-out"
        return "replace" if proved == "replace" else declared

    @property
    def proved(self) -> bool:
        """Whether the accountant's bound is proven for these batches and this adjacency."""
        return self._drawn.proves(self.accountant, self.adjacency)

    @property
    def sensitivity_factor(self) -> float:
        """How far one unit moves the clipped sum, relative to what the query declares."""
        return self.unit.sensitivity_factor(self.query, self.microbatches)

    def budget(
        self, privacy: Privacy, noise_multiplier: float | None, at: Iterable[int] = ()
    ) -> Budget:
        """Return what σ is calibrated for.

        Args:
            privacy: the target, and δ.
            noise_multiplier: σ on the clipped sum, where it is given.
            at: the steps at which to report the ε spent so far.
        """
        if privacy.trials is not None and self.adjacency not in ADDITIVE:
            raise UserError(
                "privacy.trials: what a choice costs is known for adding or removing an example "
                f"(or user), and the adjacency is {self.adjacency!r}. Leave it out."
            )
        return Budget(
            epsilon=privacy.epsilon,
            noise_multiplier=noise_multiplier,
            delta=1 / self.unit.count if privacy.delta == "1/n" else float(privacy.delta),
            accountant=self.accountant,
            sampler=self.sampler,
            participation=self.participation,
            evaluation_steps=tuple(at),
            trials=privacy.trials,
        )

    def batches(self, generator: torch.Generator | None) -> Sampler:
        """Start the stream of batches; without a generator it is drawn from a secure source."""
        return self._drawn.start(self, self.participation, generator)

    def noise_source(self, generator: torch.Generator | None, like: torch.Tensor) -> NoiseSource:
        """Start the stream of noise, of vectors like `like`, as `NoiseSource` does."""
        start = as_sealed(self.noise, "source")
        source: NoiseSource = start(self.steps, self.participation.groups, generator, like)
        return source
