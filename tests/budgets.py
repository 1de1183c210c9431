"""Budgets for tests, and the calibration of a run as its job would read it."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

from clipnoise.privacy.budget import Budget
from clipnoise.privacy.calibration import Calibration, calibrate
from clipnoise.privacy.participation import Participation
from clipnoise.run.spec import RunSpec


def budget(run: RunSpec) -> Calibration | None:
    """Return σ and the ε spent at each evaluation; None for a run without noise."""
    return None if run.budget is None else calibrated(run.budget)


calibrated = cache(calibrate)  # many tests train with the same budget


def flat_budget(**values: Any) -> Budget:
    """Return a budget from its values and those of its participation; RDP, Poisson by default."""
    names = [field.name for field in fields(Participation)]
    participation = {name: values.pop(name) for name in names if name in values}
    values = {"accountant": "rdp", "sampler": "poisson", **values}
    return Budget(participation=Participation(**participation), **values)
