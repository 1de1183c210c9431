"""Replay against plain transcriptions: scale, then privatize."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from every_method import build
from pseudocode import (
    CASES,
    RUN,
    Stream,
    Vector,
    adam,
    assert_same,
    mean_of_clipped,
    noisy,
    plain_mean,
    record,
    sgd,
    squares,
)

from clipnoise import replay
from clipnoise.core.state import Public, State
from clipnoise.errors import UserError


def scaled_release(
    h: dict[str, Any], s: Stream, t: int, scale: Vector, c: float | None = None
) -> tuple[Vector, Vector]:
    """u_t with noise and without, t counted from 0."""
    c = h["clip_norm"] if c is None else c
    b = h["expected_batch_size"]
    vectors = [[scale[j] * g[j] for j in range(s.d)] for g in s.gradients[t][0]]
    mean = mean_of_clipped(vectors, c, b, s.d)
    return noisy(mean, h["noise_multiplier"] * c / b, s.noise[t][0]), mean


def stp_adam(h: dict[str, Any], s: Stream, clean_moment: bool = False) -> list[Vector]:
    def release(t: int, v_hat: Vector) -> tuple[Vector, Vector]:
        scale = [1 / (math.sqrt(x) + h["gamma_scale"]) for x in v_hat]
        u, clean = scaled_release(h, s, t, scale)
        g = [u[j] / scale[j] for j in range(s.d)]
        clean_g = [clean[j] / scale[j] for j in range(s.d)]
        return g, squares(clean_g if clean_moment else g)

    return adam(h, s, release)


def stp_noiseless(h: dict[str, Any], s: Stream) -> list[Vector]:
    return stp_adam(h, s, clean_moment=True)


def adadps(h: dict[str, Any], s: Stream, scales: list[Vector]) -> list[Vector]:
    return sgd(h, s, lambda t: scaled_release(h, s, t, scales[t])[0])


def rmsprop_scales(h: dict[str, Any], gradients: list[Vector]) -> list[Vector]:
    v, scales = [0.0] * len(gradients[0]), []
    for g in gradients:
        v = [h["beta"] * x + (1 - h["beta"]) * y * y for x, y in zip(v, g, strict=True)]
        scales.append([1 / (math.sqrt(x) + h["gamma"]) for x in v])
    return scales


def adadps_rmsprop(h: dict[str, Any], s: Stream) -> list[Vector]:
    return adadps(h, s, rmsprop_scales(h, s.public))


def clean_means(h: dict[str, Any], s: Stream) -> list[Vector]:
    return [plain_mean(h, s, t) for t in range(s.steps)]


def adadps_ideal(h: dict[str, Any], s: Stream) -> list[Vector]:
    return adadps(h, s, rmsprop_scales(h, clean_means(h, s)))


def adadps_adagrad(h: dict[str, Any], s: Stream) -> list[Vector]:
    a2, scales = [0.0] * s.d, []
    for g in s.public:
        a2 = [x + y * y for x, y in zip(a2, g, strict=True)]
        scales.append([1 / (math.sqrt(x) + h["gamma"]) for x in a2])
    return adadps(h, s, scales)


def adadps_side(h: dict[str, Any], s: Stream) -> list[Vector]:
    return adadps(h, s, [[1 / (x + h["gamma"]) for x in s.side]] * s.steps)


def adadps_adam(h: dict[str, Any], s: Stream) -> list[Vector]:
    w, M, v = [list(s.initial)], [0.0] * s.d, [0.0] * s.d
    beta = h["beta"]
    b1, b2 = h.get("betas", (beta, beta))
    c, b = h["clip_norm"], h["expected_batch_size"]
    for t in range(1, s.steps + 1):
        for j, p in enumerate(s.public[t - 1]):
            M[j] = b1 * M[j] + (1 - b1) * p
            v[j] = b2 * v[j] + (1 - b2) * p * p
        scale = [1 / (math.sqrt(x / (1 - b2**t)) + h["gamma"]) for x in v]
        vectors = [
            [(beta * g[j] + (1 - beta) * M[j]) * scale[j] for j in range(s.d)]
            for g in s.gradients[t - 1][0]
        ]
        mean = mean_of_clipped(vectors, c, b, s.d)
        u = noisy(mean, h["noise_multiplier"] * c / b, s.noise[t - 1][0])
        w.append([w[-1][j] - h["learning_rate"] * u[j] for j in range(s.d)])
    return w


def adas(h: dict[str, Any], s: Stream) -> list[Vector]:
    w = [list(s.initial)]
    scales, means = rmsprop_scales(h, s.public), clean_means(h, s)
    for t in range(s.steps):
        w.append([w[-1][j] - h["learning_rate"] * means[t][j] * scales[t][j] for j in range(s.d)])
    return w


def adas_side(h: dict[str, Any], s: Stream) -> list[Vector]:
    w, means = [list(s.initial)], clean_means(h, s)
    for mean in means:
        steps = [mean[j] / (s.side[j] + h["gamma"]) for j in range(s.d)]
        w.append([w[-1][j] - h["learning_rate"] * steps[j] for j in range(s.d)])
    return w


def dp2_rmsprop(h: dict[str, Any], s: Stream) -> list[Vector]:
    (s1, s2), (rate1, rate2) = h["phase_lengths"], h["learning_rates"]
    c1, c2 = h["clip_norms"]
    w, v, gathered = [list(s.initial)], [0.0] * s.d, [0.0] * s.d
    t = 0
    while t < s.steps:
        for _ in range(s1):
            if t == s.steps:
                return w
            g, _mean = scaled_release(h, s, t, [1.0] * s.d, c1)
            gathered = [gathered[j] + g[j] for j in range(s.d)]
            w.append([w[-1][j] - rate1 * g[j] for j in range(s.d)])
            t += 1
        v = [h["beta"] * v[j] + (1 - h["beta"]) * (gathered[j] / s1) ** 2 for j in range(s.d)]
        gathered = [0.0] * s.d
        for _ in range(s2):
            if t == s.steps:
                return w
            scale = [1 / (math.sqrt(x) + h["gamma"]) for x in v]
            u, _mean = scaled_release(h, s, t, scale, c2)
            w.append([w[-1][j] - rate2 * u[j] for j in range(s.d)])
            t += 1
    return w


def adaclip(h: dict[str, Any], s: Stream) -> list[Vector]:
    """Pichapati et al. 2019: clip (g − m)/b, and undo it on the release; then m and s² follow."""
    c, b, (beta1, beta2) = h["clip_norm"], h["expected_batch_size"], h["betas"]
    low, high, sigma = h["lowest_variance"], h["highest_variance"], h["noise_multiplier"]
    w, m, squared = [list(s.initial)], [0.0] * s.d, [math.sqrt(low * high)] * s.d
    for t in range(s.steps):
        total = sum(math.sqrt(x) for x in squared)
        unit = [math.sqrt(math.sqrt(x) * total) for x in squared]
        moved = [[(g[j] - m[j]) / unit[j] for j in range(s.d)] for g in s.gradients[t][0]]
        release = noisy(mean_of_clipped(moved, c, b, s.d), sigma * c / b, s.noise[t][0])
        g = [unit[j] * release[j] + m[j] for j in range(s.d)]
        for j in range(s.d):
            of_noise = (unit[j] * sigma * c / b) ** 2
            v = min(max((g[j] - m[j]) ** 2 - of_noise, low), high)
            squared[j] = beta2 * squared[j] + (1 - beta2) * v
            m[j] = beta1 * m[j] + (1 - beta1) * g[j]
        w.append([w[-1][j] - h["learning_rate"] * g[j] for j in range(s.d)])
    return w


def dp_macadam(h: dict[str, Any], s: Stream) -> list[Vector]:
    """Tasnim et al. 2026, with the product of the two deviations in the variance."""
    c, size, (b1, b2) = h["clip_norm"], h["expected_batch_size"], h["betas"]
    deviation = h["noise_multiplier"] * c / size
    w, unit, mean = [list(s.initial)], [1 / s.d] * s.d, [0.0] * s.d
    m, v, squared = [0.0] * s.d, [0.0] * s.d, [0.0] * s.d
    for t in range(1, s.steps + 1):
        moved = [
            [(x - y) / u for x, y, u in zip(g, mean, unit, strict=True)]
            for g in s.gradients[t - 1][0]
        ]
        release = noisy(mean_of_clipped(moved, c, size, s.d), deviation, s.noise[t - 1][0])
        g = [u * x + y for u, x, y in zip(unit, release, mean, strict=True)]
        kappa, spread, new = 2 * (b1 - b1**t) / (1 + b1), [], []
        for j in range(s.d):
            m[j], v[j] = b1 * m[j] + (1 - b1) * g[j], b2 * v[j] + (1 - b2) * g[j] ** 2
            now = m[j] / (1 - b1**t)
            squared[j] = b1 * squared[j] + (1 - b1) * (g[j] - now) * (g[j] - mean[j])
            if t > 1:
                variance = squared[j] / kappa - (unit[j] * deviation) ** 2
                bounded = min(max(variance, h["lowest_variance"]), h["highest_variance"])
                spread.append(math.sqrt(bounded))
            mean[j] = now
            new.append(
                w[-1][j] - h["learning_rate"] * now / (math.sqrt(v[j] / (1 - b2**t)) + h["gamma"])
            )
        if t > 1:
            unit = [math.sqrt(x * sum(spread)) for x in spread]
        w.append(new)
    return w


def tp_topk(h: dict[str, Any], s: Stream) -> list[Vector]:
    """Zhang and Xie 2026: Φ is taken off every score, and noise goes to the support alone."""
    c, b = h["clip_norm"], h["expected_batch_size"]
    deviation, first = h["noise_multiplier"] * c / b, max(1, round(h["warmup"] * s.steps))
    w, score, m = [list(s.initial)], [0.0] * s.d, [1.0] * s.d
    for t in range(s.steps):
        vectors = [[x * y for x, y in zip(m, g, strict=True)] for g in s.gradients[t][0]]
        noise = [x * y for x, y in zip(m, s.noise[t][0], strict=True)]
        g = noisy(mean_of_clipped(vectors, c, b, s.d), deviation, noise)
        w.append([x - h["learning_rate"] * y for x, y in zip(w[-1], g, strict=True)])
        if t < first:
            score = [a + x * x / first for a, x in zip(score, g, strict=True)]
        if t == first - 1:
            kept = max(1, math.floor(h["active"] * s.d))
            order = sorted(range(s.d), key=lambda p: score[p] - deviation**2, reverse=True)
            m = [float(p in order[:kept]) for p in range(s.d)]
    return w


MACADAM = {"betas": [0.8, 0.95], "gamma": 1e-3, "lowest_variance": 1e-4, "highest_variance": 0.5}
ADACLIP = {"betas": [0.8, 0.6], "lowest_variance": 1e-4, "highest_variance": 0.5}
STP = {"betas": [0.8, 0.95], "gamma": 1e-3, "gamma_scale": 1e-2}
RMSPROP = {"beta": 0.8, "gamma": 1e-2}
TRANSCRIPTIONS: list[tuple[str, Any, dict[str, Any]]] = [
    ("stp-adam", stp_adam, STP),
    ("stp-noiseless", stp_noiseless, STP),
    ("adaclip", adaclip, ADACLIP),
    ("dp-macadam", dp_macadam, MACADAM),
    ("tp-topk", tp_topk, {"warmup": 0.5, "active": 0.5}),
    ("tp-topk", tp_topk, {"warmup": 0.1, "active": 1.0}),
    ("adadps-rmsprop", adadps_rmsprop, RMSPROP),
    ("adadps-ideal", adadps_ideal, RMSPROP),
    ("adadps-adagrad", adadps_adagrad, {"gamma": 1e-2}),
    ("adadps-side", adadps_side, {"gamma": 1e-2}),
    ("adadps-adam", adadps_adam, RMSPROP),
    ("adadps-adam", adadps_adam, RMSPROP | {"betas": [0.6, 0.95]}),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("method", "transcription", "own"), TRANSCRIPTIONS)
def test_follows_the_paper(method: str, transcription: Any, own: dict[str, Any], case: str) -> None:
    h = RUN | {"learning_rate": 0.3} | own
    for seed in range(3):
        stream = record(seed, case)
        assert_same(method, h, stream, transcription(h, stream))


@pytest.mark.parametrize("case", CASES)
def test_scaling_alone_follows_the_paper(case: str) -> None:
    h = {"learning_rate": 0.3, "expected_batch_size": 4.0} | RMSPROP
    stream = record(0, case)
    assert_same("adas", h, stream, adas(h, stream))
    own = {"learning_rate": 0.3, "expected_batch_size": 4.0, "gamma": 1e-2}
    assert_same("adas-side", own, stream, adas_side(own, stream))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("lengths", [(1, 1), (2, 1), (1, 3), (3, 2), (9, 9)])
def test_delayed_preconditioner_follows_the_paper(lengths: tuple[int, int], case: str) -> None:
    h = {name: value for name, value in RUN.items() if name != "clip_norm"} | RMSPROP
    h |= {"phase_lengths": lengths, "learning_rates": (0.3, 0.1), "clip_norms": (1.3, 2.0)}
    stream = record(0, case)
    assert_same("dp2-rmsprop", h, stream, dp2_rmsprop(h, stream))


def test_warm_start_moves_the_first_iterate_by_rmsprop_on_public_gradients() -> None:
    h = RUN | {"learning_rate": 0.3, "warm_learning_rate": 0.1, "beta": 0.8, "gamma": 1e-2}
    s = record(0, "ordinary")
    scales = rmsprop_scales(h, s.public)
    start = [
        x - 0.1 * sum(g[j] * scale[j] for g, scale in zip(s.public, scales, strict=True))
        for j, x in enumerate(s.initial)
    ]
    gradients = np.array([batch[0] for batch in s.gradients])
    warm = replay("dp-sgd-warm", h, s.initial, gradients, s.noise, warm_gradients=s.public)
    plain = replay("dp-sgd", RUN | {"learning_rate": 0.3}, start, gradients, s.noise)
    np.testing.assert_allclose(warm, plain, rtol=1e-10)
    with pytest.raises(UserError, match="dp-sgd has no warm start"):
        replay(
            "dp-sgd",
            RUN | {"learning_rate": 0.3},
            s.initial,
            gradients,
            s.noise,
            warm_gradients=s.public,
        )


def test_the_units_of_adaclip_add_the_least_noise() -> None:
    """Among all b with the same Σ s²/b², which bounds how much is clipped, Σ b² is smallest."""
    draw = torch.Generator().manual_seed(0)
    variance = torch.rand(20, generator=draw, dtype=torch.float64) / 100
    found = build("adaclip").unit(State(variance, step=2, buffers={"s squared": variance}))
    assert float((variance / found.square()).sum()) == pytest.approx(1.0)
    for _ in range(20):
        other = found * (1 + 0.3 * torch.rand(20, generator=draw, dtype=torch.float64))
        other = other * (variance / other.square()).sum().sqrt()
        assert float(other.square().sum()) > float(found.square().sum())


@pytest.mark.parametrize("name", ["adaclip", "dp-macadam"])
def test_bounds_the_wrong_way_round_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="lowest_variance must not be above"):
        build(name, lowest_variance=0.1)


@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_the_variance_of_dp_macadam_has_no_bias(beta: float) -> None:
    """s²/κ_t is the variance of g̃ in the mean, from the second step on."""
    d, draw = 40_000, torch.Generator().manual_seed(0)
    state = State(torch.zeros(d, dtype=torch.float64))
    method: Any = build("dp-macadam", betas=(beta, 0.9), clip_norm=1.0)
    public = Public(noise_multiplier=0.0, expected_batch_size=1.0, total_steps=9)
    for t in range(1, 10):
        state.step = t
        g = 2 + 3 * torch.randn(d, generator=draw, dtype=torch.float64)
        method.update(((g - method.mean(state)) / method.unit(state),), state, public)
        kappa = 2 * (beta - beta**t) / (1 + beta)
        if t > 1:
            found = float(state["s squared"].mean()) / kappa
            assert found == pytest.approx(9.0, rel=0.05)


def test_a_mask_keeps_the_largest_scores_and_at_least_one() -> None:
    score = torch.tensor([1.0, 4.0, 2.0, 4.0, 0.0])
    for active, kept in [(0.1, [1]), (0.4, [1, 3]), (0.79, [1, 2, 3]), (1.0, [0, 1, 2, 3, 4])]:
        mask = build("tp-topk", active=active).mask(score)
        assert mask.nonzero().flatten().tolist() == kept
        assert set(mask.tolist()) <= {0.0, 1.0}


def test_a_support_without_coordinates_is_refused() -> None:
    with pytest.raises(ValueError, match="active must be above 0"):
        build("tp-topk", active=0.0)
