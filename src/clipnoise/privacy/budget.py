"""The privacy budget of a run: the section `privacy` of its spec."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from clipnoise.fields import STRICT, Count, Positive, to_plain
from clipnoise.privacy.microbatches import Accounting, MicroBatches
from clipnoise.privacy.noise.spec import Noise
from clipnoise.privacy.participation import Analysis, Sampler


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The privacy budget of a run.

    Attributes:
        epsilon: the target; σ is calibrated to the smallest value that meets it.
        noise_multiplier: σ itself, instead of a target.
        delta: a number, or the rule "1/n".
        accountant: whose mathematics turns σ, q and T into ε.
        sampler: how batches are drawn.
        largest_batch: most examples in a batch of the sampler truncated-poisson.
        noise: how noise is correlated across steps; independent unless it says otherwise.
        microbatch_size: m, how many examples (on average) are averaged before clipping.
        microbatch_accounting: what the noise of micro-batches is scaled to, see `MicroBatches`.
        secure_noise: whether noise and batches come from a cryptographic source instead of the
            seed. Such a run can be neither repeated nor gone on with.
    """

    __pydantic_config__: ClassVar = STRICT

    epsilon: Positive | None = None
    noise_multiplier: Positive | None = None
    delta: Positive | Literal["1/n"] = "1/n"
    accountant: Analysis = "rdp"
    sampler: Sampler = "poisson"
    largest_batch: Count | None = None
    noise: Noise = field(default_factory=Noise)
    microbatch_size: Count = 1
    microbatch_accounting: Accounting = "corrected"
    secure_noise: bool = False

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give exactly one of epsilon and noise_multiplier")
        if not isinstance(self.delta, str) and self.delta >= 1:
            raise ValueError("delta must be below 1")
        _ = self.microbatches

    @property
    def microbatches(self) -> MicroBatches:
        """How examples are averaged before clipping, and what the noise is scaled to."""
        return MicroBatches(self.microbatch_size, self.microbatch_accounting)


def privacy_mapping(privacy: Privacy) -> dict[str, Any]:
    """Return a budget as plain data.

    What came later is left out where it is not used: runs keep the hash they had before.
    """
    values: dict[str, Any] = to_plain(privacy)
    if privacy.largest_batch is None:
        del values["largest_batch"]
    if privacy.microbatch_size == 1:
        del values["microbatch_size"], values["microbatch_accounting"]
    if not privacy.secure_noise:
        del values["secure_noise"]
    return values
