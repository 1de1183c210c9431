"""Calibration: the smallest noise multiplier that meets a privacy budget, and its file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Count, Natural, NonNegative, Positive, parse, to_plain
from clipnoise.files import write_json
from clipnoise.privacy import nodes
from clipnoise.privacy.accountants.poisson import AccountantError, Delta, Rate
from clipnoise.privacy.participation import Analysis, Overflow, Participation, Sampler

TOLERANCE = 1e-3  # how far below the target ε may end; relative for targets below 1
LARGEST_SIGMA = 2.0**20
SMALLEST_SIGMA = 2.0**-10


@dataclass(frozen=True, kw_only=True)
class Target:
    """A privacy budget: everything that σ, and ε along the way, depend on.

    Attributes:
        epsilon: the target ε; None when σ is given.
        noise_multiplier: σ, instead of a target.
        delta: δ.
        sampling_rate: q; for groups that take turns, the probability within a group.
        steps: T.
        groups: how many groups take turns; 1 where everyone can take part in every step.
        overflow: probability that a step draws more examples than its batch may have.
        terms, examples: as in `Participation`.
        accountant: whose mathematics turns σ, q and T into ε.
        sampler: how batches are drawn.
        evaluation_steps: the steps at which the ε spent so far is wanted.
    """

    __pydantic_config__: ClassVar = STRICT

    epsilon: Positive | None = None
    noise_multiplier: Positive | None = None
    delta: Delta
    sampling_rate: Rate
    steps: Natural
    groups: Count = 1
    overflow: Overflow = 0.0
    terms: Count = 1
    examples: Count | None = None
    accountant: Analysis = "rdp"
    sampler: Sampler = "poisson"
    evaluation_steps: tuple[Natural, ...] = ()

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise UserError("epsilon, noise_multiplier: give exactly one of them.")
        self._check_nodes()
        latest = max(self.evaluation_steps, default=0)
        if latest > self.steps:
            raise UserError(
                f"evaluation_steps: must not exceed steps, which is {self.steps}, got {latest}."
            )

    def _check_nodes(self) -> None:
        own = self.terms > 1 or self.accountant == "rdp-replace"
        if (own and self.sampler == "fixed-size") != (self.examples is not None):
            raise UserError(
                "examples: goes with the sampler 'fixed-size' and with terms above 1 or the "
                f"accountant 'rdp-replace', and only with them; got {self.examples} with "
                f"{self.sampler!r}, {self.terms} and {self.accountant!r}."
            )
        if self.terms > 1 and (
            self.sampler not in nodes.SAMPLERS or self.accountant != nodes.ACCOUNTANT
        ):
            raise UserError(
                f"terms: several changed gradients are accounted by {nodes.ACCOUNTANT} for the "
                f"samplers {', '.join(nodes.SAMPLERS)}; got {self.accountant} and {self.sampler}."
            )

    def options(self) -> str:
        """Return the options by which `clipnoise calibrate` computes this budget, for a shell."""
        numbers = {
            "epsilon": self.epsilon,
            "noise-multiplier": self.noise_multiplier,
            "delta": self.delta,
            "sampling-rate": self.sampling_rate,
        }
        words = [f"--{name} {float(x)!r}" for name, x in numbers.items() if x is not None]
        words += [f"--steps {int(self.steps)}"]
        words += [f"--groups {self.groups}"] if self.groups > 1 else []
        words += [f"--overflow {self.overflow!r}"] if self.overflow else []
        words += [f"--terms {self.terms}"] if self.terms > 1 else []
        words += [f"--examples {self.examples}"] if self.examples else []
        words += [f"--accountant {self.accountant}", f"--sampler {self.sampler}"]
        if self.evaluation_steps:
            words += ["--evaluation-steps", *map(str, sorted(set(self.evaluation_steps)))]
        return " ".join(words)

    @property
    def key(self) -> str:
        """The content hash: 12 hex digits of SHA-256 over the options. Runs that share it share σ.

        Floats enter by their shortest exact form, so equal budgets have equal keys everywhere.
        """
        return hashlib.sha256(self.options().encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A calibrated budget, as it stands in its file.

    Attributes:
        epsilon_target: the ε asked for; None when σ was given.
        delta, sampling_rate, steps, groups, overflow, accountant, sampler, terms, examples: as
            in `Target`.
        noise_multiplier: σ.
        epsilon: what T steps at σ spend; never above the target.
        spent: ε by evaluation step.
        adjacency: the relation between datasets under which ε holds.
    """

    __pydantic_config__: ClassVar = STRICT

    epsilon_target: Positive | None
    delta: Delta
    sampling_rate: Rate
    steps: Natural
    groups: Count
    accountant: Analysis
    sampler: Sampler
    noise_multiplier: Positive
    epsilon: NonNegative
    spent: dict[Natural, NonNegative]
    adjacency: Literal["add-remove", "add-remove-node", "replace"]
    overflow: Overflow = 0.0
    terms: Count = 1
    examples: Count | None = None

    def write(self, path: Path) -> None:
        """Write the file atomically, the inverse of `read_calibration`."""
        write_json(path, to_plain(self))


