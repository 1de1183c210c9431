"""The calibration of a run, as its job would have read it."""

from __future__ import annotations

from clipnoise.privacy.calibration import Calibration, calibrate
from clipnoise.run.spec import RunSpec
from clipnoise.run.target import calibration_target


def budget(run: RunSpec) -> Calibration | None:
    """Return σ and the ε spent at each evaluation; None for a run without noise."""
    target = calibration_target(run)
    return None if target is None else calibrate(target)
