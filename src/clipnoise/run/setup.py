"""What a run starts from: data, network, private units, random streams of batches and of noise."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from clipnoise.data.base import Examples, Splits
from clipnoise.gradients.engine import GradientEngine
from clipnoise.gradients.units import PhysicalBatch, PrivateUnits
from clipnoise.gradients.users import UserEngine
from clipnoise.privacy.microbatches import MicroBatchAssignment
from clipnoise.privacy.noise import NoiseSource
from clipnoise.privacy.samplers import Sampler
from clipnoise.seeds import Purpose, generator

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clipnoise.data.base import Dataset
    from clipnoise.data.signature import Signature
    from clipnoise.run.procedure import Procedure
    from clipnoise.run.spec import RunSpec

WEIGHTS = Path("weights")


@dataclass(frozen=True, kw_only=True)
class Material:
    """What is trained, and what it is trained on.

    Attributes:
        network: on its device, with its initial parameters.
        losses: (outputs, targets) → the loss of each example, shape (b,).
        examples: the private ones.
        signature: what an example looks like.
        users: the user of each private example, shape (n,), where users are protected.
        public: public examples, or None.
        dataset, cache: where side information may be counted, and the folder that it is in.
    """

    network: nn.Module
    losses: Callable[[Tensor, Tensor], Tensor]
    examples: Examples
    signature: Signature
    users: Tensor | None = None
    public: Examples | None = None
    dataset: Dataset | None = None
    cache: Path = Path()

    def to(self, device: str) -> Material:
        """Return the same on a device; the network itself is moved."""
        return replace(
            self,
            network=self.network.to(device),
            examples=self.examples.to(device),
            public=None if self.public is None else self.public.to(device),
        )


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


def stream(procedure: Procedure, purpose: Purpose, device: str = "cpu") -> torch.Generator | None:
    """Return the random stream of a purpose; None where noise is secure, and so has no seed."""
    return None if procedure.secure_noise else generator(purpose, procedure.seed, device)


def noise_source(procedure: Procedure, theta: Tensor) -> NoiseSource:
    """Start the stream of noise, independent or correlated across steps."""
    draws = stream(procedure, "noise", str(theta.device))
    return procedure.mechanism.noise_source(draws, procedure.method.query.noise_like(theta))


def sampler(procedure: Procedure) -> Sampler:
    """Start the stream of batches; the same for every method at the same seed.

    With secure noise it has no seed: amplification by sampling requires that batch membership stays
    secret.
    """
    return procedure.mechanism.batches(stream(procedure, "sampling"))


def microbatches(procedure: Procedure) -> MicroBatchAssignment | None:
    """Start the stream that puts examples into micro-batches; None where each is by itself."""
    mechanism = procedure.mechanism
    if mechanism.microbatches.size == 1:
        return None
    draws = stream(procedure, "micro-batches")
    return MicroBatchAssignment(mechanism.unit.count, round(mechanism.denominator), draws)


def build_network(spec: RunSpec, weights: Path = WEIGHTS) -> nn.Module:
    """Build the run's network with initial values that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator("initialisation", spec.seed).get_state())
        return spec.model.build(spec.dataset.signature, weights)


def named_device(name: str) -> str:
    """Return the name of a torch device; "auto" stands for a CUDA GPU if there is one."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def exact_arithmetic(device: str) -> None:
    """Let this process compute in full float32, and repeatably, where a GPU would rather be fast.

    Convolutions in TF32 keep ten bits: a clipped vector would be longer than C. Sums in an order
    that changes would make a resumed run differ from one that never stopped. Fused attention adds
    its gradients in such an order, and does so even where deterministic kernels are asked for.
    """
    if device.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)


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


def private_units(
    procedure: Procedure,
    material: Material,
    engine: GradientEngine,
    size: int,
    side_information: Tensor | None,
) -> PrivateUnits:
    """Return the private units that are trained on, examples or users.

    Args:
        procedure, material: what is done, and on what.
        engine: computes per-example gradients.
        size: most examples in memory at once.
        side_information: A, shape (d,), or None.
    """
    physical, views = PhysicalBatch(size), procedure.training.views
    local = procedure.method.local_training()
    if local is None:
        return PrivateUnits(engine, material.examples, physical, views)
    assert material.users is not None  # no procedure takes examples without
    scale = None
    if local.gamma is not None:
        assert side_information is not None
        scale = 1 / (side_information + local.gamma)
    count = procedure.unit.count
    users = UserEngine(engine, material.examples, material.users, count, local, scale)
    return PrivateUnits(users, users.units, physical, views)
