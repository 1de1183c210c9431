"""The noise check: what the training loop really adds at every step, against what is declared."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from clipnoise.audit.findings import NoiseFinding
from clipnoise.audit.subject import SummedBy, at_clip_norm, recorded_run, run_spec
from clipnoise.lazy import np
from clipnoise.privacy.draws import REACH
from clipnoise.privacy.noise import NoiseSource
from clipnoise.seeds import WORDS, twister

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    from clipnoise.audit.subject import Subject
    from clipnoise.core.clipping import Clipping
    from clipnoise.gradients.units import PrivateUnits
    from clipnoise.privacy.noise_strategies import Array, Strategy
    from clipnoise.run.spec import RunSpec
    from clipnoise.run.train import Run

# B, n (None for that of the digits), the factor on the clip norm, σ and T. The first run is as long
# as a study's.
GRID = (
    (4, None, 1.0, 1.3, 1000),
    (64, 80, 0.1, 0.5, 40),
    (720, None, 10.0, 6.0, 40),
)
ROUNDING = 1e-6
LOG_ODDS = math.log(1e6)  # a sound mechanism fails once in about a million times
# A word of a Mersenne Twister's state that leaves it as 32 ones, and how many it gives in a row
# where the words from 397 on are this one and the others are 0.
ONES, IN_A_ROW = 0x12DD9BB3, 227
DRIVEN = 32  # normals that are drawn from nothing but ones; those beyond the tail take more


def check_noise(subject: Subject, cache: Path, seed: int = 0) -> NoiseFinding:
    """Train runs with known sums and hold the noise of every step to what is declared.

    The noise of a run is what it releases less the values of the sum. It is divided by the declared
    standard deviation and, where it is correlated across steps, multiplied by the strategy matrix.
    What is left must be independent standard normal numbers: in every step, over steps, coordinates
    and components. No number of draws shows where the tail of the noise ends, so the generator is
    then made to give its most extreme numbers.

    Returns:
        What was found in the run that is furthest off.
    """
    runs = [_measure(subject, cache, seed, point) for point in GRID]
    worst = max(runs, key=lambda run: run.off)
    if worst.holds and not (reach := _reach(subject, cache, seed)) >= REACH:
        said = f"no noise is beyond {reach:.3g} standard deviations"
        worst = replace(worst, holds=False, off=REACH / max(1.0, reach), said=said)
    return replace(worst, numbers=sum(run.numbers for run in runs))


def _measure(
    subject: Subject, cache: Path, seed: int, point: tuple[int, int | None, float, float, int]
) -> NoiseFinding:
    """Measure the noise of one run, and how far off it is."""
    size, units, factor, sigma, steps = point
    spec = run_spec(
        at_clip_norm(subject, factor),
        noise_multiplier=sigma,
        expected_batch_size=size,
        units=units,
        steps=steps,
        seed=seed,
    )
    strategy = spec.mechanism.noise.strategy(steps, spec.mechanism.participation.groups)
    numbers, counts = _noise(subject, cache, spec, sigma, strategy)
    off = _moments(numbers)
    if counts.numel():
        square = float(counts.square().mean())
        off[f"{square:.3g} times the declared variance of the count"] = _off_few(counts)
    if strategy is not None:
        times = _distance(strategy.matrix(), spec.mechanism.participation.groups)
        off[f"too small a scale: participations move Cx {times:.3g} times as far as they may"] = (
            times / (1 + ROUNDING)
        )
    off = {name: math.inf if math.isnan(value) else value for name, value in off.items()}
    what = max(off, key=lambda name: off[name])
    holds = off[what] <= 1
    return NoiseFinding(
        variance=float(numbers.square().mean()),
        margin=math.sqrt(2 * LOG_ODDS * 2 / numbers.numel()),
        numbers=numbers.numel(),
        off=off[what],
        holds=holds,
        said="the noise is as declared" if holds else f"at B = {size}, the noise has {what}",
    )


def _moments(numbers: Tensor) -> dict[str, float]:
    """Return, in words, how far off moments of what should be standard normal are; see `_off`.

    Args:
        numbers: shape (T, components, d).
    """
    _, components, dimension = numbers.shape
    rows = numbers.flatten(0, 1)  # one row for each step and component
    count, squares = rows.numel(), rows.square()
    variances, columns = squares.mean(dim=1), squares.mean(dim=0)
    variance, step = float(squares.mean()), int((variances - 1).abs().argmax()) // components + 1
    at_step = float(variances.view(-1, components)[step - 1].mean())
    mean, fourth = float(rows.mean()), float(squares.square().mean())

    def covariance(matrix: Tensor) -> float:
        return float((matrix - torch.diag(matrix.diagonal())).abs().max())

    return {
        f"{variance:.3g} times the declared variance": _off(variance - 1, 1, count / 2),
        f"{at_step:.3g} times the declared variance at step {step}": _off(
            float((variances - 1).abs().max()), len(rows), dimension / 2
        ),
        f"{float(columns.min()):.3g} times the declared variance in one coordinate": _off(
            float((columns - 1).abs().max()), dimension, len(rows) / 2
        ),
        f"a mean of {mean:.2g} standard deviations": _off(mean, 1, count),
        f"a fourth moment of {fourth:.3g}, not 3": _off(fourth - 3, 1, count / 96),
        "covariance between steps or released values": _off(
            covariance(rows @ rows.T / dimension), len(rows) ** 2, dimension
        ),
        "covariance between coordinates": _off(
            covariance(rows.T @ rows / len(rows)), dimension**2, len(rows)
        ),
    }


def _off(difference: float, tried: int, numbers: float) -> float:
    """Return the worst of several differences in units of the largest one that chance allows.

    `numbers` is the inverse of the variance of one of them.
    """
    log_odds = LOG_ODDS + math.log(tried)
    allowed = math.sqrt(2 * log_odds / numbers) + log_odds / numbers  # squares have longer tails
    return abs(difference) / allowed


def _off_few(numbers: Tensor) -> float:
    """Return how far the variance of a few numbers is from 1, by Chernoff's bound for χ²."""
    square = max(float(numbers.square().mean()), 1e-300)
    return numbers.numel() / 2 * (square - 1 - math.log(square)) / (LOG_ODDS + math.log(2))


