"""The noise check: variance and covariance of what is added, against what is declared."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from clipnoise.audit.bench import least_squares
from clipnoise.audit.moments import life

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.audit.bench import Bench
    from clipnoise.audit.moments import Moment
    from clipnoise.audit.subject import Subject
    from clipnoise.core.clipping import Clipping

STREAMS, LENGTH = 300, 10  # streams of noise, and steps of each
SIGMA = 1.3
DEVIATIONS = 5.0  # a normal number is beyond once in two million times
DIMENSION = 4


def check_noise(subject: Subject, seed: int = 0) -> dict[str, Any]:
    """Release the same batch many times and hold the noise to its declared covariance.

    The noise of a run is drawn from its own source, divided by the declared standard deviation
    and, where it is correlated across steps, multiplied by the strategy matrix. What is left must
    be independent standard normal numbers: over steps, coordinates and components.

    Args:
        subject: the method.
        seed: of the noise.

    Returns:
        Plain data: the variance (1 when as declared), the largest covariance off the diagonal, how
        many numbers they rest on, `holds` and `said`.
    """
    bench = least_squares(DIMENSION, seed)
    moment = list(life(subject, bench, expected_batch_size=4.0, seed=seed))[2]
    streams = [_stream(subject, moment, bench, seed + number) for number in range(STREAMS)]
    rows = torch.stack(streams).flatten(1)  # one stream a row: steps, components, coordinates
    variance = float(rows.square().mean())
    count = rows.numel()
    covariance = rows.T @ rows / len(rows)
    off = covariance - torch.diag(covariance.diagonal())
    largest = float(off.abs().max())
    pairs = covariance.numel()
    margin = DEVIATIONS * math.sqrt(2 / count)
    allowed = math.sqrt(2 * math.log(pairs * 1e6) / len(rows)) * max(1.0, variance)
    holds = abs(variance - 1) <= margin and largest <= allowed
    return {
        "variance": variance,
        "margin": margin,
        "largest_covariance": largest,
        "allowed_covariance": allowed,
        "numbers": count,
        "holds": holds,
        "said": _words(variance, margin, largest, allowed),
    }


def _words(variance: float, margin: float, largest: float, allowed: float) -> str:
    if abs(variance - 1) > margin:
        return f"the noise has {variance:.3g} times the declared variance"
    if largest > allowed:
        return f"noise that should be independent has covariance {largest:.2g}"
    return "the noise is as declared"


def _stream(subject: Subject, moment: Moment, bench: Bench, seed: int) -> Tensor:
    """Return one stream of standardised, whitened noise, shape (steps, components, d)."""
    query, engine, like = subject.method.query, bench.engines["vmap"], bench.theta
    source = subject.noise.source(LENGTH, torch.Generator().manual_seed(seed), like)
    total = subject.form(engine, bench.pool, torch.arange(8), *_sum_arguments(subject, moment))
    subject = replace(subject, form=lambda *_: total)  # the same batch each time: sum it once
    clean = moment.release(subject, engine, bench.pool).values
    steps, factor = [], subject.sensitivity_factor
    for _ in range(LENGTH):
        noise = source.next(query.draws)
        release = moment.release(subject, engine, bench.pool, noise=noise, sigma=SIGMA)
        components = query.components(release.clip_norm, release.expected_batch_size)
        numbers = [
            (noisy - value) / (SIGMA * component.noise_factor * component.sensitivity * factor)
            for noisy, value, component in zip(release.values, clean, components, strict=True)
            if component.noise_factor > 0
        ]
        steps.append(torch.stack(numbers))
    stacked = torch.stack(steps)
    strategy = subject.noise.strategy(LENGTH)
    if strategy is None:
        return stacked
    whiten = torch.as_tensor(strategy.matrix(), dtype=stacked.dtype)
    return torch.einsum("ts,spd->tpd", whiten, stacked)


def _sum_arguments(subject: Subject, moment: Moment) -> tuple[list[Tensor], Clipping, int]:
    clipping = moment.clipping(subject)
    return moment.iterates[: len(clipping.weights)], clipping, 10**6
