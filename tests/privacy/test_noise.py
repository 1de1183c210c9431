"""Noise: standard normal, fresh at every step and release, and reproducible from a seed."""

from __future__ import annotations

import math

import pytest
import torch

from clipnoise.core.clipping import ClippedSum, Clipping
from clipnoise.core.state import Public
from clipnoise.core.step import privatize
from clipnoise.privacy.noise import NoiseSource
from clipnoise.privacy.queries import ClippedMean, IndependentMoments
from clipnoise.seeds import generator


def source(d: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> NoiseSource:
    return NoiseSource(generator("noise", seed), torch.zeros(d, dtype=dtype))


def test_noise_is_standard_normal() -> None:
    (z,) = source(400_000).next()
    count = z.numel()
    moments = [float(z.double().pow(k).mean()) for k in (1, 2, 3, 4)]
    for measured, expected, variance in zip(moments, [0, 1, 0, 3], [1, 2, 15, 96], strict=True):
        assert abs(measured - expected) < 6 * math.sqrt(variance / count)


def test_coordinates_steps_and_releases_are_uncorrelated() -> None:
    stream = source(200_000)
    first, second = stream.next(2)
    (third,) = stream.next(1)
    bound = 6 / math.sqrt(200_000)
    for a, b in [(first, second), (second, third), (first, third), (first[1:], first[:-1])]:
        assert abs(float((a * b).mean())) < bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_has_the_shape_and_dtype_of_the_parameters(dtype: torch.dtype) -> None:
    draws = source(5, dtype=dtype).next(3)
    assert [(z.shape, z.dtype) for z in draws] == [(torch.Size([5]), dtype)] * 3


def test_no_draws_use_no_randomness() -> None:
    stream, untouched = source(4), source(4)
    assert stream.next(0) == []
    assert torch.equal(stream.next()[0], untouched.next()[0])


def test_a_seed_gives_the_same_noise_and_a_restored_stream_continues() -> None:
    stream, again = source(100, seed=1), source(100, seed=1)
    assert torch.equal(stream.next()[0], again.next()[0])
    saved = {name: value.clone() for name, value in stream.get_state().items()}
    expected = [stream.next(2) for _ in range(3)]
    resumed = source(100, seed=5)
    resumed.set_state(saved)
    for draws in expected:
        assert all(torch.equal(a, b) for a, b in zip(draws, resumed.next(2), strict=True))


def test_independent_noise_has_unit_rows() -> None:
    assert {source(3).row_norm_squared(step) for step in (1, 2, 100)} == {1.0}


def test_a_release_carries_the_noise_its_query_declares() -> None:
    sigma, clip_norm, b, d = 1.7, 0.5, 8.0, 200_000
    for query in (ClippedMean(), IndependentMoments()):
        total, noise = ClippedSum(torch.zeros(d)), source(d).next(query.draws)
        constants = Public(noise_multiplier=sigma, expected_batch_size=b, total_steps=1)
        released = privatize(total, query, Clipping(clip_norm), noise, constants)
        for value, component in zip(released, query.components(clip_norm, b), strict=True):
            deviation = component.noise_factor * sigma * component.sensitivity
            assert float(value.std()) == pytest.approx(deviation, rel=6 / math.sqrt(2 * d))
            assert abs(float(value.mean())) < 6 * deviation / math.sqrt(d)
