"""The noise of releases: whether it is in every step and coordinate, normal, and never repeated."""

from __future__ import annotations

import math

import torch
from scipy.stats import beta, chi2, norm

from clipnoise.audit.loops.claim import LoopFinding
from clipnoise.audit.loops.experiments import SIGNIFICANCE, Experiments
from clipnoise.audit.loops.residual import DIRECTIONS, LEAST_ROWS, NoiseSeen

ROUNDED = 1e-6  # of a correlation
SLACK = 0.75  # of a variance: what taking out directions may do to it
LIGHT = 0.3  # by which the fourth moment of normal noise may be too low with data left in it


def check_noise_size(runs: Experiments) -> LoopFinding:
    """Look for noise in every step and coordinate, that is not repeated and not too large."""
    name = "noise"
    if not runs.records:
        return LoopFinding.skipped(name, "needs a loop that calls record")
    seen = runs.noise
    if seen is None:
        if not torch.isfinite(runs.alike(0, 0.0).releases).all():
            return LoopFinding(name, False, "a release holds numbers that are not finite")
        return LoopFinding.skipped(name, f"needs {LEAST_ROWS} releases")
    problems = problems_of(seen)
    count, width = seen.shape
    if problems:
        return LoopFinding(name, False, "; ".join(problems))
    held = (
        f"a standard deviation of {seen.deviation:.4g} in {count} releases of {width} numbers, in "
        f"{_where(seen)}, never repeated"
    )
    power = (
        f"a step or a coordinate with less than {_least(width, 2 * count):.2f} or "
        f"{_least(seen.usual, 2 * width):.2f} times the variance of the others; releases whose "
        f"noise correlates by {_repeats(count, width):.2f}, and coordinates by "
        f"{_repeats(seen.compared, seen.usual):.2f}; noise with a fourth moment below "
        f"{_lightest(seen):.2f} σ⁴, where normal noise has 3 σ⁴"
    )
    return LoopFinding(name, True, held, power)


def _where(seen: NoiseSeen) -> str:
    """Return in which steps and coordinates the noise was seen, in words."""
    hidden = {
        "steps": int(seen.steps.isnan().sum()),
        "coordinates": int(seen.coordinates.isnan().sum()),
    }
    but = " and ".join(f"{number} {what}" for what, number in hidden.items() if number)
    return "every step and coordinate" + (
        f" but {but}, which what examples add hides" if but else ""
    )


def _least(numbers: int, tried: int) -> float:
    """Return how small the variance of some normal numbers may be, the smallest of several."""
    return SLACK * float(chi2.ppf(SIGNIFICANCE / tried, numbers)) / numbers if numbers else 0.0


def _lightest(seen: NoiseSeen) -> float:
    """Return a fourth moment, in σ⁴, below which normal noise is not by chance."""
    numbers = max(1, seen.usual * seen.shape[1])
    return 3 - LIGHT - float(norm.isf(SIGNIFICANCE)) * math.sqrt(24 / numbers)


def _repeats(count: int, width: int) -> float:
    """Return a correlation that no two of some vectors of fresh noise reach by chance.

    The square of a correlation of w normal numbers, their means taken out, is Beta(1/2, w/2 − 1).
    What examples add is taken out of w, too.
    """
    left = width - min(DIRECTIONS, width // 3)
    if left < 3:
        return 1.0
    chance = math.sqrt(float(beta.isf(SIGNIFICANCE / count**2, 0.5, left / 2 - 1)))
    return max(chance, min(0.98, chance + 0.2))


def problems_of(seen: NoiseSeen) -> list[str]:
    """Return what of the noise is not as it must be, in words."""
    count, width = seen.shape
    if seen.deviation == 0:
        return ["releases hold no noise: on identical examples they lie in few directions"]
    found = []
    for what, variances, numbers in (
        ("step", seen.steps, width),
        ("coordinate", seen.coordinates, seen.usual),
    ):
        # Two measurements of each coordinate are tried.
        low = (variances < _least(numbers, 2 * len(variances))).nonzero().flatten()
        if len(low):
            place = int(low[0]) % seen.steps_of_run if what == "step" else int(low[0])
            found.append(
                f"{len(low)} of {len(variances)} {what}s have less noise than the others, {what} "
                f"{place + 1} has {float(variances[low[0]]):.2g} times their variance"
            )
    if seen.repeated > _repeats(count, width) + ROUNDED:
        found.append(f"two releases have noise that correlates by {seen.repeated:.2f}")
    if seen.twins > _repeats(seen.compared, seen.usual) + ROUNDED:
        found.append(f"two coordinates have noise that correlates by {seen.twins:.2f} in all steps")
    if seen.fourth < _lightest(seen):
        found.append(
            f"the noise is not normal: its fourth moment is {seen.fourth:.2f} σ⁴ in place of 3 σ⁴"
        )
    return found
