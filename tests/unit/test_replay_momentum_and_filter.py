"""Replay against plain transcriptions: per-sample momentum and low-pass filtering."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pseudocode import (
    CASES,
    RUN,
    Stream,
    Vector,
    adam,
    assert_same,
    mean_of_clipped,
    noisy,
    record,
    run_replay,
)

from clipnoise.errors import UserError


def momentum_release(h: dict[str, Any], s: Stream, t: int, normalise: bool) -> Vector:
    """v̄_t of DP-PMLF for t counted from 0: x_{t−k+1} … x_t, as far as they exist."""
    oldest = max(0, t - h["history"] + 1)
    c_beta = sum(h["beta"] ** (t - i) for i in range(oldest, t + 1)) if normalise else 1.0
    vectors = []
    for example in range(len(s.gradients[t][0])):
        v = [0.0] * s.d
        for i in range(oldest, t + 1):
            weight = h["beta"] ** (t - i) / c_beta
            for j in range(s.d):
                v[j] += weight * s.gradients[t][t - i][example][j]
        vectors.append(v)
    c, b = h["clip_norm"], h["expected_batch_size"]
    mean = mean_of_clipped(vectors, c, b, s.d)
    return noisy(mean, h["noise_multiplier"] * c / b, s.noise[t][0])


def dp_pmlf(h: dict[str, Any], s: Stream) -> list[Vector]:
    a, b = h["filter_a"], h["filter_b"]
    x = [list(s.initial)]
    v_bar: dict[int, Vector] = {}
    m: dict[int, Vector] = {}
    c_b: dict[int, float] = {}
    c_m: dict[int, float] = {}
    for t in range(s.steps):
        v_bar[t], c_b[t] = momentum_release(h, s, t, normalise=True), 1.0
        zero = [0.0] * s.d
        m[t] = []
        for j in range(s.d):
            past = sum(a[r - 1] * m.get(t - r, zero)[j] for r in range(1, len(a) + 1))
            now = sum(b[r] * v_bar.get(t - r, zero)[j] for r in range(len(b)))
            m[t].append(now - past)
        c_m[t] = sum(b[r] * c_b.get(t - r, 0.0) for r in range(len(b))) - sum(
            a[r - 1] * c_m.get(t - r, 0.0) for r in range(1, len(a) + 1)
        )
        x.append([x[-1][j] - h["learning_rate"] * m[t][j] / c_m[t] for j in range(s.d)])
    return x


def filtered_adam(h: dict[str, Any], s: Stream) -> list[Vector]:
    """Adam on v̄ after the filter; what the filter leaves of the noise is known from its h_r."""
    a, b = h["filter_a"], h["filter_b"]
    response, released = [], [momentum_release(h, s, t, normalise=True) for t in range(s.steps)]
    for t in range(s.steps):
        past = sum(a[r - 1] * response[t - r] for r in range(1, len(a) + 1) if r <= t)
        response.append((b[t] if t < len(b) else 0.0) - past)
    phi = (h["noise_multiplier"] * h["clip_norm"] / h["expected_batch_size"]) ** 2
    filtered, noise, beta = [], [], h["betas"][1]
    for t in range(s.steps):
        known = response[: t + 1]
        total = sum(known)
        sums = [sum(x * released[t - r][j] for r, x in enumerate(known)) for j in range(s.d)]
        filtered.append([x / total for x in sums])
        noise.append(phi * sum(x * x for x in known) / total**2)

    def denominator(t: int, v_hat: float) -> float:
        weights = [(1 - beta) * beta ** (t - i) / (1 - beta**t) for i in range(1, t + 1)]
        expected = sum(w * x for w, x in zip(weights, noise[:t], strict=True))
        corrected = max(v_hat - expected, h["gamma_prime"])
        return math.sqrt(corrected if h["noise_correction"] == "exact" else v_hat) + h["gamma"]

    def release(t: int, _: Vector) -> tuple[Vector, Vector]:
        return filtered[t], [x * x for x in filtered[t]]

    return adam(h, s, release, denominator)


def lp_dpsgd(h: dict[str, Any], s: Stream) -> list[Vector]:
    return dp_pmlf(h | {"history": 1, "beta": 1.0}, s)


def dp_pmlf_without_filter(h: dict[str, Any], s: Stream) -> list[Vector]:
    x = [list(s.initial)]
    for t in range(s.steps):
        v_bar = momentum_release(h, s, t, normalise=True)
        x.append([x[-1][j] - h["learning_rate"] * v_bar[j] for j in range(s.d)])
    return x


def innerouter(h: dict[str, Any], s: Stream) -> list[Vector]:
    x, m = [list(s.initial)], [0.0] * s.d
    for t in range(s.steps):
        v_bar = momentum_release(h, s, t, normalise=False)
        m = [h["momentum"] * m[j] + v_bar[j] for j in range(s.d)]
        x.append([x[-1][j] - h["learning_rate"] * m[j] for j in range(s.d)])
    return x


FILTERS = [
    ([-0.9], [0.1]),
    ([-0.9], [0.15, -0.05]),
    ([-0.6], [0.5, -0.1]),
    ([], [1.0]),
    ([], [0.5, 0.3, 0.2]),
    ([-0.5, 0.2, -0.1], [0.3, 0.2, 0.05, 0.05]),
    ([-0.3, -0.2, -0.1, -0.1], [0.3]),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("a", "b"), FILTERS)
def test_filter_follows_the_paper(a: Vector, b: Vector, case: str) -> None:
    h = RUN | {"learning_rate": 0.3, "filter_a": a, "filter_b": b}
    stream = record(1, case)
    assert_same("lp-dpsgd", h, stream, lp_dpsgd(h, stream))
    assert_same("dp-pmlf-wo-pm", h, stream, lp_dpsgd(h, stream))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("history", "beta"), [(1, 0.1), (2, 0.1), (3, 0.8), (4, 1.0), (3, 0.0)])
def test_momentum_follows_the_paper(history: int, beta: float, case: str) -> None:
    h = RUN | {"learning_rate": 0.3, "history": history, "beta": beta}
    for seed in range(2):
        stream = record(seed, case)
        for a, b in FILTERS[1:6:2]:
            filtered = h | {"filter_a": a, "filter_b": b}
            assert_same("dp-pmlf", filtered, stream, dp_pmlf(filtered, stream))
        assert_same("dp-pmlf-wo-lf", h, stream, dp_pmlf_without_filter(h, stream))
        outer = h | {"momentum": 0.7}
        assert_same("innerouter", outer, stream, innerouter(outer, stream))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("correction", ["none", "exact"])
def test_adam_after_the_filter_loses_the_noise_that_the_filter_leaves(
    correction: str, case: str
) -> None:
    own = {"betas": [0.8, 0.95], "gamma": 1e-3, "gamma_prime": 1e-4, "noise_correction": correction}
    for a, b in FILTERS:
        h = RUN | {"learning_rate": 0.3, "filter_a": a, "filter_b": b} | own
        stream, k = record(2, case), {"history": 3, "beta": 0.6}
        assert_same("lp-dpadam", h, stream, filtered_adam(h | {"history": 1, "beta": 1.0}, stream))
        assert_same("dp-pmlf-adam", h | k, stream, filtered_adam(h | k, stream))


def test_outer_momentum_is_nine_tenths_unless_set() -> None:
    h = RUN | {"learning_rate": 0.3, "history": 2, "beta": 0.5}
    stream = record(0, "ordinary")
    assert_same("innerouter", h, stream, innerouter(h | {"momentum": 0.9}, stream))


def test_more_iterates_than_exist_are_never_read() -> None:
    h = RUN | {"learning_rate": 0.3, "history": 3, "beta": 0.5}
    stream = record(0, "ordinary")
    expected = run_replay("dp-pmlf", h, stream)
    for t in range(2):
        for j in range(t + 1, len(stream.gradients[t])):
            stream.gradients[t][j] = [[math.nan] * stream.d for _ in stream.gradients[t][j]]
    np.testing.assert_array_equal(run_replay("dp-pmlf", h, stream), expected)


@pytest.mark.parametrize("b", [[0.15, -0.05], [0.1]])
def test_normaliser_keeps_a_constant_signal_from_the_first_step(b: Vector) -> None:
    a = [sum(b) - 1]
    h = {"learning_rate": 1.0, "clip_norm": 9.0, "noise_multiplier": 0.0, "expected_batch_size": 1}
    out = run_replay(
        "lp-dpsgd",
        h | {"filter_a": a, "filter_b": b},
        Stream([0.0], [[[[2.0]]]] * 30, [[[0.0]]] * 30, [[0.0]] * 30),
    )
    np.testing.assert_allclose(np.diff(out[:, 0]), -2.0, rtol=1e-12)


@pytest.mark.parametrize("method", ["lp-dpsgd", "dp-pmlf-wo-pm", "dp-pmlf"])
def test_coefficients_that_do_not_keep_the_mean_are_rejected_with_their_sum(method: str) -> None:
    h = RUN | {"learning_rate": 0.3, "filter_a": [-0.9], "filter_b": [0.2, 0.15]}
    with pytest.raises(UserError, match=r"the sum is 1\.25"):
        run_replay(method, h, record(0, "ordinary"))


@pytest.mark.parametrize("b", [[], [0.0, 1.0]])
def test_filter_without_a_current_tap_is_rejected(b: Vector) -> None:
    a = [-1.0] if not b else []
    h = RUN | {"learning_rate": 0.3, "filter_a": a, "filter_b": b}
    with pytest.raises(UserError, match="b_0"):
        run_replay("lp-dpsgd", h, record(0, "ordinary"))
