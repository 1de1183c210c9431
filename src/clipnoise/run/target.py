"""The budget that a run's noise multiplier is calibrated for."""

from __future__ import annotations

from dataclasses import fields

from clipnoise.errors import UserError
from clipnoise.privacy.calibration import Calibration, Target
from clipnoise.run.spec import RunSpec

ASKED = {"epsilon": "epsilon_target"}  # a calibration's epsilon is what is spent


def calibration_target(spec: RunSpec) -> Target | None:
    """Return the budget that a run's σ is calibrated for; None for a non-private run."""
    if spec.privacy is None or spec.delta is None:
        return None
    return Target(
        **vars(spec.participation()),
        epsilon=spec.privacy.epsilon,
        noise_multiplier=spec.noise_multiplier,
        delta=spec.delta,
        accountant=spec.privacy.accountant,
        sampler=spec.privacy.sampler,
        evaluation_steps=tuple(spec.evaluation_steps()),
    )


def check_calibration(spec: RunSpec, calibration: Calibration | None) -> None:
    """Refuse a calibration that was made for another budget: its ε would not be the run's.

    Args:
        spec: the run.
        calibration: what was read for it; None for a non-private run.

    Raises:
        UserError: names what differs, and how to calibrate for this run.
    """
    target = calibration_target(spec)
    if target is None or calibration is None:
        return
    names = [one.name for one in fields(Target) if one.name != "evaluation_steps"]
    asked = {name: getattr(target, name) for name in names}
    given = {name: getattr(calibration, ASKED.get(name, name)) for name in names}
    if target.noise_multiplier is None:  # the calibration has found it
        given["noise_multiplier"] = None
    pairs = [(name, given[name], asked[name]) for name in names]
    differences = [f"{name} {one}, not {other}" for name, one, other in pairs if one != other]
    missing = sorted(set(target.evaluation_steps) - set(calibration.spent))
    differences += [f"no ε at step {', '.join(map(str, missing))}"] if missing else []
    if differences:
        raise UserError(
            f"calibration: made for another budget: {'; '.join(differences)}. This run's is "
            f"`clipnoise calibrate {target.options()}`."
        )
