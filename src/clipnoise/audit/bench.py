"""Test benches: networks and data on which one example can have any gradient, or a real one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from clipnoise.data.base import DenseExamples
from clipnoise.data.digits import Digits
from clipnoise.gradients.dropout import Masks
from clipnoise.gradients.engine import VmapEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.gradients.users import UserEngine
from clipnoise.models.dense import Logistic

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from clipnoise.core.clipping import Clipping
    from clipnoise.core.method import LocalTraining
    from clipnoise.gradients.engine import GradientEngine

TOKENS, USERS = 7, 40
FAR = 1e4


@dataclass(frozen=True)
class Bench:
    """A network under each engine, in float64 so that rounding cannot hide an excess.

    Attributes:
        engines: by name; each holds a network of its own.
        theta: where the network starts, shape (d,).
        pool: examples to draw from.
    """

    engines: dict[str, GradientEngine]
    theta: Tensor
    pool: DenseExamples

    @property
    def engine(self) -> GradientEngine:
        """The engine that works with per-example gradients."""
        return list(self.engines.values())[-1]

    def gradients(self, examples: DenseExamples, clipping: Clipping) -> Tensor:
        """Return the gradients of examples, or losses, at the points of a step: (k, b, d or 1)."""
        engine, points = self.engine, clipping.points
        if len(examples) == 0:
            return clipping.of.vector(self.theta).expand(len(points), 0, -1)
        losses = clipping.of.losses
        take = engine.per_example_losses if losses else engine.per_example_gradients
        given = examples.inputs, examples.targets
        masks = Masks.first(len(examples))
        return torch.stack([take(*given, theta, masks) for theta in points])


def least_squares(dimension: int) -> Bench:
    """Return a bench of linear regression, for which `realise` makes examples."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    theta = normal(dimension)
    pool = DenseExamples(normal(64, dimension), normal(64))
    return _bench(lambda: nn.Linear(dimension, 1, bias=False), theta, pool)


def realise(gradients: Tensor, theta: Tensor) -> DenseExamples:
    """Return linear regression examples that have given gradients at given parameters.

    (θ·x − y)x = g for x = g/‖g‖ and y = θ·x − ‖g‖. At nearby points the direction is the same.

    Args:
        gradients: shape (b, d).
        theta: shape (d,).
    """
    norms = gradients.norm(dim=1, keepdim=True)
    inputs = torch.where(norms > 0, gradients / norms.clamp(min=1e-300), gradients)
    return DenseExamples(inputs, inputs @ theta - norms.squeeze(1))


def mean_of_neighbourhood(dimension: int, pool: DenseExamples) -> Bench:
    """Return a bench of linear regression on the mean features of a node and its in-neighbours.

    Args:
        dimension: d, the number of features.
        pool: nodes as `clipnoise.data.graphs` hands them out, in float64.
    """

    class Mean(nn.Module):
        """Nodes with in-neighbours (b, 1 + K, features + 1) in, means (b, features) out."""

        def forward(self, nodes: Tensor) -> Tensor:
            return nodes[..., :-1].sum(dim=-2) / nodes[..., -1:].sum(dim=-2).clamp(min=1)

    draw = torch.Generator().manual_seed(0)
    theta = torch.randn(dimension, generator=draw, dtype=torch.float64)

    def build() -> nn.Module:
        return nn.Sequential(Mean(), nn.Linear(dimension, 1, bias=False))

    return _bench(build, theta, pool)


def digits(cache: Path) -> Bench:
    """Return a bench of logistic regression on the digits, from the folder of prepared datasets."""
    dataset = Digits()

    def build() -> nn.Module:
        return Logistic().build(dataset.signature, Path("weights"))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theta = parameters_to_vector(build().parameters()).detach().double()
    examples = dataset.load(cache).train.dense()
    pool = DenseExamples(examples.inputs.double(), examples.targets)
    return _bench(build, theta, pool, dataset.signature.task.losses)


def layers() -> Bench:
    """Return a bench of a network with an embedding, a convolution and dropout, on four tokens.

    It is no sequence of known layers, so that every engine runs it under vmap.
    """

    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + x.tanh()

    def build() -> nn.Module:
        tokens = (nn.Embedding(TOKENS, 6), nn.Unflatten(1, (1, 4)), nn.Conv2d(1, 2, 3), Doubled())
        return nn.Sequential(*tokens, nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 1))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theta = parameters_to_vector(build().parameters()).detach().double()
        pool = DenseExamples(torch.randint(TOKENS, (64, 4)), torch.randn(64).double())
    return _bench(build, theta, pool)


def users(training: LocalTraining) -> Bench:
    """Return a bench of users, some with gradients far out of range; its examples are users."""
    bench = least_squares(6)
    far = DenseExamples(bench.pool.inputs * FAR, bench.pool.targets * FAR)
    examples = join(bench.pool, far)
    owners = torch.arange(len(examples)) % USERS
    scale = None if training.gamma is None else 1 / (bench.theta.abs() + training.gamma)
    engine = UserEngine(bench.engine, examples, owners, USERS, training, scale)
    return Bench({engine.name: engine}, bench.theta, engine.units.dense())


def join(*parts: DenseExamples | None) -> DenseExamples:
    """Return several sets of examples as one, in order; None counts as empty."""
    there = [part for part in parts if part is not None]
    return DenseExamples(
        torch.cat([part.inputs for part in there]), torch.cat([part.targets for part in there])
    )


def take(examples: DenseExamples, rows: Tensor | slice) -> DenseExamples:
    """Return some of the examples."""
    return DenseExamples(examples.inputs[rows], examples.targets[rows])


def _squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(1) - targets).square() / 2


def _bench(
    build: Callable[[], nn.Module],
    theta: Tensor,
    pool: DenseExamples,
    losses: Callable[[Tensor, Tensor], Tensor] = _squares,
) -> Bench:
    """Return a bench with both engines, each with a network of its own."""
    engines: dict[str, GradientEngine] = {}
    for kind in (FactoredEngine, VmapEngine):
        engine = kind(build().double().train(), losses)
        engine.flat.load(theta)
        engines[kind.name] = engine
    return Bench(engines, theta, pool)
