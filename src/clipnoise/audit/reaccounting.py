"""Published ε computed again: what can be guaranteed for the text and for the released code.

Each ε is an upper bound for the worst case. What an attack gains may be less.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Literal

import yaml

from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Count, Positive, Probability, parse
from clipnoise.files import csv_text, load_yaml
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.accountants.nodes import node_epsilon
from clipnoise.privacy.accountants.poisson import AccountantError, Releases, epsilon
from clipnoise.privacy.budget import Budget
from clipnoise.privacy.calibration import calibrate
from clipnoise.privacy.participation import Participation

if TYPE_CHECKING:
    from pathlib import Path

MOST_STEPS = 10**7
NAMED = "rdp"  # the accountant that all three papers with amplification name
TIGHT = "prv"


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published ε and its settings; either the noise multiplier or the steps may be missing.

    Attributes:
        paper, result, where: which number it is.
        epsilon, delta: as published.
        nominal_delta: the δ at which the code computed ε: "1/n", "n^-1.1", "1/batches" or a number.
        accountant: by which the code computed ε.
        examples, batch_size, epochs, participations: n, B, passes over the data, or for a result
            without amplification how often an example takes part.
        noise_multiplier, noise_source: σ and where it is printed.
        text_divisor: by which σ of the text's algorithm is smaller than accounted.
        noise_divisor: the same of the released code; None where no accountant here covers what it
            does.
        degree: K, the bound on out-degrees, where examples are nodes of a graph.
        released: what the released code does.
    """

    __pydantic_config__: ClassVar = STRICT

    paper: str
    result: str
    where: str
    epsilon: Positive
    delta: Probability | Literal["1/n"]
    nominal_delta: Probability | Literal["1/n", "n^-1.1", "1/batches"]
    accountant: Literal["rdp", "prv"] = "rdp"
    examples: Count | None = None
    batch_size: Count | None = None
    epochs: Positive | None = None
    participations: Count | None = None
    noise_multiplier: Positive | None = None
    noise_source: str = ""
    text_divisor: Positive = 1.0
    noise_divisor: Positive | None = 1.0
    degree: Count | None = None
    released: str

    def __post_init__(self) -> None:
        sampled = None not in (self.examples, self.batch_size)
        if sampled == (self.participations is not None):
            raise ValueError("give examples and batch_size, or participations")
        if sampled and (self.epochs is None) == (self.noise_multiplier is None):
            raise ValueError("give exactly one of epochs and noise_multiplier")


@dataclass(frozen=True)
class Reaccounted:
    """A result computed again, at equal δ, with the assumptions beside each number.

    Attributes:
        published: ε as printed.
        delta: the printed δ, at which the rest is computed.
        text: ε that can be guaranteed for the text's algorithm: per-example clipping and Poisson
            sampling as the text has it, under the accountant named (RDP).
        text_tight: the same under PRV; nan where it cannot say.
        released: ε that can be guaranteed for what the released code runs, under RDP.
        released_tight: the same under PRV.
    """

    paper: str
    result: str
    where: str
    published: float
    delta: float
    text: float
    text_tight: float
    released: float
    released_tight: float
    examples: int | None
    batch_size: int | None
    steps: int
    noise_multiplier: float
    released_noise_multiplier: float
    noise_source: str
    steps_source: str
    released_code: str


