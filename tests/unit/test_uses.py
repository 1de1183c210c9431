"""Uses of a parameter: norms, inner products and sums are those of the gradients that they form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from clipnoise.gradients.factored.convolution import Geometry, Patches
from clipnoise.gradients.factored.embedding import Lookup
from clipnoise.gradients.factored.linear import Outer, SingleOuter
from clipnoise.gradients.factored.normalisation import Gain
from clipnoise.gradients.factored.uses import (
    Constant,
    ExplicitGradients,
    Groups,
    InProducts,
    ParameterGradient,
    Piece,
    Use,
)

COUNT = 6
DRAWS = torch.Generator()


@pytest.fixture(autouse=True)
def seeded() -> None:
    DRAWS.manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=DRAWS, dtype=torch.float64)


def lookup() -> Lookup:
    return Lookup(torch.randint(4, (COUNT, 3), generator=DRAWS), normal(COUNT, 3, 5), 4)


def patches(stride: int, groups: int = 1) -> Patches:
    side = 4 // stride
    geometry = Geometry((3, 3), (stride, stride), (1, 1), (1, 1), groups)
    shape = torch.Size((4, 4 // groups, 3, 3))
    return Patches(normal(COUNT, 4, 4, 4), normal(COUNT, 4, side, side), shape, geometry)


def gain() -> Gain:
    normalise = partial(layer_norm, normalized_shape=(5,))
    return Gain(normal(COUNT, 3, 5), normal(COUNT, 3, 5), normalise, lambda x: x.sum(dim=1))


USES: dict[str, Callable[[], Use]] = {
    "outer products": lambda: Outer(normal(COUNT, 3, 4), normal(COUNT, 3, 5)),
    "a wide left factor": lambda: Outer(normal(COUNT, 3, 6), normal(COUNT, 3, 5)),
    "single outer products": lambda: SingleOuter(normal(COUNT, 4), normal(COUNT, 5)),
    "rows looked up": lookup,
    "patches": lambda: patches(1),
    "patches, strided": lambda: patches(2),
    "patches, in groups": lambda: patches(1, groups=2),
    "gains": gain,
    "gradients": lambda: ExplicitGradients(normal(COUNT, 4, 5)),
    "a constant": lambda: Constant(normal(4, 5)),
}
every_use = pytest.mark.parametrize("name", USES)
WAYS = [(1, False), (1, True), (2, False), (2, True)]  # examples of a group, and whether scaled


def whole(size: int) -> Piece:
    """Return a batch in groups of a size."""
    return Piece(slice(0, COUNT), COUNT // size, size)


@every_use
def test_a_weighted_sum_is_that_of_the_gradients(name: str) -> None:
    use, factors = USES[name](), normal(COUNT)
    total = normal(*use.shape)
    expected = total + torch.tensordot(factors, use.instantiate(whole(1)), dims=1)
    use.add(factors, total)
    torch.testing.assert_close(total, expected)


@every_use
def test_the_gradient_of_a_group_is_the_sum_over_its_examples_and_can_be_had_by_rows(
    name: str,
) -> None:
    use = USES[name]()
    found = use.instantiate(whole(2))
    torch.testing.assert_close(found, use.instantiate(whole(1)).unflatten(0, (-1, 2)).sum(dim=1))
    torch.testing.assert_close(use.by_rows(whole(2))(slice(1, 3)), found[:, 1:3])


@every_use
def test_norms_are_those_of_the_gradients_of_each_group(name: str) -> None:
    for size, scaled in WAYS:
        use, groups = USES[name](), Groups(((size, COUNT // size),))
        scale = normal(*use.shape) if scaled else torch.ones(use.shape, dtype=torch.float64)
        given = scale if scaled else None
        expected = (use.instantiate(whole(size)) * scale).square().flatten(1).sum(dim=1)
        gradient = ParameterGradient([use], groups)
        torch.testing.assert_close(gradient.squared_norms(given).values, expected)
        each = [gradient.squared_norm_of(group, given) for group in range(groups.count)]
        torch.testing.assert_close(torch.stack(each), expected)
        if isinstance(use, InProducts) and "groups" not in name:
            square = scale.square() if scaled else None
            torch.testing.assert_close(use.products(use, whole(size), square).values, expected)


PAIRS: dict[str, tuple[Callable[[], Use], Callable[[], Use]]] = {
    "outer products of both": (USES["outer products"], USES["outer products"]),
    "single and other outer products": (USES["single outer products"], USES["outer products"]),
    "outer products and a constant": (USES["outer products"], USES["a constant"]),
    "two constants": (USES["a constant"], USES["a constant"]),
    "rows looked up twice": (lookup, lookup),
    "rows looked up and outer products": (lookup, USES["outer products"]),
    "rows looked up and a constant": (lookup, USES["a constant"]),
    "patches of both": (USES["patches"], USES["patches"]),
    "strided patches of both": (USES["patches, strided"], USES["patches, strided"]),
}


@pytest.mark.parametrize("name", PAIRS)
def test_inner_products_of_two_uses_are_those_of_their_gradients(name: str) -> None:
    first, second = (make() for make in PAIRS[name])
    assert isinstance(first, InProducts)
    assert isinstance(second, InProducts)
    assert first.takes(second)
    for size, scaled in WAYS:
        square = normal(*first.shape).square() if scaled else None
        products = first.instantiate(whole(size)) * second.instantiate(whole(size))
        expected = (products if square is None else products * square).flatten(1).sum(dim=1)
        found, slack = first.products(second, whole(size), square)
        torch.testing.assert_close(found, expected)
        assert slack is None
