"""Sums of the factored engine respect the clip norm, for long gradients in float32 too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clipnoise.core.clip_rules import HardClip
from clipnoise.core.clip_rules.smooth import AutomaticClip
from clipnoise.core.clipping import Clipping
from clipnoise.data.signature import Signature
from clipnoise.gradients.factored.embedding import Lookup
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.gradients.factored.linear import Outer, SingleOuter
from clipnoise.gradients.factored.uses import Groups, ParameterGradient, Use
from clipnoise.models.dense import Logistic

C = 0.1
PLANS: dict[str, Callable[[Tensor], Clipping]] = {
    "plain": lambda u: Clipping(C),
    "scaled": lambda u: Clipping(C, scale=0.1 + u),
    "moved": lambda u: Clipping(C, offset=1e-4 * (u - 0.5)),
    "two iterates": lambda u: Clipping(C, weights=(0.9, 0.1)),
    "two iterates that pull apart": lambda u: Clipping(C, weights=(1.0, -1.0)),
    "scaled, two iterates": lambda u: Clipping(C, weights=(0.9, 0.1), scale=0.1 + u),
    "per layer": lambda u: Clipping(C, rule=HardClip(per="layer")),
    "automatic": lambda u: Clipping(C, rule=AutomaticClip(gamma=1e-9)),
    "micro-batch": lambda u: Clipping(C, group_size=3, groups=torch.zeros(3, dtype=torch.int64)),
}


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


@pytest.mark.quick(plan_name=["moved", "scaled, two iterates", "per layer"])
@pytest.mark.parametrize("plan_name", PLANS)
def test_five_million_parameters_clip_to_the_clip_norm(plan_name: str) -> None:
    draws = torch.Generator().manual_seed(0)
    engine = FactoredEngine(
        Logistic().build(Signature("features", (10_000,), 500), Path("weights")), losses
    )
    theta = 0.01 * torch.randn(engine.flat.theta.shape, generator=draws)
    u = torch.rand(theta.shape, generator=draws)
    plan = PLANS[plan_name](u)
    count = 1 if plan.groups is None else len(plan.groups)
    inputs = torch.randn(count, 10_000, generator=draws).exp()
    targets = torch.arange(count)
    thetas = [theta, 0.97 * theta][: len(plan.weights)]
    norm = float(engine.clipped_sum(inputs, targets, plan.at(*thetas)).double().norm())
    assert norm <= C * (1 + 1e-6)
    # What cancels is clipped a little more, as far as its rounding may have lowered the norm.
    assert norm >= C * (1 - (1e-2 if "apart" in plan_name else 1e-5))


def cancelling(shape: tuple[int, ...]) -> Tensor:
    """Draw rows in pairs that are opposite but for a small rest."""
    draws = torch.Generator().manual_seed(1)
    half = 1e3 * torch.randn(shape, generator=draws)
    return torch.cat([half, 0.1 * torch.randn(shape, generator=draws) - half], dim=1)


def outer(count: int) -> tuple[Use, Tensor]:
    right = cancelling((count, 4, 40))
    left = torch.randn(count, 4, 50, generator=torch.Generator().manual_seed(2)).repeat(1, 2, 1)
    return Outer(left, right), left.double().mT @ right.double()


def lookup(count: int) -> tuple[Use, Tensor]:
    right = cancelling((count, 4, 40))
    ids = torch.arange(4).repeat(count, 2)
    gradients = torch.zeros(count, 100, 40, dtype=torch.float64)
    gradients.scatter_add_(1, ids.unsqueeze(2).expand_as(right), right.double())
    return Lookup(ids, right, 100), gradients


@pytest.mark.parametrize("family", [outer, lookup])
def test_norms_are_never_too_low_where_rows_cancel(
    family: Callable[[int], tuple[Use, Tensor]],
) -> None:
    use, gradients = family(200)
    true = gradients.square().sum(dim=(1, 2))
    squares, slack = ParameterGradient([use], Groups.single(200)).squared_norms(None)
    assert (squares + slack >= true * (1 - 1e-6)).all()


@pytest.mark.parametrize("width", [3, 40, 1000, 30_000])
def test_norms_of_single_outer_products_are_never_too_low(width: int) -> None:
    """Their slack is part of the value, because nothing cancels in them."""
    draws = torch.Generator().manual_seed(0)
    left, right = (torch.randn(50, d, generator=draws).exp() for d in (7, width))
    use = SingleOuter(left, right)
    true = left.double().square().sum(dim=1) * right.double().square().sum(dim=1)
    squares, slack = ParameterGradient([use], Groups.single(50)).squared_norms(None)
    assert slack is None
    assert (squares >= true).all()
    assert (squares <= true * (1 + 2e-6)).all()


def test_slack_of_outer_products_that_others_may_cancel_is_kept() -> None:
    draws = torch.Generator().manual_seed(0)
    left, right = torch.randn(9, 5, generator=draws), torch.randn(9, 30, generator=draws)
    near = right + 1e-4 * torch.randn(right.shape, generator=draws)
    uses = [SingleOuter(left, right), SingleOuter(-left, near)]
    squares, slack = ParameterGradient([*uses], Groups.single(9)).squared_norms(None)
    rest = left.double().unsqueeze(2) * (right.double() - near.double()).unsqueeze(1)
    assert slack is not None
    assert (squares + slack >= rest.square().sum(dim=(1, 2)) * (1 - 1e-6)).all()


def test_slack_of_a_single_outer_product_is_counted_once() -> None:
    draws = torch.Generator().manual_seed(0)
    use = SingleOuter(torch.randn(9, 5, generator=draws), torch.randn(9, 30, generator=draws))
    (piece,) = Groups.single(9).pieces(0)
    values, slack = use.products(use, piece, None)
    assert slack is not None
    assert torch.allclose(values + slack, use.squared_norms(), rtol=1e-15)


class Summing(nn.Module):
    """A linear layer on every row of a sequence, or a table of one token; outputs are added up."""

    def __init__(self, *, tokens: bool) -> None:
        super().__init__()
        self.layer = nn.Embedding(90, 30) if tokens else nn.Linear(30, 40, bias=False)
        self.tokens = tokens

    def forward(self, rows: Tensor) -> Tensor:
        ids = rows[..., 0].abs().long() * 0  # every row is the same token
        outputs = self.layer(ids) * rows if self.tokens else self.layer(rows)
        return outputs.sum(dim=1)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("rest", [1e-1, 1e-3, 1e-4])
def test_vectors_in_which_rows_cancel_are_clipped_to_hardly_less_than_the_clip_norm(
    rest: float, tokens: bool, name: str
) -> None:
    """What is left is `rest` of the length of the rows, or a tenth of it between two iterates."""
    draws = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        engine = FactoredEngine(
            Summing(tokens=tokens), lambda outputs, targets: (outputs * outputs.detach()).sum(1)
        )
    half = torch.randn(3, 4, 30, generator=draws)
    rows = 1e4 * torch.cat((half, rest * torch.randn(3, 4, 30, generator=draws) - half), dim=1)
    theta = engine.flat.theta.clone()
    plan = PLANS[name](torch.rand(theta.shape, generator=draws))
    count = 1 if plan.groups is None else 3
    thetas = [theta, 0.9 * theta][: len(plan.weights)]
    total = engine.clipped_sum(rows[:count], torch.zeros(count), plan.at(*thetas))
    lost = 5e-4 + 3e-6 / rest * (10 if "apart" in name else 1)
    assert C * (1 - lost) <= float(total.double().norm()) <= C * (1 + 1e-3)
