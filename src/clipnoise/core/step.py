"""One step of any method, and the only place where a value crosses the privacy boundary."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from clipnoise.core.clip_rules import ClipRule, OwnClipRule
from clipnoise.core.clipping import _SEALED, ClippedSum, Clipping
from clipnoise.core.method import Clean, Method, OracleMethod
from clipnoise.core.minimum import minimum
from clipnoise.core.query import Query, Released, declared
from clipnoise.core.taken import AtMinimum
from clipnoise.errors import UserError
from clipnoise.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.core.state import Public, State


# The signature of `privatize`; diagnostics and audits may pass something else in its place.
Crossing = Callable[
    ["ClippedSum", "Query", "Clipping", "Sequence[Tensor]", "Public"], tuple[Released, ...]
]


def privatize(
    total: ClippedSum,
    query: Query,
    clipping: Clipping,
    noise: Sequence[Tensor],
    public: Public,
) -> tuple[Released, ...]:
    """Cross the privacy boundary: divide by the constant B, add calibrated noise.

    Args:
        total: Σ v_i over the batch.
        query: what is released.
        clipping: how the v_i were bounded.
        noise: one standard normal tensor per noisy component, in order; any more are not used.
        public: σ, B (never the realised batch size), and how far one example can move the sum
            relative to what the components assume: every component moves in proportion to it.

    Returns:
        The released values, one per component. Where a private value is not finite, noise alone is
        released: a run whose query divides by zero goes on, and says nothing about why.

    Raises:
        ValueError: what the query declares is no sensitivity or no noise factor, or the noise does
            not cover it; it takes something else of each example than the clipping; a value is no
            plain vector; or the noise has another dtype or device than a value.
    """
    components = declared(query, clipping.bound, public.expected_batch_size)
    if query.of != clipping.of:
        raise ValueError(f"{type(query).__name__} and the clipping differ in what they take")
    mean = _clean_mean(total, public)
    values = _checked_values(query, query.values(mean, clipping.bound), mean, len(components))
    normals, released = iter(noise), []
    for value, component in zip(values, components, strict=True):
        if component.noise_factor > 0:
            sensitivity = public.sensitivity_factor * component.sensitivity
            deviation = component.noise_factor * public.noise_multiplier * sensitivity
            normal = next(normals)
            if (normal.dtype, normal.device) != (value.dtype, value.device):
                raise ValueError(f"the noise is {normal.dtype} on {normal.device}, a value is not")
            if normal.shape != value.shape:  # fewer for a short value
                normal = normal[: value.numel()].view(value.shape)
            value = value.add(normal, alpha=deviation)
        released.append(value)
    return cast("tuple[Released, ...]", tuple(released))


def _checked_values(
    query: Query, values: Sequence[Tensor], mean: Tensor, count: int
) -> Sequence[Tensor]:
    """Return the values of a query if noise can be added to them, and nothing else can happen.

    Args:
        query: whose values they are.
        values: what it returned. What is not finite becomes 0 in place if the query is private.
        mean: what it was given.
        count: how many components it declares.
    """
    name = type(query).__name__
    if type(values) not in (tuple, list) or len(values) != count:
        raise ValueError(f"{name}.values: must return a tuple of {count}, one per component")
    for value in values:
        # A subclass brings an addition of its own, and numbers of another dtype are not hidden by
        # noise of this one.
        plain = type(value) is torch.Tensor and value.layout is torch.strided
        if not plain or not value.is_contiguous():
            raise ValueError(f"{name}.values: must return dense torch.Tensors, got {type(value)}")
        if (value.dtype, value.device) != (mean.dtype, mean.device):
            raise ValueError(
                f"{name}.values: must return {mean.dtype} on {mean.device}, got {value.dtype} on "
                f"{value.device}"
            )
        if value.dim() != 1 or not 0 < len(value) <= len(mean):
            raise ValueError(
                f"{name}.values: must return vectors of up to {len(mean)} numbers, got shape "
                f"{tuple(value.shape)}"
            )
        if value.requires_grad:
            raise ValueError(f"{name}.values: must return tensors without a gradient")
        if query.private:  # the bits of a nan would say too much
            value.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    return values


def step(
    method: Method,
    state: State,
    public: Public,
    *,
    clipped_sum: Callable[[Clipping], ClippedSum],
    noise: Sequence[Tensor] = (),
    cross: Crossing = privatize,
) -> None:
    """Take one step of any method.

    Args:
        method: the optimizer.
        state: θ, which becomes a new vector, and the memory of the method, whose step counter is
            advanced. θ before the step is kept there if the method reads it later.
        public: what is known without private data.
        clipped_sum: the only access to private data: Σ v_i of the batch, from a gradient engine.
        noise: standard normal tensors, one per noisy component of the query, as long as the
            longest.
        cross: `privatize`; diagnostics and audits pass one that records, or that has a deliberate
            mistake.

    Raises:
        TypeError: the method's clipping bounds vectors in a way of its own.
        UserError: the method returns no change of shape (d,), or reads a state that it never wrote.
    """
    state.step, theta = state.step + 1, state.theta
    query, method = method.query, method.at(state.step, public.total_steps)
    clipping = _checked_clipping(method, method.clipping(state, public))
    gradient = None
    if isinstance(method, OracleMethod) and method.reads_gradient():  # never private
        gradient = _clean_mean(clipped_sum(Clipping(clip_norm=None).at(theta)), public)
        clipping = replace(clipping, scale=method.oracle_scale(state, public, gradient))
    if isinstance(clipping.of, AtMinimum) and public.noise_multiplier:
        clipping, noise = _at_minimum(query, clipping.of, clipping, clipped_sum, noise, public)
    total = clipped_sum(clipping)
    released = cross(total, query, clipping, noise, public)
    if isinstance(method, OracleMethod):
        values = clean_values(total, query, clipping, public)
        change = method.oracle_update(released, state, public, Clean(values, gradient))
    else:
        change = method.update(released, state, public)
    _check_update(method, state, change, theta)
    state.theta, state.past = theta + change, (theta, *state.past)[: method.iterates() - 1]


def _checked_clipping(method: Method, clipping: Clipping) -> Clipping:
    """Return a clipping that bounds vectors as the package does, whatever a method's hooks say.

    Raises:
        TypeError: it is of a class of its own, or its rule is one that nothing bounds.
    """
    kind, name = type(clipping.rule), type(method).__name__
    if type(clipping) is not Clipping:
        raise TypeError(f"{name}.clipping: must return a Clipping, got {type(clipping).__name__}")
    if kind not in ClipRule.package_kinds().values() and not issubclass(kind, OwnClipRule):
        raise TypeError(f"{name}: the clip rule {kind.__name__} must be an OwnClipRule")
    return clipping


def _at_minimum(
    query: Query,
    of: AtMinimum,
    clipping: Clipping,
    clipped_sum: Callable[[Clipping], ClippedSum],
    noise: Sequence[Tensor],
    public: Public,
) -> tuple[Clipping, list[Tensor]]:
    """Find the minimum of the objective that the first of two noises perturbs.

    Without noise there is none: the audits, which measure how far an example moves what is released
    before noise, see the clipped vectors themselves.

    Returns:
        The clipping of what is released there, and the noise on it: both noises as one.
    """
    c, b = clipping.bound, public.expected_batch_size
    (component,) = declared(query, c, b)
    first, second = noise
    deviation = component.noise_factor * public.noise_multiplier * component.sensitivity
    linear = math.sqrt(1 - of.second) * first
    ridge = of.ridge(public.noise_multiplier, c) / b

    def gradient(theta: Tensor) -> Tensor:
        at = theta.to(first.dtype)
        mean = _clean_mean(clipped_sum(replace(clipping, weighed_at=at)), public)
        return mean.double() + deviation * linear.double() + ridge * at.double()

    start = torch.zeros_like(first, dtype=torch.float64)
    theta = minimum(gradient, start, curvature=c * c / 4 + ridge, tolerance=of.tolerance(c) / b)
    both = linear + math.sqrt(of.second) * second
    return replace(clipping, weighed_at=theta.to(first.dtype)), [both]


def _check_update(method: Method, state: State, change: object, theta: Tensor) -> None:
    """Name the method, and its file, whose update is wrong in a way that would go unnoticed."""
    shape = getattr(change, "shape", None)
    try:
        if shape != theta.shape:
            found = type(change).__name__ if shape is None else f"shape {tuple(shape)}"
            raise UserError(f"update must return the change, shape {tuple(theta.shape)}: {found}.")
        state.require_written()
    except UserError as error:
        kind = type(method)
        place = getattr(sys.modules.get(kind.__module__), "__file__", kind.__module__)
        raise UserError(f"{place}: class {kind.__name__}: {error}") from None


def _clean_mean(total: ClippedSum, public: Public) -> Tensor:
    """Return Σ v_i / B. Nothing else opens a sum."""
    return _SEALED[total] / public.expected_batch_size


def clean_values(
    total: ClippedSum, query: Query, clipping: Clipping, public: Public
) -> tuple[Tensor, ...]:
    """Return what would be released without noise: for oracles and runs marked non-private."""
    return query.values(_clean_mean(total, public), clipping.bound)
