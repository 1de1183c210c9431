"""What a run starts from: its data, its network, its random streams of batches and of noise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from clipnoise.data.base import Splits
from clipnoise.privacy.noise import NoiseCorrelation
from clipnoise.privacy.noise.independent import NoiseSource
from clipnoise.privacy.noise.secure import secure_generator
from clipnoise.privacy.samplers.fixed_size import FixedSizeSampler
from clipnoise.privacy.samplers.poisson import (
    CyclicPoissonSampler,
    PoissonSampler,
    Sampler,
    TruncatedPoissonSampler,
)
from clipnoise.privacy.samplers.shuffled import ShuffledSampler
from clipnoise.seeds import derive, generator

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clipnoise.run.spec import RunSpec

WEIGHTS = Path("weights")


def load_data(spec: RunSpec, cache: Path) -> Splits:
    """Load what a run trains and is measured on; public examples may be another dataset's.

    Raises:
        UserError: a dataset is not prepared.
    """
    splits = spec.dataset.load(cache)
    if spec.public is None:
        return splits
    other = spec.public.load(cache)
    told = {f"public {name}": value for name, value in other.provenance.items()}
    provenance = {**splits.provenance, "public dataset": spec.public.id, **told}
    return replace(splits, public=other.train, provenance=provenance)


def noise_source(spec: RunSpec, theta: Tensor, device: str) -> NoiseSource:
    """Start the run's stream of noise, independent or correlated across steps."""
    noise = NoiseCorrelation() if spec.privacy is None else spec.privacy.noise
    stream = None if spec.secure_noise else generator("noise", spec.seed, device)
    return noise.source(spec.steps, stream, theta)


def sampler(spec: RunSpec) -> Sampler:
    """Start the run's stream of batches; the same for every method at the same seed.

    Not with secure noise: ε counts on it that nobody knows who was drawn.
    """
    participation = spec.participation
    draws = secure_generator() if spec.secure_noise else generator("sampling", spec.seed)
    name = "poisson" if spec.privacy is None else spec.privacy.sampler
    if name == "fixed-size":
        return FixedSizeSampler(spec.examples, spec.training.expected_batch_size, draws)
    if spec.privacy is not None and spec.privacy.largest_batch is not None:
        largest = spec.privacy.largest_batch
        return TruncatedPoissonSampler(spec.examples, participation.sampling_rate, largest, draws)
    if name == "shuffled":
        return ShuffledSampler(spec.examples, spec.training.expected_batch_size, draws)
    if participation.groups == 1:
        return PoissonSampler(spec.examples, participation.sampling_rate, draws)
    return CyclicPoissonSampler(
        spec.examples, participation.groups, participation.sampling_rate, draws
    )


def build_network(spec: RunSpec, weights: Path = WEIGHTS) -> nn.Module:
    """Build the run's network with initial values that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator("initialisation", spec.seed).initial_seed())
        return spec.model.build(spec.dataset.signature, weights)


@contextmanager
def dropout_stream(spec: RunSpec, step: int, device: str) -> Iterator[None]:
    """Start torch's own stream, from which layers with dropout draw, anew for a step.

    A run that goes on after a stop then draws what it would have drawn. Afterwards the stream is
    where it was.
    """
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
        torch.manual_seed(derive("dropout", spec.seed) + step)
        yield


def on_device(splits: Splits, device: str) -> Splits:
    """Move the data to the device once, when it is not the CPU."""
    if device == "cpu":
        return splits
    return replace(
        splits,
        train=splits.train.to(device),
        validation=splits.validation.to(device),
        test=splits.test.to(device),
        public=None if splits.public is None else splits.public.to(device),
    )
