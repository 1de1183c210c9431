"""What a query declares: the values that it releases and how far one example can move them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Never, final

from clipnoise.core.taken import GRADIENTS, Taken
from clipnoise.plugins import require_sealed

if TYPE_CHECKING:
    from torch import Tensor

    @final
    class Released(Tensor):
        """A value that crossed the privacy boundary: safe to post-process in any way.

        For type checkers every such value is a `Released`, and nothing but `privatize` makes one.
        """

        def __init__(self, made_by_privatize_only: Never) -> None: ...

else:

    class Released:
        """A value that crossed the privacy boundary. At run time it is an ordinary tensor."""

        def __new__(cls, *_: Any) -> Never:
            """Refuse: calling a tensor released does not make it private."""
            raise TypeError("only privatize makes released values")


ROUNDING = 1e-9

Adjacency = Literal["add-remove", "add-remove-user", "add-remove-node", "replace", "zero-out"]


@dataclass(frozen=True)
class Component:
    """One value that a query releases.

    Attributes:
        sensitivity: L2 distance that adding or removing one example can cause (or replacing one,
            for a query with replace adjacency), before noise.
        noise_factor: the noise standard deviation is noise_factor · σ · sensitivity. The joint
            release costs one Gaussian mechanism at σ when Σ 1/noise_factor² ≤ 1.
    """

    sensitivity: float
    noise_factor: float = 1.0


def composition_cost(components: tuple[Component, ...]) -> float:
    """Return Σ 1/noise_factor² over the components of a query.

    A joint release costs no more than one Gaussian mechanism at σ when this is at most 1; the
    accountants assume that it is.

    Args:
        components: what the query declares.

    Returns:
        The sum; infinite when a component is released without noise, or with a factor that is no
        positive and finite number.
    """
    factors = [component.noise_factor for component in components]
    return sum(1 / factor**2 if 0 < factor < math.inf else math.inf for factor in factors)


def declared(query: Query, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
    """Return what a query declares, checked, in plain numbers.

    Args:
        query: what is released.
        clip_norm, expected_batch_size: as for `Query.components`.

    Raises:
        ValueError: a sensitivity or a noise factor is not positive and finite (a query that is not
            private may also add no noise), or the noise does not cover the components.
    """
    name = type(query).__name__
    components = tuple(
        Component(float(component.sensitivity), float(component.noise_factor))
        for component in query.components(clip_norm, expected_batch_size)
    )
    for component in components:
        quiet = component.noise_factor == 0 and not query.private
        for key, value in vars(component).items():
            if not (quiet or 0 < value < math.inf):
                raise ValueError(f"{name}: {key} must be positive and finite, got {value:g}")
    if query.private and composition_cost(components) > 1 - query.of.spends + ROUNDING:
        raise ValueError(f"{name} is declared private, but adds too little noise")
    if query.of.spends and type(query).values is not Query.values:
        raise ValueError(f"{name}.values: what is taken at a minimum is released as it is")
    return components


@dataclass(frozen=True)
class Query:
    """Base of all queries. A query declares; it never adds noise, which `privatize` alone does.

    Attributes:
        formulas: the sensitivity of each component, in C and B.
        private: whether the noise covers what one example can change.
        adjacency: what a neighbouring dataset is.
    """

    sealed: ClassVar[tuple[str, ...]] = ("privatize", "release", "draws", "noise_like")
    formulas: ClassVar[tuple[str, ...]]
    private: ClassVar[bool] = True
    adjacency: ClassVar[Adjacency] = "add-remove"

    def __init_subclass__(cls) -> None:
        """Refuse a query that would cross the boundary by itself: it declares, and no more.

        Raises:
            TypeError: the class defines `release` or `privatize`, decides which noise is drawn, its
                `private` is not a fixed True or False, or its `of` is not a `Taken`.
        """
        super().__init_subclass__()
        require_sealed(cls)
        if not isinstance(getattr_static(cls, "private"), bool):
            raise TypeError(f"{cls.__name__}.private: must be True or False")
        if not isinstance(getattr_static(cls, "of"), (Taken, property)):
            raise TypeError(f"{cls.__name__}.of: must be a Taken, such as GRADIENTS or LOSSES")

    if TYPE_CHECKING:

        @final
        def release(self, *_: Never) -> Never: ...

        @final
        def privatize(self, *_: Never) -> Never: ...

    @property
    def of(self) -> Taken:
        """What is taken of each example at the points; a query of something else says so."""
        return GRADIENTS

    @final
    @cached_property
    def draws(self) -> int:
        """How many standard normal tensors a release uses: one per noisy component.

        A release at a minimum uses a second one.
        """
        noisy = sum(component.noise_factor > 0 for component in self.components(1.0, 1.0))
        return noisy + (self.of.spends > 0)

    @final
    def noise_like(self, theta: Tensor) -> Tensor:
        """Return zeros in the shape of the normal tensors of a release.

        One component can cover all that is taken, extra coordinates included; of several, none is
        longer than the vector of an example.

        Args:
            theta: θ of shape (d,), which gives dtype and device.
        """
        whole = len(self.components(1.0, 1.0)) == 1
        return self.of.zeros(theta) if whole else self.of.vector(theta)

    def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
        """Declare what is released and how sensitive it is.

        Args:
            clip_norm: C.
            expected_batch_size: B = q·n, a public constant.

        Returns:
            One component per released value.
        """
        raise NotImplementedError

    def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
        """Compute the noise-free values from the clipped mean.

        Args:
            mean: Σ v_i / B, shape (d,), or (1,) of losses; after them the K extra coordinates.
            clip_norm: C; infinite where nothing is clipped.

        Returns:
            One tensor per component.
        """
        return (mean,)
