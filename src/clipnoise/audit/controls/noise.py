"""A mistake in the noise: half of what the accountant assumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from clipnoise.core.step import privatize

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.core.clipping import ClippedSum, Clipping
    from clipnoise.core.query import Query, Released
    from clipnoise.core.state import StepConstants


def half_noise(
    total: ClippedSum,
    query: Query,
    clipping: Clipping,
    noise: Sequence[Tensor],
    constants: StepConstants,
) -> tuple[Released, ...]:
    """Cross the boundary with noise at σ/2, accounted at σ."""
    half = replace(constants, noise_multiplier=constants.noise_multiplier / 2)
    return privatize(total, query, clipping, noise, half)
