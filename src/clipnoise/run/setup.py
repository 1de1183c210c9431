"""What a run starts from: data, network, private units, random streams of batches and of noise."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from clipnoise.core.clipping import zeros
from clipnoise.data.base import Examples, Splits
from clipnoise.gradients.engine import GradientEngine
from clipnoise.gradients.users import UserEngine
from clipnoise.privacy.microbatches import MicroBatchAssignment
from clipnoise.privacy.noise import NoiseSource
from clipnoise.privacy.samplers import Sampler
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
    public = {f"public {name}": value for name, value in other.provenance.items()}
    provenance = {**splits.provenance, "public dataset": spec.public.id, **public}
    return replace(splits, public=other.train, provenance=provenance)


def noise_source(spec: RunSpec, theta: Tensor, device: str) -> NoiseSource:
    """Start the run's stream of noise, independent or correlated across steps."""
    stream = None if spec.secure_noise else generator("noise", spec.seed, device)
    return spec.mechanism.noise_source(stream, zeros(spec.method.query.of, theta))


def sampler(spec: RunSpec) -> Sampler:
    """Start the run's stream of batches; the same for every method at the same seed.

    With secure noise it has no seed: amplification by sampling requires that batch membership stays
    secret.
    """
    stream = None if spec.secure_noise else generator("sampling", spec.seed)
    return spec.mechanism.batches(stream)


def build_network(spec: RunSpec, weights: Path = WEIGHTS) -> nn.Module:
    """Build the run's network with initial values that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator("initialisation", spec.seed).get_state())
        return spec.model.build(spec.dataset.signature, weights)


def step_key(spec: RunSpec, step: int) -> int:
    """Return the key of a step on private examples, which decides dropout masks and views.

    It follows from the seed and the step, so that a resumed run draws the same ones; with secure
    noise it is fresh and secret.
    """
    return secrets.randbits(64) if spec.secure_noise else derive("dropout", spec.seed, step)


def named_device(name: str) -> str:
    """Return the name of a torch device; "auto" stands for a CUDA GPU if there is one."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def exact_arithmetic(device: str) -> None:
    """Let this process compute in full float32, and repeatably, where a GPU would rather be fast.

    Convolutions in TF32 keep ten bits: a clipped vector would be longer than C. Sums in an order
    that changes would make a resumed run differ from one that never stopped.
    """
    if device.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)


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


@dataclass
class Units:
    """The private units of a run.

    Attributes:
        population: what the sampler's indices refer to: examples, or the numbers of users.
        engine: turns units into clipped sums.
        size: m of the micro-batches.
        assignment: the stream that puts examples into micro-batches; None where there are none.
    """

    population: Examples
    engine: GradientEngine
    size: int = 1
    assignment: MicroBatchAssignment | None = None

    def arrange(self, batch: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return a step's batch in the order to process it, and the micro-batch of each unit."""
        return (batch, None) if self.assignment is None else self.assignment.arrange(batch)

    def examples_in(self, batch: Tensor) -> int:
        """Return how many gradients of examples a step on these units takes."""
        engine = self.engine
        return engine.examples_of(batch) if isinstance(engine, UserEngine) else len(batch)


def private_units(
    spec: RunSpec, splits: Splits, engine: GradientEngine, side_information: Tensor | None
) -> Units:
    """Return the private units of a run.

    Args:
        spec: the run.
        splits: its data.
        engine: computes per-example gradients.
        side_information: A, shape (d,), or None.
    """
    mechanism, assignment = spec.mechanism, None
    groups, count = mechanism.microbatches, mechanism.unit.count
    if groups.size > 1:
        draws = None if spec.secure_noise else generator("micro-batches", spec.seed)
        assignment = MicroBatchAssignment(count, round(mechanism.denominator), draws)
    local = spec.method.local_training()
    if local is None:
        return Units(splits.train, engine, groups.size, assignment)
    assert splits.users is not None  # RunSpec takes no dataset without
    scale = None
    if local.gamma is not None:
        assert side_information is not None
        scale = 1 / (side_information + local.gamma)
    users = UserEngine(engine, splits.train, splits.users, count, local, scale)
    return Units(users.units, users, groups.size, assignment)
