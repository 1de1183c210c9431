"""Neighbouring datasets: random ones, adversarial ones, and ones optimised to hurt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from clipnoise.audit.bench import join, realise, take
from clipnoise.audit.sensitivity import EXCESS, adversaries
from clipnoise.core.taken import GRADIENTS
from clipnoise.data.base import DenseExamples

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.audit.moments import Moment, Side

ROUNDS = 40  # of the climb; more find nothing new
OVERSIZED = 4  # times the expected batch size


@dataclass(frozen=True)
class Pair:
    """Two datasets that differ in one example.

    Attributes:
        kind: how they were made.
        rest: the examples in both.
        one: the example that only the first dataset has.
        other: what the second has in its place; None under add-remove adjacency.
        drawn: whether the batch holds the example that differs; when not, the datasets differ
            outside the batch, and no release may change at all.
    """

    kind: str
    rest: DenseExamples
    one: DenseExamples
    other: DenseExamples | None = None
    drawn: bool = True

    def sides(self) -> tuple[Side, Side]:
        """Return both datasets, each with the rows of its batch; the example that differs last."""

        def side(example: DenseExamples | None) -> Side:
            everyone = join(self.rest, example)
            return everyone, torch.arange(len(everyone if self.drawn else self.rest))

        return side(self.one), side(self.other)


def made_pairs(moment: Moment) -> Iterator[Pair]:
    """Yield pairs of linear regression datasets, where an example can have any gradient.

    The adjacency and the clipping of the method decide what hurts. The moment has a bench of
    `least_squares`.
    """
    draw = torch.Generator().manual_seed(moment.state.step)
    theta, clipping = moment.state.theta, moment.clipping
    if clipping.of.losses:  # a far gradient in any direction changes the loss far, both ways
        clipping = replace(clipping, of=GRADIENTS, weights=(1.0,), points=(theta,))
    b = max(2, round(moment.public.expected_batch_size))

    def normal(count: int, size: float = 1.0) -> Tensor:
        return size * torch.randn(count, len(theta), generator=draw, dtype=theta.dtype)

    axis = torch.zeros_like(theta)
    axis[int(torch.randint(len(theta), (1,), generator=draw))] = EXCESS
    others = {
        "random": normal(5),
        "random, small gradients": normal(5, 1e-3),
        "random, large gradients": normal(5, 1e3),
        "empty batch": normal(0),
        "oversized batch": normal(1).expand(OVERSIZED * b, -1) * EXCESS,
        "aligned batch": axis.expand(b, -1),
    }
    for kind, gradients in others.items():
        rest = realise(gradients, theta)
        taken = moment.bench.gradients(rest, clipping)
        hostile = [vector[0] for vector in adversaries(clipping, taken)]
        mild = [normal(1), normal(1, 1e3), gradients[:1] if len(gradients) else normal(1)]
        examples = [realise(gradient, theta) for gradient in [*hostile, *mild]]
        for number, example in enumerate(examples):
            name = f"{kind}, adversary" if number < len(hostile) else kind
            opposite = examples[number ^ 1 if number < len(hostile) else number - 1]
            yield _pair(moment, name, rest, example, opposite)
        yield _pair(moment, "outside the batch", rest, examples[0], examples[1], drawn=False)


def real_pairs(moment: Moment) -> Iterator[Pair]:
    """Yield pairs of real datasets: a real example gone, and wild versions of it come."""
    pool, draw = moment.bench.pool, torch.Generator().manual_seed(0)
    rows = torch.randperm(len(pool), generator=draw)
    rest, one, two = (take(pool, rows[a:b]) for a, b in ((0, 12), (12, 13), (13, 14)))
    if one.inputs.is_floating_point():
        wild = DenseExamples(one.inputs * EXCESS, one.targets)
        against = DenseExamples(-wild.inputs, one.targets)
    else:  # tokens
        wild = DenseExamples(one.inputs, one.targets * EXCESS)
        against = DenseExamples(one.inputs, -wild.targets)
    empty = take(pool, slice(0, 0))
    same = join(*[wild] * 40)
    yield _pair(moment, "real example", rest, one, two)
    yield _pair(moment, "real example, far out of range", rest, wild, against)
    yield _pair(moment, "real example, empty batch", empty, wild, against)
    yield _pair(moment, "real example, oversized batch", same, wild, against)
    yield _pair(moment, "outside the batch", rest, wild, against, drawn=False)


def _pair(
    moment: Moment,
    kind: str,
    rest: DenseExamples,
    one: DenseExamples,
    other: DenseExamples,
    *,
    drawn: bool = True,
) -> Pair:
    """Return neighbours under the adjacency of the method."""
    replaced = moment.subject.method.query.adjacency == "replace"
    return Pair(kind, rest, one, other if replaced else None, drawn)


def climb(start: Pair, harm: Callable[[Pair], float]) -> Pair:
    """Change a pair at random wherever that does more harm, many times over."""
    draw = torch.Generator().manual_seed(0)

    def shake(examples: DenseExamples, size: float) -> DenseExamples:
        parts = [
            part + size * part.abs().amax() * torch.randn(part.shape, generator=draw).to(part)
            if part.numel()
            else part
            for part in (examples.inputs, examples.targets)
        ]
        return DenseExamples(*parts)

    best, worst = start, harm(start)
    for number in range(ROUNDS):
        size = 10.0 ** -(number % 4)
        trial = Pair(
            "optimised to hurt",
            shake(best.rest, size),
            shake(best.one, size),
            None if best.other is None else shake(best.other, size),
        )
        found = harm(trial)
        if found > worst:
            best, worst = trial, found
    return replace(best, kind="optimised to hurt")
