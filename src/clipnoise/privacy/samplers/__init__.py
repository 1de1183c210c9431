"""Samplers: which examples take part in a step. An accountant's ε holds for some of them only."""

from __future__ import annotations

from typing import Literal, get_args

SamplerName = Literal[
    "poisson", "truncated-poisson", "cyclic-poisson", "cyclic", "full", "fixed-size", "shuffled"
]
SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)
