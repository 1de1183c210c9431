"""Calibration: the smallest noise multiplier that meets a privacy budget, and its file."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

from clipnoise.core.query import Adjacency
from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Natural, NonNegative, Positive, parse, to_plain
from clipnoise.files import read_json, write_atomically, write_json
from clipnoise.privacy.accountants.poisson import NUMERICAL, AccountantError
from clipnoise.privacy.budget import Budget
from clipnoise.privacy.profile import PrivacyProfile, privacy_profile

TOLERANCE = 1e-3  # how far below the target ε may end; relative for targets below 1
LARGEST_SIGMA = 2.0**20
SMALLEST_SIGMA = 2.0**-10
ROUNDING = 1e-6  # how far ε may differ between machines
AGAIN = "Delete the file, and calibrate again."
SEAL = ".verified"  # of the file that says which content of a calibration was verified
COMPUTED_BY = ("dp-accounting", "opacus", "numpy", "scipy")


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A calibrated budget, as its file holds it.

    Attributes:
        budget: what was asked for.
        noise_multiplier: σ.
        epsilon: what T steps at σ spend; never above the target.
        spent: ε by evaluation step.
        adjacency: the relation between neighbouring datasets under which ε holds.
    """

    __pydantic_config__: ClassVar = STRICT

    budget: Budget
    noise_multiplier: Positive
    epsilon: NonNegative
    spent: dict[Natural, NonNegative]
    adjacency: Adjacency

    def __post_init__(self) -> None:
        if self.budget.noise_multiplier not in (None, self.noise_multiplier):
            raise UserError(
                f"noise_multiplier: must be the budget's, {self.budget.noise_multiplier}, "
                f"got {self.noise_multiplier}."
            )

    @property
    def profile(self) -> PrivacyProfile:
        """What any attack can reach; computed once for each mechanism, and not in the file."""
        budget, stated = self.budget, (self.epsilon, self.budget.delta)
        return privacy_profile(
            budget.participation, budget.accountant, self.noise_multiplier, stated
        )

    def write(self, path: Path) -> None:
        """Write the file atomically, the inverse of `read_calibration`."""
        write_json(path, to_plain(self))

    def verify(self) -> None:
        """Compute ε from σ again, and refuse a calibration that states anything else.

        Raises:
            UserError: names σ, the ε that is stated and the ε that σ costs.
        """
        if self._mistake is not None:
            raise UserError(self._mistake)

    @cached_property
    def _mistake(self) -> str | None:
        """What is stated and is not so; None if everything is."""
        true = _accounted(self.budget, self.noise_multiplier)
        stated = [("noise multiplier", self.epsilon, true.epsilon)]
        stated += [
            (f"noise multiplier at step {step}", value, true.spent.get(step, math.nan))
            for step, value in self.spent.items()
        ]
        for what, value, correct in stated:
            if not math.isclose(value, correct, rel_tol=ROUNDING, abs_tol=ROUNDING):
                return (
                    f"states ε {value:.6g}, but its {what}, {self.noise_multiplier:.6g}, "
                    f"costs ε {correct:.6g}."
                )
        target = self.budget.epsilon
        charged = 0.0 if target is None else self.budget.charged(self.noise_multiplier)
        if target is not None and charged > target * (1 + ROUNDING):
            return (
                f"its noise multiplier, {self.noise_multiplier:.6g}, costs ε {charged:.6g}, "
                f"above the target {target:.6g}."
            )
        if self.adjacency != true.adjacency:
            return f"its adjacency must be {true.adjacency}, got {self.adjacency}."
        return None

    def trust(self) -> None:
        """Take the calibration as verified: what it states was computed from its σ before."""
        vars(self)["_mistake"] = None

    def check(self, budget: Budget) -> None:
        """Refuse to be used for a run of another budget, or to state a wrong ε.

        Raises:
            UserError: names what differs, and how to calibrate for the budget.
        """
        try:
            self.verify()
        except UserError as error:
            raise UserError(f"calibration: {error} {AGAIN}") from None
        asked = _values(budget)
        differences = [
            f"{name} {value}, not {asked[name]}"
            for name, value in _values(self.budget).items()
            if value != asked[name]
        ]
        missing = sorted(set(budget.evaluation_steps) - set(self.spent))
        differences += [f"no ε at step {', '.join(map(str, missing))}"] if missing else []
        if differences:
            raise UserError(
                f"calibration: made for another budget: {'; '.join(differences)}. This run's is "
                f"`clipnoise calibrate {budget.options()}`."
            )


