"""b-min-sep: after a participation, an example waits before it may take part again."""

from __future__ import annotations

from typing import ClassVar

from clipnoise.errors import UserError
from clipnoise.lazy import Tensor, torch
from clipnoise.privacy.noise import OwnNoise
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.samplers.base import Sampler, Sampling


class BMinSepSampler(Sampler):
    """Each example that was in none of the last b − 1 batches takes part with probability p.

    b is the number of bands of the noise, so that the participations of an example move different
    rows. With p = q/(1 − (b − 1)q), an example is in a batch as often as with Poisson sampling at
    q = B/n; how long it waits at first is drawn so that this holds in every step. Examples wait
    independently of one another, so removing one moves no other one to another batch. One band is
    Poisson sampling, and p = 1 is balls in bins with b steps an epoch.

    The accountant `monte-carlo` covers it with the noise of the package. The ε of the others, for
    Poisson sampling at rate B/n, is nominal, and they are refused for correlated noise.

    Source: Dong and Ganesh 2026, "Privacy Amplification for BandMF via b-Min-Sep Subsampling".
    """

    id = "b-min-sep"
    proved: ClassVar = {"add-remove": ("monte-carlo",)}
    correlated = "banded"
    waits = True

    def __init__(
        self, examples: int, groups: int, sampling_rate: float, generator: torch.Generator | None
    ) -> None:
        """Let examples wait, and start the stream at b ≥ 1 and p in [0, 1]."""
        super().__init__(examples, generator)
        if groups < 1:
            raise ValueError(f"groups must be at least 1, got {groups}")
        if not 0 <= sampling_rate <= 1:
            raise ValueError(f"sampling_rate must be in [0, 1], got {sampling_rate}")
        self.groups, self.sampling_rate = groups, sampling_rate
        # The stationary law: an example may take part, or it has taken part 1 … b − 1 steps ago.
        chances = torch.full((groups,), sampling_rate, dtype=torch.float64)
        chances[0] = 1.0
        reached = (chances / chances.sum()).cumsum(0)
        waiting = torch.searchsorted(reached, self.uniform(examples), right=True)
        self._waiting = waiting.clamp(max=groups - 1)  # for how many more steps

    def sample(self) -> Tensor:
        able = (self._waiting == 0).nonzero().squeeze(1)
        batch = able[self.uniform(len(able)) < self.sampling_rate]
        self._waiting = (self._waiting - 1).clamp(min=0)
        self._waiting[batch] = self.groups - 1
        return batch

    def get_state(self) -> dict[str, Tensor]:
        """Return how long each example still waits, and the position in the stream."""
        return {**super().get_state(), "waiting": self._waiting.clone()}

    def set_state(self, state: dict[str, Tensor]) -> None:
        self.require_each(state["waiting"])
        super().set_state(state)
        self._waiting = state["waiting"].clone()

    @classmethod
    def start(
        cls, of: Sampling, participation: Participation, generator: torch.Generator | None
    ) -> Sampler:
        return cls(of.unit.count, participation.groups, participation.sampling_rate, generator)

    @classmethod
    def participation(cls, of: Sampling) -> Participation:
        if of.accountant != "monte-carlo":
            if of.bands > 1:
                raise UserError(
                    f"accountant: {of.accountant!r} is for independent noise with the sampler "
                    f"{cls.id!r}. Allowed: monte-carlo."
                )
            return super().participation(of)
        if isinstance(of.noise, OwnNoise):
            raise UserError(
                "accountant: 'monte-carlo' is for the noise of the package, got the kind "
                f"{of.noise.id!r}. Allowed: the sampler 'cyclic-poisson'."
            )
        bands, rate = of.bands, of.sampling_rate
        if bands > 1 and bands * of.expected_batch_size > of.unit.count:
            raise UserError(
                f"noise: it has {bands} bands, so with the sampler {cls.id!r} an example takes "
                f"part in one of {bands} steps at the most, too seldom for batches of "
                f"{of.expected_batch_size:g} of {of.unit.count}. Allowed: at most n/B = "
                f"{int(of.unit.count // of.expected_batch_size)} bands (only kind banded has fewer "
                "bands than steps), or the sampler 'balls-in-bins'."
            )
        able = 1 - (bands - 1) * rate
        return cls._participation(of, min(1.0, rate / able), groups=bands)
