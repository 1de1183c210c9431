"""Mechanisms by the numbers that tests are about."""

from __future__ import annotations

from typing import Any

from clipnoise.privacy.mechanism import Mechanism
from clipnoise.privacy.noise.banded import BandedNoise
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.units import Example, Node


def mechanism(
    sampler: str, *, examples: int, degree: int | None = None, bands: int = 1, **values: Any
) -> Mechanism:
    """Return a mechanism on n examples, or on nodes of bounded degree."""
    unit = Example(count=examples) if degree is None else Node(count=examples, degree=degree)
    if bands > 1:
        values["noise"] = BandedNoise(bands=bands)
    return Mechanism(unit=unit, sampler=sampler, **values)


def participation_under(sampler: str, **values: Any) -> Participation:
    return mechanism(sampler, **values).participation
