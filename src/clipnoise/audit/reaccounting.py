"""Published ε computed again: what can be guaranteed for the text and for the released code.

Each ε is an upper bound for the worst case. What an attack gains may be less.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

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


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published ε and its settings; either the noise multiplier or the steps may be missing.

    Attributes:
        paper, result, where: which number it is.
        epsilon, delta: as published.
        nominal_delta: the δ at which the code computed ε: "1/n", "1/batches" or a number.
        examples, batch_size, epochs, participations: n, B, passes over the data, or for a result
            without amplification how often an example takes part.
        noise_multiplier, noise_source: σ and where it is printed.
        noise_divisor: by which σ of the released code is smaller than accounted; None where no
            accountant here covers what it does.
        degree: K, the bound on out-degrees, where examples are nodes of a graph.
        released: what the released code does.
    """

    __pydantic_config__: ClassVar = STRICT

    paper: str
    result: str
    where: str
    epsilon: Positive
    delta: Probability | Literal["1/n"]
    nominal_delta: Probability | Literal["1/n", "1/batches"]
    examples: Count | None = None
    batch_size: Count | None = None
    epochs: Positive | None = None
    participations: Count | None = None
    noise_multiplier: Positive | None = None
    noise_source: str = ""
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
        published, published_delta: ε and δ as printed.
        delta: at which the rest is computed.
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
    published_delta: float
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
    found = _sampled(result) if result.participations is None else _not_sampled(result)
    return Reaccounted(
        paper=result.paper,
        result=result.result,
        where=result.where,
        published=result.epsilon,
        examples=result.examples,
        batch_size=result.batch_size,
        released_code=result.released,
        **found,
    )


def to_csv(rows: list[Reaccounted]) -> str:
    """Return the table as CSV text, full precision."""
    return csv_text([field.name for field in fields(Reaccounted)], map(asdict, rows))


def _sampled(result: Published) -> dict[str, Any]:
    """Compute releases that are amplified by sampling; what is not printed is solved for."""
    assert result.examples is not None
    assert result.batch_size is not None
    n, rate = result.examples, result.batch_size / result.examples
    delta = 1 / n if isinstance(result.delta, str) else result.delta
    nominal = result.nominal_delta
    if isinstance(nominal, str):
        nominal = 1 / (n if nominal == "1/n" else math.ceil(n / result.batch_size))
    solved = f"solved: RDP gives the published ε at δ = {nominal:.3g}"
    if result.noise_multiplier is None:
        assert result.epochs is not None
        steps, steps_source = round(result.epochs / rate), f"{result.epochs:g} epochs"
        budget = Budget(
            epsilon=result.epsilon,
            delta=nominal,
            accountant="rdp",
            sampler="poisson",
            participation=Participation(sampling_rate=rate, steps=steps),
        )
        sigma, noise_source = calibrate(budget).noise_multiplier, solved
    else:
        sigma, noise_source = result.noise_multiplier, result.noise_source
        steps, steps_source = _steps(result, sigma, rate, nominal), solved
    real = math.nan if result.noise_divisor is None else sigma / result.noise_divisor
    return {
        "published_delta": delta,
        "delta": delta,
        "text": _epsilon(result, NAMED, sigma, rate, steps, delta),
        "text_tight": _epsilon(result, "prv", sigma, rate, steps, delta),
        "released": _epsilon(result, NAMED, real, rate, steps, delta),
        "released_tight": _epsilon(result, "prv", real, rate, steps, delta),
        "steps": steps,
        "noise_multiplier": sigma,
        "released_noise_multiplier": real,
        "noise_source": noise_source,
        "steps_source": steps_source,
    }


def _not_sampled(result: Published) -> dict[str, Any]:
    """Compute k participations of the Gaussian mechanism, exactly: one at σ/√k."""
    sigma, k = result.noise_multiplier, result.participations
    assert sigma is not None
    assert k is not None
    assert not isinstance(result.delta, str)
    exact = gaussian_epsilon(sigma / math.sqrt(k), result.delta)
    return {
        "published_delta": result.delta,
        "delta": result.delta,
        "text": exact,
        "text_tight": exact,
        "released": math.nan,
        "released_tight": math.nan,
        "steps": k,
        "noise_multiplier": sigma,
        "released_noise_multiplier": math.nan,
        "noise_source": result.noise_source,
        "steps_source": f"{k} participations, no amplification, exact",
    }


def _steps(result: Published, sigma: float, rate: float, delta: float) -> int:
    """Return the most steps that cost at most the published ε under the accountant named."""

    def too_many(steps: int) -> bool:
        return not _epsilon(result, NAMED, sigma, rate, steps, delta) <= result.epsilon  # or nan

    return bisect_left(range(MOST_STEPS), True, key=too_many) - 1


def _epsilon(
    result: Published, accountant: str, sigma: float, rate: float, steps: int, delta: float
) -> float:
    """Return ε; nan where the accountant cannot say, or nobody knows the noise."""
    if math.isnan(sigma) or (result.degree is not None and accountant != NAMED):
        return math.nan
    given: dict[str, Any] = {"sampling_rate": rate, "steps": steps, "delta": delta}
    given["noise_multiplier"] = sigma
    try:
        if result.degree is None:
            return epsilon(accountant, **given)
        affected = result.degree + 1  # per-example gradients that one node can change
        return node_epsilon(Releases(affected_examples=affected, examples=result.examples, **given))
    except AccountantError:
        return math.nan
