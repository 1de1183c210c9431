"""The minimum of a smooth and strongly convex function, from its gradients alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from clipnoise.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    Gradient = Callable[[Tensor], Tensor]

MEMORY = 10  # of changes of the point and the gradient
LEFT, BEYOND = 0.9, 0.1  # of the slope along a direction: how much may be left, before 0 or after
ATTEMPTS = 10_000  # gradients


def minimum(gradient: Gradient, start: Tensor, *, curvature: float, tolerance: float) -> Tensor:
    """Return a point at which the gradient has a norm of at most `tolerance`.

    Args:
        gradient: of the function, at a point of shape (d,).
        start: where to begin, shape (d,).
        curvature: a guess at the largest second derivative, from which the first step follows.
        tolerance: above 0.

    Raises:
        UserError: no such point is found, because of rounding.

    Source: Nocedal and Wright 2006, Algorithm 7.4 (L-BFGS). The line search looks for where the
    slope, which grows along the line, is near 0.
    """
    changes: deque[tuple[Tensor, Tensor]] = deque(maxlen=MEMORY)
    point, g, left = start, gradient(start), ATTEMPTS
    while not float(g.norm()) <= tolerance:
        direction = -_times_inverse(g, changes, 1 / curvature)
        before, low, high, length = float(g @ direction), 0.0, 0.0, 1.0
        slope_low, slope_high = before, 0.0
        while True:
            there = point + length * direction
            found, left = gradient(there), left - 1
            slope = float(found @ direction)
            if LEFT * before <= slope <= -BEYOND * before or float(found.norm()) <= tolerance:
                break
            if not left:
                raise UserError("a minimum was not found; a larger curvature_share asks for less.")
            if slope > 0:
                high, slope_high = length, slope
            else:
                low, slope_low = length, slope
            length = _between(low, slope_low, high, slope_high) if high else 2 * length
        changes.append((there - point, found - g))
        point, g = there, found
    return point


def _between(low: float, slope_low: float, high: float, slope_high: float) -> float:
    """Return where the slope would be 0 if it were linear, but not too near an end."""
    share = slope_low / (slope_low - slope_high)
    return low + min(0.9, max(0.1, share)) * (high - low)


def _times_inverse(g: Tensor, changes: Sequence[tuple[Tensor, Tensor]], scale: float) -> Tensor:
    """Return an estimate of the inverse Hessian times a gradient, from the last changes of both."""
    known = [(s, y, float(s @ y)) for s, y in changes]
    known = [(s, y, sy) for s, y, sy in known if sy > 0]  # rounding apart, all
    shares = []
    for s, y, sy in reversed(known):
        shares.append(float(s @ g) / sy)
        g = g - shares[-1] * y
    if known:
        _, y, sy = known[-1]
        scale = sy / float(y @ y)
    g = scale * g
    for (s, y, sy), share in zip(known, reversed(shares), strict=True):
        g = g + (share - float(y @ g) / sy) * s
    return g