def _values(budget: Budget) -> dict[str, object]:
    """Return what σ depends on, by name."""
    parts = (budget, budget.participation)
    values = {one.name: getattr(part, one.name) for part in parts for one in fields(part)}
    del values["participation"], values["evaluation_steps"]
    return values


def read_calibration(path: Path) -> Calibration:
    """Read a calibration file, and verify it unless the same content was verified before.

    Beside the file, a seal says which content was verified by which code: computing ε again would
    take a short run longer than its training. The seal guards against mistakes, as the verification
    does, and not against someone who writes both files.

    Raises:
        UserError: the file is missing, is not JSON, a key is missing, unknown or out of range, or
            its σ costs another ε than it states.
    """
    calibration = _read(path)
    seal, due = path.with_suffix(SEAL), _seal(calibration)
    with suppress(OSError, ValueError):
        if seal.read_text(encoding="utf-8") == due:
            calibration.trust()
            return calibration
    try:
        calibration.verify()
    except UserError as error:
        raise UserError(f"{path}: {error} {AGAIN}") from None
    with suppress(OSError):  # the folder may be another's
        write_atomically(seal, due)
    return calibration


def _seal(calibration: Calibration) -> str:
    """Return a digest of a calibration and of all that computes ε: code and packages."""
    return hashlib.sha256(f"{_analysis()} {to_plain(calibration)!r}".encode()).hexdigest()


@lru_cache(maxsize=1)
def _analysis() -> str:
    digest = hashlib.sha256(" ".join(map(version, COMPUTED_BY)).encode())
    rates = Path(__file__).parents[1] / "core/schedule.py"  # what noise may be optimised for
    for path in (*sorted(Path(__file__).parent.rglob("*.py")), rates):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def find_calibration(paths: Sequence[Path], budget: Budget) -> Calibration:
    """Read the calibration of a budget; a run that tunes its batches or steps has several files.

    Raises:
        UserError: as for `read_calibration`, or no file is of this budget.
    """
    if not paths:
        raise UserError("--calibration: a private run needs the file of its budget.")
    fitting = (path for path in paths if _read(path).budget.key == budget.key)
    return read_calibration(next(fitting, paths[0]))


