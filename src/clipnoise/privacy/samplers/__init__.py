"""Samplers: which examples take part in a step. An accountant's ε holds for some of them only.

To add a sampler, write it, enter it here, and say in `participation_under` and in ACCOUNTANTS how
its batches are accounted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    import torch

    from clipnoise.privacy.samplers.poisson import Sampler

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
    # Loading torch takes seconds, and planning needs only the names above.
    from clipnoise.privacy.samplers import fixed_size, poisson

    if name == "fixed-size":
        return fixed_size.FixedSizeSampler(examples, batch_size, generator)
    if name == "shuffled":
        return fixed_size.ShuffledSampler(examples, batch_size, generator)
    if largest_batch is not None:
        return poisson.TruncatedPoissonSampler(examples, sampling_rate, largest_batch, generator)
    if groups == 1:
        return poisson.PoissonSampler(examples, sampling_rate, generator)
    return poisson.CyclicPoissonSampler(examples, groups, sampling_rate, generator)