def _distance(matrix: Array, groups: int) -> float:
    """Return how far an example that takes part k times moves Cx at most, over √k."""
    steps = len(matrix)
    moved = [matrix[:, first::groups].sum(axis=1) for first in range(min(groups, steps))]
    return math.sqrt(max(float(rows @ rows) for rows in moved) / math.ceil(steps / groups))


def _noise(
    subject: Subject, cache: Path, spec: RunSpec, sigma: float, strategy: Strategy | None
) -> tuple[Tensor, Tensor]:
    """Return the standardised, whitened noise of a run.

    Returns:
        That of vectors, shape (steps, components, d), and that of extra coordinates, shape (steps,
        coordinates).
    """
    run, steps = _standardised(subject, cache, spec, sigma)
    d = len(spec.method.query.of.vector(run.state.theta))
    numbers = torch.stack(list(steps))
    if strategy is not None:
        numbers = torch.as_tensor(strategy.matrix(), dtype=numbers.dtype) @ numbers
    vectors = numbers.shape[1] // d * d
    return numbers[:, :vectors].view(len(numbers), -1, d), numbers[:, vectors:]


def _standardised(
    subject: Subject, cache: Path, spec: RunSpec, sigma: float
) -> tuple[Run, Iterator[Tensor]]:
    """Return a run with known sums, and an iterator that takes its steps and yields their noise.

    That of each step is divided by the declared standard deviations, all components in one vector.
    """
    run, recorder = recorded_run(subject, spec, cache, sigma)
    query = spec.method.query
    total = query.of.zeros(run.state.theta)

    def sums(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
        total[0] = clipping.clip_norm or 1.0
        return total

    def steps() -> Iterator[Tensor]:
        for batch in run.batches():
            run.step(batch)
            release = recorder.releases.pop()
            b, c = release.public.expected_batch_size, release.clipping.bound
            scaled = [
                (noisy - clean) / (sigma * component.noise_factor * component.sensitivity)
                for noisy, clean, component in zip(
                    release.values, query.values(total / b, c), query.components(c, b), strict=True
                )
                if component.noise_factor > 0
            ]
            yield torch.cat(scaled) / subject.sensitivity_factor

    run.units = SummedBy.of(run.units, sums)
    return run, steps()


def _reach(subject: Subject, cache: Path, seed: int) -> float:
    """Return the size of the noise of a step, in σ, where every bit of its generator is 1.

    That gives uniforms next to 1, from which generators make their largest normals.
    """
    size, _, _, sigma, steps = GRID[0]
    spec = run_spec(
        subject, noise_multiplier=sigma, expected_batch_size=size, steps=steps, seed=seed
    )
    words = np.zeros(WORDS, dtype="uint32")
    words[-IN_A_ROW:] = ONES
    source = spec.mechanism.noise.source(
        steps, spec.mechanism.participation.groups, twister(words), torch.zeros(DRIVEN)
    )
    (largest,) = source.next()
    run, released = _standardised(subject, cache, spec, sigma)
    like = spec.method.query.noise_like(run.state.theta)
    repeated = largest.repeat(len(like) // DRIVEN + 1)[: len(like)]
    run.noise = _Repeated(repeated / math.sqrt(source.row_norm_squared(1)))
    return float(next(released).abs().max())


class _Repeated(NoiseSource):
    """Noise that is the same at every step."""

    def __init__(self, normals: Tensor) -> None:
        super().__init__(None, normals)
        self._normals = normals

    def next(self, draws: int = 1) -> list[Tensor]:
        return [self._normals] * draws
