"""Ways to take a step's gradient: without privacy, by the suite's engines, by modes of Opacus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from clipnoise.core.clip_rules import HardClip
from clipnoise.core.clip_rules.smooth import AutomaticClip
from clipnoise.core.clipping import ClippedSum, Clipping
from clipnoise.core.state import Public, State
from clipnoise.core.step import step
from clipnoise.core.taken import LOSSES, GradientsAndCount
from clipnoise.gradients.dropout import Masks
from clipnoise.gradients.engine import VmapEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.gradients.factored.uses import Groups
from clipnoise.methods.privatize_then_adapt.dp_sgd import DPSGD
from clipnoise.privacy.noise import IndependentNoise, NoiseCorrelation
from clipnoise.privacy.noise.banded import BandedNoise
from clipnoise.privacy.noise.banded_inverse import BandedInverseNoise
from clipnoise.privacy.noise.buffered import BufferedNoise
from clipnoise.privacy.noise.cancelling import CancellingNoise
from clipnoise.privacy.noise.dense import DenseNoise
from clipnoise.privacy.noise.tree import TreeNoise

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.gradients.engine import GradientEngine, Losses

    Sums = Sequence[Tensor]  # in one vector, or one by one

CLIP_NORM, GROUP = 0.1, 4
QUERIES = ("plain", "scaled", "two iterates", "micro-batches of 4")
MECHANISMS = {
    "automatic clipping": Clipping(CLIP_NORM, rule=AutomaticClip()),
    "clipped per layer": Clipping(CLIP_NORM, rule=HardClip(per="layer")),
    "with a count": Clipping(CLIP_NORM, of=GradientsAndCount()),
    "losses": Clipping(CLIP_NORM, of=LOSSES),
}
WHOLE_STEP = "whole step"
STEPS = 256  # of correlated noise; a measurement takes no more
INDEPENDENT = IndependentNoise()
NOISE = {
    f"{WHOLE_STEP}, {noise.id} noise": noise
    for noise in (
        BandedNoise(bands=8),
        BandedInverseNoise(bands=8),
        CancellingNoise(cancelled=0.5),
        BufferedNoise(buffers=4),
        TreeNoise(),
        DenseNoise(),
    )
}
DROPOUT = 0.1
WITH_DROPOUT = f"{WHOLE_STEP}, dropout {DROPOUT:g}"
NON_PRIVATE = "non-private"
WITHOUT_NORMS = "factored, without norms"
NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 1e-6  # so small that the network hardly changes


@dataclass(frozen=True)
class Way:
    """One way to compute the sum of one query.

    Attributes:
        engine: what computes it.
        query: the query.
        prepare: takes network, losses, inputs and targets, and returns a function that computes
            the sum once.
        dropout: the rate in networks that have dropout; only they are measured if it is above 0.
    """

    engine: str
    query: str
    prepare: Callable[[nn.Module, Losses, Tensor, Tensor], Callable[[], Sums]]
    dropout: float = 0.0


class SummedLoss(nn.Module):
    """A loss with a `reduction` attribute, which Opacus' ghost clipping sets."""

    def __init__(self, losses: Losses) -> None:
        super().__init__()
        self.losses, self.reduction = losses, "sum"

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the losses, or their sum."""
        each = self.losses(outputs, targets)
        return each if self.reduction == "none" else each.sum()


def clipping_of(query: str, theta: Tensor, count: int) -> Clipping:
    """Return the clipping of a query."""
    if query in MECHANISMS:
        return MECHANISMS[query]
    if query == "scaled":
        return Clipping(CLIP_NORM, scale=torch.linspace(0.5, 2, len(theta), device=theta.device))
    if query == "two iterates":
        return Clipping(CLIP_NORM, weights=(0.9, 0.1))
    if query.startswith("micro"):
        groups = torch.arange(count, device=theta.device) // GROUP
        return Clipping(CLIP_NORM, group_size=GROUP, groups=groups)
    return Clipping(CLIP_NORM)


def by_engine(
    kind: type[GradientEngine],
    query: str,
    network: nn.Module,
    losses: Losses,
    inputs: Tensor,
    targets: Tensor,
) -> Callable[[], Sums]:
    """Take a query's sum by an engine of the suite."""
    engine = kind(network, losses)
    theta = engine.flat.theta.clone()
    clipping = clipping_of(query, theta, len(inputs))
    clipping = clipping.at(*[theta] * len(clipping.weights))
    return lambda: [engine.clipped_sum(inputs, targets, clipping)]


def without_norms(
    query: str, network: nn.Module, losses: Losses, inputs: Tensor, targets: Tensor
) -> Callable[[], Sums]:
    """Take a query's passes and sum by the factored engine, with 1 for every clipping factor."""
    engine = FactoredEngine(network, losses)
    theta, count = engine.flat.theta.clone(), len(inputs)
    clipping = clipping_of(query, theta, count)
    clipping = clipping.at(*[theta] * len(clipping.weights))
    ones, groups, masks = theta.new_ones(count), Groups.single(count), Masks.first(count)

    def run() -> Sums:
        total = torch.zeros_like(theta)
        places = engine.flat.split(total)
        scales: list[Tensor | None] = [None] * len(places)
        if clipping.scale is not None:
            scales = [*engine.flat.split(clipping.scale)]
        gradients = engine.gradients(inputs, targets, clipping, groups, masks)
        for gradient, scale, place in zip(gradients, scales, places, strict=True):
            gradient.add_weighted(ones, scale, place)
        return [total]

    return run