def _read(path: Path) -> Calibration:
    try:
        values = read_json(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise UserError(f"{path}: not a calibration file: {error}.") from None
    return parse(Calibration, values, file=str(path))


def calibrate(budget: Budget) -> Calibration:
    """Find the smallest σ that meets a budget, or account a given σ.

    Returns:
        σ, and ε at the end and at each evaluation step. ε is not above the target and less than
        1e-3 below it (1e-3 of the target, for targets below 1); where the target covers a choice,
        this is so of ε with the choice.

    Raises:
        UserError: the target cannot be met; the message says what can be.
    """
    sigma = budget.noise_multiplier
    return _accounted(budget, _smallest_sigma(budget) if sigma is None else sigma)


@lru_cache(maxsize=64)
def _accounted(budget: Budget, sigma: float) -> Calibration:
    """Return what T steps at σ spend; what bounds all of them bounds the first ones, too."""
    epsilon, places = budget.spent(sigma), sorted(set(budget.evaluation_steps))
    return Calibration(
        budget=budget,
        noise_multiplier=sigma,
        epsilon=epsilon,
        spent={t: min(epsilon, budget.spent(sigma, t)) for t in places},
        adjacency=budget.adjacency,
    )


@lru_cache(maxsize=64)
def _smallest_sigma(budget: Budget) -> float:
    """Solve ε(σ) = target from below: bracket it, then Brent's method on log σ.

    ε falls as σ grows. The search aims at the middle of the window (target − tolerance, target] and
    stops at the first σ inside it, so the grid of a numerical accountant cannot push ε above it.
    """
    from scipy.optimize import brentq

    target = budget.epsilon
    assert target is not None
    window = TOLERANCE * min(1.0, target)

    @cache
    def distance(log_sigma: float) -> float:
        try:
            value = budget.charged(math.exp(log_sigma))
        except AccountantError:
            value = math.inf
        if value == math.inf:
            return 1.0  # accountants give up where ε is large: look at larger σ
        if target - window < value <= target:
            return 0.0
        return math.log(max(value, 1e-300) / (target - window / 2))

    bracket = _bracket(budget, distance, *_start(budget))
    root = float(brentq(distance, *bracket, xtol=1e-12))
    if distance(root) != 0.0:
        raise UserError(
            f"epsilon: {target:g} cannot be met to within {window:g}: the bound of the "
            f"{budget.accountant} accountant jumps at noise_multiplier {math.exp(root):.6g}. "
            "Choose another accountant, or give noise_multiplier instead."
        )
    return math.exp(root)


def _start(budget: Budget) -> tuple[float, float]:
    """Return log σ from which to search, and the first step of the search.

    Numerical accountants take long for each σ and agree with RDP to a tenth of σ or so.
    """
    anywhere = 0.0, math.log(2)
    if budget.trials is not None:  # ε is close to inversely proportional to σ
        alone = _smallest_sigma(replace(budget, trials=None, accountant="rdp"))
        assert budget.epsilon is not None
        return math.log(alone * max(1.0, budget.charged(alone) / budget.epsilon)), 0.07
    if budget.accountant not in NUMERICAL:
        return anywhere
    try:
        return math.log(_smallest_sigma(_poisson(budget))) - 0.07, 0.07
    except UserError:
        return anywhere


def _poisson(budget: Budget) -> Budget:
    """Return a budget by RDP whose σ is close to that of a numerical accountant."""
    if budget.accountant not in ("pld-allocation", "monte-carlo"):
        return replace(budget, accountant="rdp")
    given, groups = budget.participation, 1
    rate = 1 / given.groups
    if given.sampling_rate < 1 and budget.accountant == "monte-carlo":  # as with cyclic-poisson
        groups, apart = given.groups, given.groups - 1
        rate = given.groups * given.sampling_rate / (1 + apart * given.sampling_rate)
    takes_part = replace(given, groups=groups, sampling_rate=rate, prefix_cost=1.0, noise=None)
    sampler = "poisson" if groups == 1 else "cyclic-poisson"
    return replace(budget, accountant="rdp", sampler=sampler, participation=takes_part)


def _bracket(
    budget: Budget, distance: Callable[[float], float], start: float, step: float
) -> tuple[float, float]:
    """Find log σ where ε is too large and log σ where it is not, or say what can be reached."""
    low = high = start
    while distance(high) > 0:
        if high == math.log(LARGEST_SIGMA):
            raise _unreachable(budget, "least", budget.charged(LARGEST_SIGMA))
        further = start + max(step, 3 * (high - start))
        low, high = high, min(further, math.log(LARGEST_SIGMA))
    while distance(low) < 0:
        if low <= math.log(SMALLEST_SIGMA):
            raise _unreachable(budget, "most", budget.charged(SMALLEST_SIGMA))
        low, high = low - step, low
    return low, high


def _unreachable(budget: Budget, extreme: str, reached: float) -> UserError:
    rate, steps = budget.participation.sampling_rate, budget.participation.steps
    return UserError(
        f"epsilon: {budget.epsilon:g} is out of reach of the {budget.accountant} accountant at "
        f"delta {budget.delta:g}, sampling_rate {rate:g}, steps {steps}: the {extreme} it reaches "
        f"is {reached:.4g}. Choose another epsilon or accountant, or give noise_multiplier instead."
    )
