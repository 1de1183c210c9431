"""What whole trajectories of every method cost: neighbouring data, and the same released values.

Given everything released before, a release is a Gaussian whose mean depends on the data. A run on
whole batches therefore costs one Gaussian mechanism, at the root of the summed squares of how far
one example moves each release, in units of the noise that is really added. The accountant's ε must
be the cost of at least that. It sees k iterates, clip norms and scales that change between phases,
several components, micro-batches and public scales as they are in the step itself.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from every_method import VARIANTS, build, one_per_family, public
from mechanisms import participation_under
from torch import Tensor

from clipnoise.core.clipping import ClippedSum, Clipping
from clipnoise.core.query import Query
from clipnoise.core.state import Public, State
from clipnoise.core.step import privatize, step
from clipnoise.gradients.clipping import clipped_sum
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.microbatches import MicroBatches

D, LAYERS = 4, (1, 3)
# What is released at a minimum is no Gaussian given what was released before; it has its own tests.
PRIVATE = [
    (name, options)
    for name, options in VARIANTS
    if (method := build(name, **options)).private and not method.query.of.spends
]


class Trajectory:
    """Steps of a method on two neighbouring datasets, with the releases of the first one.

    Attributes:
        cost: Σ (change of a released mean / standard deviation of its noise)².
    """

    def __init__(self, query: Query, draw: torch.Generator, microbatch: int) -> None:
        self.query, self.draw, self.microbatch = query, draw, microbatch
        self.cost = 0.0
        self.width = len(query.of.vector(torch.zeros(D)))
        self._neighbour: Tensor | None = None

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.draw, dtype=torch.float64)

    def clipped_sum(self, clipping: Clipping) -> ClippedSum:
        """Sum the vectors of a batch, and of the same batch without or with another example."""
        count = int(torch.randint(1, 8, (1,), generator=self.draw))
        size = 10.0 ** float(torch.randint(-2, 4, (1,), generator=self.draw))
        rows = [size * self.normal(count, self.width) for _ in clipping.weights]
        rows = [torch.cat([1e3 * one[-1:].sign() * one[-1:].abs() + 1, one]) for one in rows]
        other = [one.clone() for one in rows]
        keep = slice(0 if self.query.adjacency == "replace" else 1, None)
        for one in other:
            one[0] = -one[0]
        groups = torch.zeros(count + 1, dtype=torch.int64)
        here, there = clipping, clipping
        if self.microbatch > 1:
            here = replace(clipping, group_size=self.microbatch, groups=groups)
            there = replace(here, groups=groups[keep])
        self._neighbour = clipped_sum([one[keep] for one in other], there, LAYERS)
        return ClippedSum(clipped_sum(rows, here, LAYERS))

    def cross(
        self,
        total: ClippedSum,
        query: Query,
        clipping: Clipping,
        noise: Any,
        constants: Public,
    ) -> Any:
        """Release as in training, and add up how far the neighbour's means are from the others."""
        assert self._neighbour is not None
        none = [torch.zeros_like(normal) for normal in noise]
        one = [torch.ones_like(normal) for normal in noise]
        here = privatize(total, query, clipping, none, constants)
        noisy = privatize(total, query, clipping, one, constants)
        there = privatize(ClippedSum(self._neighbour), query, clipping, none, constants)
        for mean, with_noise, other in zip(here, noisy, there, strict=True):
            deviation = float((with_noise - mean).abs().max())
            self.cost += float((mean - other).norm() / deviation) ** 2
        return privatize(total, query, clipping, noise, constants)


@pytest.mark.parametrize(("name", "options"), one_per_family(PRIVATE))
def test_no_trajectory_costs_more_than_the_accountant_says(
    name: str, options: dict[str, Any]
) -> None:
    draw = np.random.default_rng(len(name))
    largest = 0.0
    for number in range(6):
        optimizer = build(name, **options)
        steps, microbatch = int(draw.integers(1, 13)), 4 if number % 3 == 2 else 1
        sigma, delta = float(10 ** draw.uniform(-1, 2)), float(10 ** draw.uniform(-12, -2))
        size = float(draw.integers(1, 20))
        run = Trajectory(optimizer.query, torch.Generator().manual_seed(number), microbatch)
        state = State(torch.zeros(D, dtype=torch.float64))
        factor = MicroBatches(microbatch).sensitivity_factor(optimizer.query)
        drawn = len(optimizer.query.noise_like(state.theta))
        for t in range(1, steps + 1):
            constants = public(optimizer, D, sigma=sigma, expected_batch_size=size, seed=t)
            step(
                optimizer,
                state,
                replace(constants, sensitivity_factor=factor, total_steps=steps),
                clipped_sum=run.clipped_sum,
                noise=[run.normal(drawn) for _ in range(optimizer.query.draws)],
                cross=run.cross,
            )
        parts = participation_under("full", examples=9, expected_batch_size=9, steps=steps)
        printed = parts.epsilon("rdp", noise_multiplier=sigma, delta=delta)
        assert gaussian_epsilon(1 / math.sqrt(run.cost), delta) <= printed * (1 + 1e-9)
        largest = max(largest, run.cost * sigma**2 / steps)
    assert largest > 0.1  # otherwise the noise is wasted, or nothing is moved
