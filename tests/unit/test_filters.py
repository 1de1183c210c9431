"""What linear filters leave of independent noise, and what Adam takes off v̂ for it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from every_method import build
from numpy.typing import NDArray

from clipnoise.core.state import Public, State
from clipnoise.errors import UserError
from clipnoise.fields import parse, to_plain
from clipnoise.methods.filters import noise_gain, pass_noise_on
from clipnoise.run.spec import from_mapping

FILTERS: list[tuple[tuple[float, ...], tuple[float, ...]]] = [
    ((-0.9,), (0.1,)),
    ((-0.9,), (0.15, -0.05)),
    ((), (1.0,)),
    ((), (0.5, 0.3, 0.2)),
    ((-0.5, 0.2, -0.1), (0.3, 0.2, 0.05, 0.05)),
    ((-1.6, 0.8), (0.2,)),
]


def impulse_response(a: tuple[float, ...], b: tuple[float, ...], steps: int) -> NDArray[np.float64]:
    """h_0, h_1, …: what the filter makes of a single 1."""
    h: list[float] = []
    for t in range(steps):
        now = b[t] if t < len(b) else 0.0
        h.append(now - sum(a[r - 1] * h[t - r] for r in range(1, len(a) + 1) if r <= t))
    return np.array(h)


@pytest.mark.parametrize(("a", "b"), FILTERS)
def test_the_noise_gain_is_the_sum_of_the_squared_impulse_response(
    a: tuple[float, ...], b: tuple[float, ...]
) -> None:
    assert noise_gain(a, b) == pytest.approx(
        float(np.sum(impulse_response(a, b, 2000) ** 2)), rel=1e-9
    )


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
def test_the_noise_gain_of_an_average_is_known_in_closed_form(share: float) -> None:
    assert noise_gain((share - 1,), (share,)) == pytest.approx(share / (2 - share))


@pytest.mark.parametrize("a", [(-1.0,), (-2.0, 1.0), (0.0, 1.2)])
def test_a_filter_that_is_not_stable_has_no_noise_gain(a: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must be stable"):
        noise_gain(a, (0.1,))


@pytest.mark.parametrize(("a", "b"), FILTERS)
def test_noise_is_followed_step_by_step_also_where_its_variance_changes(
    a: tuple[float, ...], b: tuple[float, ...]
) -> None:
    steps, state = 12, State(torch.zeros(3))
    variances = 1 + np.arange(steps) % 3
    h = impulse_response(a, b, steps)
    for t in range(1, steps + 1):
        state.step = t
        found = pass_noise_on(a, b, float(variances[t - 1]), state)
        expected = sum(h[r] ** 2 * variances[t - 1 - r] for r in range(t))
        assert found == pytest.approx((expected, h[:t].sum()), rel=1e-9)


@pytest.mark.parametrize("omega", [0.05, 0.3, 0.7, 0.99])
def test_the_factor_of_fiber_is_the_noise_gain_of_its_filter(omega: float) -> None:
    """x_t = 2(1−ω)x_{t−1} − (1−ω)x_{t−2} + ωg_t, whose variance is that of an AR(2) process."""
    method: Any = build("fiber", omega=omega)
    a, b = method.coefficients()
    assert method.stationary_gain() == pytest.approx(noise_gain(a, b), rel=1e-9)
    first, second = -a[0], -a[1]
    of_process = (1 - second) / ((1 + second) * ((1 - second) ** 2 - first**2))
    assert noise_gain(a, b) == pytest.approx(omega**2 * of_process, rel=1e-9)


@pytest.mark.parametrize("omega", [0.1, 0.7])
def test_the_noise_that_fiber_keeps_has_the_variance_that_it_takes_off(omega: float) -> None:
    method: Any = build("fiber", omega=omega)
    draw, d = torch.Generator().manual_seed(0), 20_000
    state = State(torch.zeros(d, dtype=torch.float64))
    for t in range(1, 150):
        state.step = t
        x = method.filtered(torch.randn(d, generator=draw, dtype=torch.float64), state)
        gain = method.exact_gain(state)
        five = 5 * gain * math.sqrt(2 / d)
        assert float(x.square().mean()) == pytest.approx(gain, abs=five)
    assert gain == pytest.approx(method.stationary_gain(), rel=1e-3)


CORRECTED = ["fiber", "disk-adam", "lp-dpadam", "dp-pmlf-adam"]


@pytest.mark.parametrize("name", CORRECTED)
def test_what_is_taken_off_is_what_noise_adds_to_the_second_moment(name: str) -> None:
    """At every step, from the first on, and where C changes."""
    d, sigma, b, betas = 20_000, 0.7, 4.0, (0.9, 0.95)
    draw = torch.Generator().manual_seed(1)
    state = State(torch.zeros(d, dtype=torch.float64))
    public = Public(noise_multiplier=sigma, expected_batch_size=b, total_steps=25)
    for t in range(1, 26):
        c = 1.0 + (t % 4 == 0)
        method = build(name, betas=betas, clip_norm=c, noise_correction="exact")
        noise = torch.randn(d, generator=draw, dtype=torch.float64) * sigma * c / b
        state.step = t
        method.update((noise,), state, public)  # type: ignore[arg-type]
        taken_off = float(state["noise_bias"]) * public.noise_variance(c)
        found = float(state["v"].mean()) / (1 - betas[1] ** t)
        assert found == pytest.approx(taken_off, rel=0.05)  # five standard deviations


@pytest.mark.parametrize("name", CORRECTED)
@pytest.mark.parametrize("correction", ["stationary", "exact"])
def test_a_correction_for_independent_noise_refuses_other_noise(name: str, correction: str) -> None:
    values = {
        "dataset": {"id": "digits"},
        "model": {"id": "logistic"},
        "method": {
            "id": name,
            "learning_rate": 0.1,
            "clip_norm": 1.0,
            "noise_correction": correction,
        },
        "privacy": {
            "noise_multiplier": 1.0,
            "delta": 1e-5,
            "sampler": "cyclic-poisson",
            "noise": {"kind": "banded", "bands": 4},
        },
        "training": {"expected_batch_size": 100, "steps": 20},
        "seed": 0,
    }
    with pytest.raises(UserError, match=r"privacy\.noise\.kind: banded is correlated"):
        from_mapping(values)
    values["method"]["noise_correction"] = "none"  # type: ignore[index]
    assert from_mapping(values).method.id == name


@pytest.mark.parametrize("kappa", [0.1, 0.7])
def test_the_factor_of_disk_is_the_noise_gain_of_its_filter(kappa: float) -> None:
    method: Any = build("disk-adam", kappa=kappa)
    assert method.stationary_gain() == pytest.approx(noise_gain((kappa - 1,), (kappa,)))


@pytest.mark.parametrize("name", ["lp-dpadam", "dp-pmlf-adam"])
def test_a_correction_refuses_a_filter_that_is_not_stable(name: str) -> None:
    unstable = {"filter_a": (-2.0, 0.9), "filter_b": (-0.1,)}
    assert build(name, **unstable).id == name
    with pytest.raises(ValueError, match="must be stable"):
        build(name, **unstable, noise_correction="exact")


def test_runs_of_disk_adam_without_a_correction_keep_their_hash() -> None:
    plain = to_plain(build("disk-adam"))
    assert not {"noise_correction", "gamma_prime"} & set(plain)
    corrected = build("disk-adam", noise_correction="exact", gamma_prime=1e-4)
    assert parse(type(corrected), to_plain(corrected)) == corrected
    assert to_plain(corrected)["noise_correction"] == "exact"