def taken(parameters: Sequence[nn.Parameter]) -> Sums:
    """Take the gradients away from parameters."""
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return [gradient for gradient in gradients if gradient is not None]


def non_private(
    network: nn.Module, losses: Losses, inputs: Tensor, targets: Tensor
) -> Callable[[], Sums]:
    """Take the gradient of the summed loss by `backward`, as a user would."""
    trained = [p for p in network.parameters() if p.requires_grad]

    def run() -> Sums:
        losses(network(inputs), targets).sum().backward()
        return taken(trained)

    return run


def whole_step(
    network: nn.Module,
    losses: Losses,
    inputs: Tensor,
    targets: Tensor,
    *,
    correlation: NoiseCorrelation = INDEPENDENT,
) -> Callable[[], Sums]:
    """Take a step of dp-sgd: clipped sum, noise and update."""
    engine = FactoredEngine(network, losses)
    theta = engine.flat.theta.clone()
    method, state = DPSGD(learning_rate=LEARNING_RATE, clip_norm=CLIP_NORM), State(theta)
    stream = torch.Generator(theta.device).manual_seed(0)
    noise = correlation.source(STEPS, STEPS, stream, theta)
    public = Public(
        noise_multiplier=NOISE_MULTIPLIER, expected_batch_size=len(inputs), total_steps=1
    )

    def run() -> Sums:
        state.theta = theta
        step(
            method,
            state,
            public,
            clipped_sum=lambda clipping: ClippedSum(engine.clipped_sum(inputs, targets, clipping)),
            noise=noise.next(),
        )
        return [state.theta]

    return run


def non_private_step(
    network: nn.Module, losses: Losses, inputs: Tensor, targets: Tensor
) -> Callable[[], Sums]:
    """Take a step of SGD with a fused optimizer, as a user would."""
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=LEARNING_RATE, fused=True)

    def run() -> Sums:
        losses(network(inputs), targets).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return trained

    return run


def opacus_instantiating(
    network: nn.Module,
    losses: Losses,
    inputs: Tensor,
    targets: Tensor,
    *,
    functorch: bool,
    whole: bool = False,
) -> Callable[[], Sums]:
    """Take the clipped sum, or a whole step, as Opacus does with hooks or functorch."""
    from opacus import GradSampleModule

    module = GradSampleModule(network, loss_reduction="sum", force_functorch=functorch)
    optimizer = _optimizer(module, "DPOptimizer")

    def run() -> Sums:
        losses(module(inputs), targets).sum().backward()
        if whole:
            optimizer.step()
            sums = optimizer.params
        else:
            optimizer.clip_and_accumulate()
            sums = [parameter.summed_grad for parameter in optimizer.params]
        optimizer.zero_grad(set_to_none=True)
        return sums

    return run


def opacus_ghost(
    network: nn.Module, losses: Losses, inputs: Tensor, targets: Tensor, *, whole: bool = False
) -> Callable[[], Sums]:
    """Take the clipped sum, or a whole step, by Opacus' ghost clipping: two backward passes."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    module = GradSampleModuleFastGradientClipping(
        network, loss_reduction="sum", max_grad_norm=CLIP_NORM, use_ghost_clipping=True
    )
    optimizer = _optimizer(module, "DPOptimizerFastGradientClipping")
    criterion = DPLossFastGradientClipping(
        module, optimizer, SummedLoss(losses), loss_reduction="sum"
    )

    def run() -> Sums:
        criterion(module(inputs), targets).backward()
        if not whole:
            return taken(optimizer.params)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return optimizer.params

    return run


def _optimizer(module: nn.Module, name: str) -> Any:
    from opacus import optimizers

    trained = [p for p in module.parameters() if p.requires_grad]
    return getattr(optimizers, name)(
        torch.optim.SGD(trained, lr=LEARNING_RATE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=1,
        loss_reduction="sum",
    )


WAYS = (
    Way(NON_PRIVATE, "plain", non_private),
    *(Way("factored", query, partial(by_engine, FactoredEngine, query)) for query in QUERIES),
    *(Way("factored", query, partial(by_engine, FactoredEngine, query)) for query in MECHANISMS),
    *(Way(WITHOUT_NORMS, query, partial(without_norms, query)) for query in QUERIES[:3]),
    *(Way("vmap", query, partial(by_engine, VmapEngine, query)) for query in QUERIES[:2]),
    Way("Opacus hooks", "plain", partial(opacus_instantiating, functorch=False)),
    Way("Opacus ghost", "plain", opacus_ghost),
    Way("Opacus functorch", "plain", partial(opacus_instantiating, functorch=True)),
    Way(NON_PRIVATE, WHOLE_STEP, non_private_step),
    Way("factored", WHOLE_STEP, whole_step),
    Way("factored", WITH_DROPOUT, whole_step, dropout=DROPOUT),
    *(
        Way("factored", query, partial(whole_step, correlation=noise))
        for query, noise in NOISE.items()
    ),
    Way("Opacus hooks", WHOLE_STEP, partial(opacus_instantiating, functorch=False, whole=True)),
    Way("Opacus ghost", WHOLE_STEP, partial(opacus_ghost, whole=True)),
)
PLAIN = tuple(way for way in WAYS if way.query == "plain" and way.engine != WITHOUT_NORMS)
WITHOUT_MECHANISMS = tuple(way for way in WAYS if way.query not in (*MECHANISMS, *NOISE))