def read_calibration(path: Path) -> Calibration:
    """Read a calibration file.

    Raises:
        UserError: the file is missing, is not JSON, or a key is missing, unknown or out of range.
    """
    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"{path}: not a calibration file: {error}.") from None
    return parse(Calibration, values, file=str(path))


def calibrate(target: Target) -> Calibration:
    """Find the smallest σ that meets a budget, or account a given σ.

    Args:
        target: the budget.

    Returns:
        σ, and ε at the end and at each evaluation step. ε is not above the target and less than
        1e-3 below it (1e-3 of the target, for targets below 1).

    Raises:
        UserError: the target cannot be met; the message says what can be.
    """

    turns = Participation(**{one.name: getattr(target, one.name) for one in fields(Participation)})

    def spent(sigma: float, steps: int) -> float:
        return turns.epsilon(
            target.accountant, noise_multiplier=sigma, delta=target.delta, steps=steps
        )

    sigma = target.noise_multiplier
    if sigma is None:
        sigma = _smallest_sigma(target, lambda value: spent(value, target.steps))
    return Calibration(
        **vars(turns),
        epsilon_target=target.epsilon,
        delta=target.delta,
        accountant=target.accountant,
        sampler=target.sampler,
        noise_multiplier=sigma,
        epsilon=spent(sigma, target.steps),
        spent={step: spent(sigma, step) for step in sorted(set(target.evaluation_steps))},
        adjacency=_adjacency(target),
    )


def _adjacency(target: Target) -> Literal["add-remove", "add-remove-node", "replace"]:
    if target.accountant == "rdp-replace":
        return "replace"
    return "add-remove-node" if target.terms > 1 else "add-remove"


def _smallest_sigma(target: Target, spent: Callable[[float], float]) -> float:
    """Solve ε(σ) = target from below: bracket it, then Brent's method on log σ.

    ε falls as σ grows. The search aims at the middle of the window (target − tolerance, target] and
    stops at the first σ inside it, so the grid of a numerical accountant cannot push ε above.
    """
    from scipy.optimize import brentq

    wanted = target.epsilon
    assert wanted is not None
    window = TOLERANCE * min(1.0, wanted)

    @cache
    def distance(log_sigma: float) -> float:
        try:
            value = spent(math.exp(log_sigma))
        except AccountantError:
            return 1.0  # accountants give up where ε is large: look at larger σ
        if wanted - window < value <= wanted:
            return 0.0
        return math.log(max(value, 1e-300) / (wanted - window / 2))

    root = float(brentq(distance, *_bracket(target, distance, spent), xtol=1e-12))
    if distance(root) != 0.0:
        raise UserError(
            f"epsilon: {wanted:g} cannot be met to within {window:g}: the bound of the "
            f"{target.accountant} accountant jumps at noise_multiplier {math.exp(root):.6g}. "
            "Choose another accountant, or give noise_multiplier instead."
        )
    return math.exp(root)


def _bracket(
    target: Target, distance: Callable[[float], float], spent: Callable[[float], float]
) -> tuple[float, float]:
    """Find log σ where ε is too large and log σ where it is not, or tell what is reachable."""
    factor = math.log(2)
    low = high = 0.0
    while distance(high) > 0:
        if high == math.log(LARGEST_SIGMA):
            raise _unreachable(target, "least", spent(LARGEST_SIGMA))
        low, high = high, min(max(factor, 3 * high), math.log(LARGEST_SIGMA))
    while distance(low) < 0:
        if low <= math.log(SMALLEST_SIGMA):
            raise _unreachable(target, "most", spent(SMALLEST_SIGMA))
        low, high = low - factor, low
    return low, high


def _unreachable(target: Target, extreme: str, reached: float) -> UserError:
    return UserError(
        f"epsilon: {target.epsilon:g} is out of reach of the {target.accountant} accountant at "
        f"delta {target.delta:g}, sampling_rate {target.sampling_rate:g}, steps {target.steps}: "
        f"the {extreme} it reaches is {reached:.4g}. Choose another epsilon or accountant, "
        "or give noise_multiplier instead."
    )
