"""Published ε computed again: what can be guaranteed for the text and for the released code.

Each ε is an upper bound for the worst case. What an attack gains may be less.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import yaml

from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Count, Positive, Probability, parse
from clipnoise.files import csv_text, load_yaml
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.accountants.nodes import affected_examples, node_epsilon
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
        values = load_yaml(path.read_text())["results"]
    except (OSError, TypeError, KeyError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not a file of published results: {error}.") from None
    return [
        parse(Published, row, file=str(path), key=f"results[{number}]")
        for number, row in enumerate(values)
    ]


def reaccount(result: Published) -> Reaccounted:
    """Compute a published result again.

    Args:
        result: what was published.

    Returns:
        ε of the text and of the released code, at the published δ.
    """
    if result.participations is not None:
        return _without_amplification(result)
    assert result.examples is not None
    assert result.batch_size is not None
    n, rate = result.examples, result.batch_size / result.examples
    delta = 1 / n if isinstance(result.delta, str) else result.delta
    nominal = _nominal_delta(result, n, delta)
    if result.noise_multiplier is None:
        assert result.epochs is not None
        steps = round(result.epochs / rate)
        steps_source = f"{result.epochs:g} epochs"
        participation = Participation(sampling_rate=rate, steps=steps)
        budget = Budget(
            epsilon=result.epsilon,
            delta=nominal,
            accountant="rdp",
            sampler="poisson",
            participation=participation,
        )
        sigma = calibrate(budget).noise_multiplier
        noise_source = f"solved: RDP gives the published ε at δ = {nominal:.3g}"
    else:
        sigma, noise_source = result.noise_multiplier, result.noise_source
        steps = _steps(result, sigma, rate, nominal)
        steps_source = f"solved: RDP gives the published ε at δ = {nominal:.3g}"
    real = math.nan if result.noise_divisor is None else sigma / result.noise_divisor
    return Reaccounted(
        paper=result.paper,
        result=result.result,
        where=result.where,
        published=result.epsilon,
        published_delta=delta,
        delta=delta,
        text=_epsilon(result, NAMED, sigma, rate, steps, delta),
        text_tight=_epsilon(result, "prv", sigma, rate, steps, delta),
        released=_epsilon(result, NAMED, real, rate, steps, delta),
        released_tight=_epsilon(result, "prv", real, rate, steps, delta),
        examples=n,
        batch_size=result.batch_size,
        steps=steps,
        noise_multiplier=sigma,
        released_noise_multiplier=real,
        noise_source=noise_source,
        steps_source=steps_source,
        released_code=result.released,
    )


def to_csv(rows: list[Reaccounted]) -> str:
    """Return the table as CSV text, full precision."""
    return csv_text([field.name for field in fields(Reaccounted)], map(asdict, rows))


def _nominal_delta(result: Published, examples: int, delta: float) -> float:
    if result.nominal_delta == "1/batches":
        assert result.batch_size is not None
        return 1 / math.ceil(examples / result.batch_size)
    return 1 / examples if isinstance(result.nominal_delta, str) else result.nominal_delta


def _steps(result: Published, sigma: float, rate: float, delta: float) -> int:
    """Return the most steps that cost at most the published ε under the accountant named."""
    low, high = 0, 1
    while _epsilon(result, NAMED, sigma, rate, high, delta) <= result.epsilon and high < MOST_STEPS:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        inside = _epsilon(result, NAMED, sigma, rate, middle, delta) <= result.epsilon
        low, high = (middle, high) if inside else (low, middle)
    return low


def _epsilon(
    result: Published, accountant: str, sigma: float, rate: float, steps: int, delta: float
) -> float:
    """Return ε; nan where the accountant cannot say, or nobody knows the noise."""
    if math.isnan(sigma) or (result.degree is not None and accountant != NAMED):
        return math.nan
    try:
        if result.degree is not None:
            return node_epsilon(
                Releases(
                    noise_multiplier=sigma,
                    affected_examples=affected_examples(result.degree),
                    sampling_rate=rate,
                    examples=result.examples,
                    steps=steps,
                    delta=delta,
                )
            )
        return epsilon(
            accountant, noise_multiplier=sigma, sampling_rate=rate, steps=steps, delta=delta
        )
    except AccountantError:
        return math.nan


def _without_amplification(result: Published) -> Reaccounted:
    """Compute k participations of the Gaussian mechanism, exactly: one at σ/√k."""
    sigma, k = result.noise_multiplier, result.participations
    assert sigma is not None
    assert k is not None
    assert not isinstance(result.delta, str)
    exact = gaussian_epsilon(sigma / math.sqrt(k), result.delta)
    missing: dict[str, Any] = {"examples": None, "batch_size": None}
    return Reaccounted(
        paper=result.paper,
        result=result.result,
        where=result.where,
        published=result.epsilon,
        published_delta=result.delta,
        delta=result.delta,
        text=exact,
        text_tight=exact,
        released=math.nan,
        released_tight=math.nan,
        steps=k,
        noise_multiplier=sigma,
        released_noise_multiplier=math.nan,
        noise_source=result.noise_source,
        steps_source=f"{k} participations, no amplification, exact",
        released_code=result.released,
        **missing,
    )