def read_published(path: Path) -> list[Published]:
    """Read the published results.

    Raises:
        UserError: the file is missing or wrong; names the key and what is allowed.
    """
    try:
        values = load_yaml(path.read_text(encoding="utf-8"))["results"]
    except (OSError, TypeError, KeyError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not a file of published results: {error}.") from None
    return [
        parse(Published, row, file=str(path), key=f"results[{number}]")
        for number, row in enumerate(values)
    ]


def reaccount(result: Published) -> Reaccounted:
    """Compute a published result again: ε of the text and of the released code, at its δ."""
    assumed = _sampled(result) if result.participations is None else _not_sampled(result)

    def epsilon_of(accountant: str, sigma: float) -> float:
        return _epsilon(result, accountant, sigma, assumed.steps, assumed.delta)

    sigma = assumed.noise_multiplier
    # Of released code without sampling, nothing is known.
    divisor = result.noise_divisor if result.participations is None else None
    released = math.nan if divisor is None else sigma / divisor
    return Reaccounted(
        paper=result.paper,
        result=result.result,
        where=result.where,
        published=result.epsilon,
        delta=assumed.delta,
        text=epsilon_of(NAMED, sigma / result.text_divisor),
        text_tight=epsilon_of(TIGHT, sigma / result.text_divisor),
        released=epsilon_of(NAMED, released),
        released_tight=epsilon_of(TIGHT, released),
        examples=result.examples,
        batch_size=result.batch_size,
        steps=assumed.steps,
        noise_multiplier=sigma,
        released_noise_multiplier=released,
        noise_source=assumed.noise_source,
        steps_source=assumed.steps_source,
        released_code=result.released,
    )


def to_csv(rows: list[Reaccounted]) -> str:
    """Return the table as CSV text, full precision."""
    return csv_text([field.name for field in fields(Reaccounted)], map(asdict, rows))


@dataclass(frozen=True)
class Assumed:
    """δ, σ and T with which a result is computed again, and where σ and T come from."""

    delta: float
    noise_multiplier: float
    steps: int
    noise_source: str
    steps_source: str


def _sampled(result: Published) -> Assumed:
    """Return what is assumed of releases that sampling amplifies; what is not printed is solved."""
    assert result.examples is not None
    assert result.batch_size is not None
    n, rate = result.examples, result.batch_size / result.examples
    delta = 1 / n if isinstance(result.delta, str) else result.delta
    named = {"1/n": 1 / n, "n^-1.1": n**-1.1, "1/batches": 1 / math.ceil(n / result.batch_size)}
    given = result.nominal_delta
    nominal = named[given] if isinstance(given, str) else given
    by = result.accountant.upper()
    solved = f"solved: {by} gives the published ε at δ = {nominal:.3g}"
    if result.noise_multiplier is not None:
        sigma = result.noise_multiplier
        steps = _steps(result, sigma, nominal)
        return Assumed(delta, sigma, steps, result.noise_source, solved)
    assert result.epochs is not None
    steps = round(result.epochs / rate)
    budget = Budget(
        epsilon=result.epsilon,
        delta=nominal,
        accountant=result.accountant,
        sampler="poisson",
        participation=Participation(sampling_rate=rate, steps=steps),
    )
    sigma = calibrate(budget).noise_multiplier
    return Assumed(delta, sigma, steps, solved, f"{result.epochs:g} epochs")


def _not_sampled(result: Published) -> Assumed:
    """Return what is assumed of k participations of the Gaussian mechanism."""
    sigma, k = result.noise_multiplier, result.participations
    assert sigma is not None
    assert k is not None
    assert not isinstance(result.delta, str)
    source = f"{k} participations, no amplification, exact"
    return Assumed(result.delta, sigma, k, result.noise_source, source)


def _steps(result: Published, sigma: float, delta: float) -> int:
    """Return the most steps that cost at most the published ε by the code's accountant."""

    def too_many(steps: int) -> bool:
        spent = _epsilon(result, result.accountant, sigma, steps, delta)
        return not spent <= result.epsilon  # or nan

    return bisect_left(range(MOST_STEPS), True, key=too_many) - 1


def _epsilon(result: Published, accountant: str, sigma: float, steps: int, delta: float) -> float:
    """Return ε; nan where the accountant cannot say, or the noise is not known.

    Without sampling it is exact: that of one participation at σ/√k.
    """
    if math.isnan(sigma) or (result.degree is not None and accountant != NAMED):
        return math.nan
    if result.examples is None or result.batch_size is None:
        return gaussian_epsilon(sigma / math.sqrt(steps), delta)
    rate = result.batch_size / result.examples
    try:
        if result.degree is None:
            return epsilon(
                accountant, noise_multiplier=sigma, sampling_rate=rate, steps=steps, delta=delta
            )
        releases = Releases(
            noise_multiplier=sigma,
            sampling_rate=rate,
            steps=steps,
            delta=delta,
            affected_examples=result.degree + 1,  # per-example gradients that one node can change
            examples=result.examples,
        )
        return node_epsilon(releases)
    except AccountantError:
        return math.nan
