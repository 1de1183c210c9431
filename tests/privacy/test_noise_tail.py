"""How far noise reaches: its tail is that of a normal distribution, whatever draws it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from clipnoise.audit.noise import IN_A_ROW, ONES
from clipnoise.privacy import draws
from clipnoise.privacy.budget import Budget
from clipnoise.privacy.calibration import calibrate
from clipnoise.privacy.draws import DIGITS, REACH, TAIL, Draws, secure_normals
from clipnoise.privacy.noise import NoiseSource
from clipnoise.privacy.noise_strategies import optimal_toeplitz
from clipnoise.privacy.participation import Participation
from clipnoise.seeds import WORDS, generator, twister

EXTREME = 1 - 2.0**-DIGITS  # the largest uniform
FEW = 32  # normals that a generator draws from nothing but ones
PLAIN_REACH = math.sqrt(2 * 24 * math.log(2))  # of torch in float32 on a CPU
# n, B, epochs, ε and δ
STUDIES = (
    (60_000, 600, 30, 8, 1 / 60_000),
    (50_000, 1_000, 30, 3, 1e-5),
    (32_561, 256, 10, 8, 1 / 32_561),
    (50_000, 500, 100, 8, 1e-6),
    (10**6, 4_096, 10, 8, 1e-7),
    (60_000, 600, 30, 8, 1e-9),
    (10**6, 4_096, 10, 20, 1e-9),
)


def all_ones() -> torch.Generator:
    words = np.zeros(WORDS, dtype="uint32")
    words[-IN_A_ROW:] = ONES
    return twister(words)


def test_the_driven_generator_gives_nothing_but_ones() -> None:
    drawn = torch.rand(IN_A_ROW // 2, generator=all_ones(), dtype=torch.float64)
    assert set(drawn.tolist()) == {EXTREME}
    assert float(torch.randn(FEW, generator=all_ones()).max()) == pytest.approx(PLAIN_REACH)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_seeded_noise_reaches_as_far_as_stated(dtype: torch.dtype) -> None:
    z = Draws(all_ones()).normals((FEW,), torch.zeros(0, dtype=dtype))
    expected = norm.isf(norm.sf(TAIL) * 2.0 ** (-2 * DIGITS))
    assert float(z.max()) == pytest.approx(expected)
    assert expected > REACH


class Ones:
    """A cipher that gives nothing but ones."""

    def update(self, data: bytes) -> bytes:
        return b"\xff" * len(data)


def test_secure_uniforms_have_all_the_digits_of_the_seeded_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draws, "_stream", Ones)
    assert set(Draws(None).uniform(FEW).tolist()) == {EXTREME}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_secure_noise_reaches_as_far(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "_stream", Ones)
    z = secure_normals((FEW,), torch.zeros(0, dtype=dtype))
    assert float(z.abs().max()) > REACH


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_noise_on_a_gpu_reaches_as_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def extreme(self: Draws, count: int) -> torch.Tensor:
        return torch.full((count,), EXTREME, dtype=torch.float64, device="cuda")

    monkeypatch.setattr(Draws, "uniform", extreme)
    stream = Draws(generator("noise", 0, "cuda"))
    z = stream.normals((100_000,), torch.zeros(0, device="cuda")).abs()
    assert z.is_cuda
    assert int((z > TAIL).sum()) == int((z > REACH).sum()) > 0


def test_correlated_noise_is_mixed_from_normals_that_reach_as_far() -> None:
    like, strategy = torch.zeros(FEW), optimal_toeplitz(4, 2)
    source = NoiseSource(all_ones(), like, strategy)
    (mixed,) = source.next()
    assert float(mixed.max()) / math.sqrt(source.row_norm_squared(1)) > REACH


@pytest.mark.parametrize("uniform", [0.0, 0.5, EXTREME])
def test_a_number_in_the_tail_is_beyond_its_threshold_and_keeps_its_sign(uniform: float) -> None:
    numbers = np.array([0.1, 3.6, -3.6, -TAIL])

    def same(count: int) -> torch.Tensor:
        return torch.full((count,), uniform, dtype=torch.float64)

    draws._draw_again(numbers, draws._beyond(numbers), same)
    chance = 1 - uniform - 2.0**-DIGITS * uniform
    size = norm.isf(norm.sf(TAIL) * chance)
    assert numbers == pytest.approx([0.1, size, -size, -TAIL])


def impossible(reach: float, study: tuple[int, int, int, int, float]) -> float:
    """Return the probability of an output that cannot be without the example, in any step.

    It lies beyond the reach of the noise, in the direction of the example's gradient.
    """
    n, size, epochs, epsilon, delta = study
    q, steps = size / n, round(epochs * n / size)
    budget = Budget(
        epsilon=epsilon,
        delta=delta,
        accountant="rdp",
        sampler="poisson",
        participation=Participation(sampling_rate=q, steps=steps),
    )
    sigma = calibrate(budget).noise_multiplier
    return -math.expm1(steps * math.log1p(-q * float(norm.sf(reach - 1 / sigma))))


@pytest.mark.parametrize("study", STUDIES)
def test_the_end_of_the_tail_costs_no_more_than_a_thousandth_of_delta(study: Any) -> None:
    assert impossible(REACH, study) < 1e-3 * study[-1]


@pytest.mark.long
def test_the_tail_of_torch_alone_would_cost_more_than_delta() -> None:
    assert max(impossible(PLAIN_REACH, study) / study[-1] for study in STUDIES) > 1000


@pytest.mark.parametrize("secure", [False, True])
def test_the_tail_has_the_weight_and_the_shape_of_a_normal_one(secure: bool) -> None:
    """Each count is within six standard deviations; the shape passes at p = 1e-8."""
    count = 3_000_000
    z = Draws(None if secure else generator("noise", 0)).normals((count,), torch.zeros(0))
    for beyond in (3.0, TAIL, 3.75, 4.0, 4.5):
        for side in (z, -z):
            expected = count * norm.sf(beyond)
            assert abs(int((side > beyond).sum()) - expected) < 6 * math.sqrt(expected)
    lengths = z.abs()[z.abs() > TAIL].double().numpy()
    uniform = norm.sf(lengths) / norm.sf(TAIL)
    assert kstest(uniform, "uniform").pvalue > 1e-8


@pytest.mark.parametrize("count", [0, 1, 15, 16, 650, 70_000])
def test_what_is_not_in_the_tail_is_what_the_generator_drew(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draws, "PIECE", 4_096)
    plain = torch.randn(count, generator=generator("noise", 3))
    z = Draws(generator("noise", 3)).normals((count,), torch.zeros(0))
    body = plain.abs() <= TAIL
    assert torch.equal(z[body], plain[body])
    assert (z[~body].abs() >= TAIL).all()
    assert torch.equal(z.sign(), plain.sign())


def test_the_tail_is_drawn_again_on_other_devices_as_on_the_cpu() -> None:
    class Elsewhere(torch.Tensor):
        is_cpu = False

    here, there = (
        Draws(generator("noise", 0)).normals((20_000,), like)
        for like in (torch.zeros(0), torch.zeros(0).as_subclass(Elsewhere))
    )
    assert (here.abs() > TAIL).any()
    assert torch.equal(here, there.as_subclass(torch.Tensor))


def test_a_stream_goes_on_bit_for_bit_after_numbers_from_the_tail() -> None:
    like = torch.zeros(20_000)
    whole, first = (NoiseSource(generator("noise", 0), like) for _ in range(2))
    expected = [whole.next(2) for _ in range(3)]
    assert any((z.abs() > TAIL).any() for z in expected[0])
    first.next(2)
    resumed = NoiseSource(generator("noise", 9), like)
    resumed.set_state({name: value.clone() for name, value in first.get_state().items()})
    for step in expected[1:]:
        assert all(torch.equal(a, b) for a, b in zip(step, resumed.next(2), strict=True))
