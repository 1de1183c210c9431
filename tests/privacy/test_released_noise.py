"""The noise of a release, and a denominator that is never the realised batch size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from every_method import FAMILIES, VARIANTS, build
from torch import Tensor

from clipnoise import replay
from clipnoise.core.clipping import ClippedSum, Clipping
from clipnoise.core.query import Query
from clipnoise.core.state import Public
from clipnoise.core.step import privatize
from clipnoise.gradients.clipping import clipped_sum

D, DRAWS = 3, 4000
THETA = torch.zeros(D, dtype=torch.float64)
SIGMA, C, B = 0.8, 1.5, 12.5
NOISY = [(name, options) for name, options in VARIANTS if build(name, **options).query.draws]


def release(query: Query, total: Tensor, noise: list[Tensor]) -> tuple[Tensor, ...]:
    constants = Public(noise_multiplier=SIGMA, expected_batch_size=B, total_steps=1)
    return privatize(ClippedSum(total), query, Clipping(C, of=query.of), noise, constants)


def normal(query: Query, draw: torch.Generator) -> list[Tensor]:
    drawn = len(query.noise_like(THETA))
    return [torch.randn(drawn, generator=draw, dtype=torch.float64) for _ in range(query.draws)]


@pytest.mark.quick(name=FAMILIES)
@pytest.mark.parametrize(("name", "options"), NOISY)
def test_noise_has_mean_zero_and_the_declared_covariance(
    name: str, options: dict[str, Any]
) -> None:
    query = build(name, **options).query
    draw = torch.Generator().manual_seed(0)
    total = torch.randn(len(query.of.zeros(THETA)), generator=draw, dtype=torch.float64)
    each = query.values(total / B, C)
    values = torch.cat(each)
    samples = torch.stack(
        [
            torch.cat(
                release(
                    query,
                    total,
                    normal(query, draw),
                )
            )
            for _ in range(DRAWS)
        ]
    )
    deviations = torch.tensor(
        [
            component.noise_factor * SIGMA * component.sensitivity
            if component.noise_factor
            else 0.0
            for value, component in zip(each, query.components(C, B), strict=True)
            for _ in value
        ],
        dtype=torch.float64,
    )
    error = (samples - values) / deviations.where(deviations > 0, 1.0)
    expected = (deviations > 0).double()
    # six standard errors of a mean and of a covariance of DRAWS standard normals
    assert (error.mean(dim=0).abs() <= 6 / DRAWS**0.5).all()
    covariance = error.T @ error / DRAWS
    assert ((covariance - expected.diag()).abs() <= 6 * (2 / DRAWS) ** 0.5).all()


@pytest.mark.parametrize("examples", [0, 1, 7, 60])
def test_the_denominator_is_the_expected_batch_size_whatever_was_drawn(examples: int) -> None:
    rows = torch.full((examples, D), 1e3, dtype=torch.float64)
    (mean,) = release(
        build("dp-sgd").query,
        clipped_sum([rows], Clipping(clip_norm=C)),
        [torch.zeros(D, dtype=torch.float64)],
    )
    assert float(mean.norm()) == pytest.approx(examples * C / B)


@pytest.mark.parametrize(("name", "options"), NOISY)
def test_an_empty_batch_releases_pure_noise(name: str, options: dict[str, Any]) -> None:
    query = build(name, **options).query
    draw = torch.Generator().manual_seed(1)
    noise = normal(query, draw)
    clipping = Clipping(C, of=query.of)
    empty = clipped_sum([THETA.new_zeros(0, len(query.of.vector(THETA)))], clipping)
    supply = iter(noise)
    for value, component in zip(release(query, empty, noise), query.components(C, B), strict=True):
        expected = torch.zeros(len(value), dtype=torch.float64)
        if component.noise_factor > 0:
            deviation = component.noise_factor * SIGMA * component.sensitivity
            expected = deviation * next(supply)[: len(value)]
        assert torch.allclose(value, expected, rtol=1e-14, atol=0)


def test_the_published_noise_of_each_query() -> None:
    """Standard deviations as the papers print them, at C = 1.5, B = 12.5, σ = 0.8."""

    def deviations(name: str, **options: Any) -> list[float]:
        query = build(name, clip_norm=C, **options).query
        ones = [torch.ones(1, dtype=torch.float64) for _ in range(query.draws)]
        return [float(x) for x in release(query, torch.zeros(1, dtype=torch.float64), ones)]

    plain = SIGMA * C / B
    square = SIGMA * (2 * B + 1) * C**2 / B**2
    assert deviations("dp-adam") == pytest.approx([plain])
    assert deviations("dp-adam-noiseless") == pytest.approx([plain])
    assert deviations("ime-adam") == pytest.approx([2**0.5 * plain, 2**0.5 * square])
    assert deviations("ime-adam", for_free=True) == pytest.approx([plain, square])
    weight = 1 / (2 * C**2)
    published = [2 * plain, 2 * plain / weight]
    assert deviations("jme-adam", accounting="as-published") == pytest.approx(published)
    corrected = [(1 + 1 / C**2) ** 0.5 * x for x in published]
    assert deviations("jme-adam") == pytest.approx(corrected)


def test_scaled_noise_is_added_in_the_scaled_space() -> None:
    """With γ1 = 0.1 the first StP-Adam step sees noise of deviation γ1·σC/B, un-scaled."""
    h = {"learning_rate": 1.0, "clip_norm": C, "noise_multiplier": SIGMA, "expected_batch_size": B}
    h |= {"gamma_scale": 0.1, "gamma": 1.0, "betas": [0.0, 0.0]}
    out = replay("stp-adam", h, [0.0], torch.zeros(1, 0, 1).numpy(), [[1.0]])
    g = 0.1 * SIGMA * C / B
    assert -out[1, 0] == pytest.approx(g / (g + 1.0))
