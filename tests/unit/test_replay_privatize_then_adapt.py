"""Replay against plain transcriptions of the papers: privatize, then adapt; and no privacy."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pseudocode import (
    CASES,
    RUN,
    Stream,
    Vector,
    assert_same,
    mean_of_clipped,
    private_gradient,
    record,
)


def dp_sgd(h: dict[str, Any], s: Stream) -> list[Vector]:
    w = [list(s.initial)]
    for t in range(s.steps):
        g = private_gradient(h, s, t)
        w.append([w[-1][j] - h["learning_rate"] * g[j] for j in range(s.d)])
    return w


def dp_sgdm(h: dict[str, Any], s: Stream) -> list[Vector]:
    w, b = [list(s.initial)], [0.0] * s.d
    for t in range(1, s.steps + 1):
        g = private_gradient(h, s, t - 1)
        rate = h["learning_rate"]
        if h.get("schedule") == "adam-equivalent":
            root_phi = h["noise_multiplier"] * h["clip_norm"] / h["expected_batch_size"]
            rate = rate * (1 - h["momentum"]) / ((1 - h["momentum"] ** t) * root_phi)
        new = []
        for j in range(s.d):
            b[j] = h["momentum"] * b[j] + g[j]
            new.append(w[-1][j] - rate * b[j])
        w.append(new)
    return w


def dp_adam(h: dict[str, Any], s: Stream) -> list[Vector]:
    w, m, v = [list(s.initial)], [0.0] * s.d, [0.0] * s.d
    b1, b2 = h["betas"]
    for t in range(1, s.steps + 1):
        g = private_gradient(h, s, t - 1)
        new = []
        for j in range(s.d):
            m[j] = b1 * m[j] + (1 - b1) * g[j]
            v[j] = b2 * v[j] + (1 - b2) * g[j] ** 2
            m_hat, v_hat = m[j] / (1 - b1**t), v[j] / (1 - b2**t)
            new.append(w[-1][j] - h["learning_rate"] * m_hat / (math.sqrt(v_hat) + h["gamma"]))
        w.append(new)
    return w


def dp_adambc(h: dict[str, Any], s: Stream) -> list[Vector]:
    w, m, v = [list(s.initial)], [0.0] * s.d, [0.0] * s.d
    b1, b2 = h["betas"]
    variance = (h["noise_multiplier"] * h["clip_norm"] / h["expected_batch_size"]) ** 2
    for t in range(1, s.steps + 1):
        g = private_gradient(h, s, t - 1)
        floor = h["gamma_prime"]
        if h.get("gamma_schedule") == "bound":
            floor = max(floor, proposition_3(t, b2, variance, h["gamma_probability"]))
        new = []
        for j in range(s.d):
            m[j] = b1 * m[j] + (1 - b1) * g[j]
            v[j] = b2 * v[j] + (1 - b2) * g[j] ** 2
            m_hat, v_hat = m[j] / (1 - b1**t), v[j] / (1 - b2**t)
            corrected = v_hat - h.get("phi", variance)
            new.append(w[-1][j] - h["learning_rate"] * m_hat / math.sqrt(max(corrected, floor)))
        w.append(new)
    return w


def proposition_3(t: int, b2: float, phi: float, alpha: float) -> float:
    nu = 4 * phi * math.sqrt((1 - b2 ** (2 * t)) / (1 - b2**2))
    b = 4 * phi
    small = math.sqrt(math.log(1 / (alpha / 2)) * 2 * nu**2)
    large = math.log(1 / (alpha / 2)) * 2 * b
    delta = small if small <= nu**2 / b else large
    return (1 - b2) / (1 - b2**t) * delta


def clipped_adam_biased(h: dict[str, Any], s: Stream) -> list[Vector]:
    w, m, v = [list(s.initial)], [0.0] * s.d, [0.0] * s.d
    b1, b2 = h["betas"]
    for t in range(1, s.steps + 1):
        g = mean_of_clipped(s.gradients[t - 1][0], h["clip_norm"], h["expected_batch_size"], s.d)
        new = []
        for j in range(s.d):
            m[j] = b1 * m[j] + (1 - b1) * g[j]
            v[j] = b2 * v[j] + (1 - b2) * g[j] ** 2
            m_hat, v_hat = m[j] / (1 - b1**t), v[j] / (1 - b2**t)
            denominator = math.sqrt(v_hat + h["phi"]) + h["gamma"]
            new.append(w[-1][j] - h["learning_rate"] * m_hat / denominator)
        w.append(new)
    return w


def dp_adam_noiseless(h: dict[str, Any], s: Stream) -> list[Vector]:
    w, m, v = [list(s.initial)], [0.0] * s.d, [0.0] * s.d
    b1, b2 = h["betas"]
    for t in range(1, s.steps + 1):
        g = private_gradient(h, s, t - 1)
        clean = mean_of_clipped(
            s.gradients[t - 1][0], h["clip_norm"], h["expected_batch_size"], s.d
        )
        new = []
        for j in range(s.d):
            m[j] = b1 * m[j] + (1 - b1) * g[j]
            v[j] = b2 * v[j] + (1 - b2) * clean[j] ** 2
            m_hat, v_hat = m[j] / (1 - b1**t), v[j] / (1 - b2**t)
            new.append(w[-1][j] - h["learning_rate"] * m_hat / (math.sqrt(v_hat) + h["gamma"]))
        w.append(new)
    return w


def dp_rmsprop(h: dict[str, Any], s: Stream) -> list[Vector]:
    w, v = [list(s.initial)], [0.0] * s.d
    for t in range(s.steps):
        g = private_gradient(h, s, t)
        new = []
        for j in range(s.d):
            v[j] = h["beta"] * v[j] + (1 - h["beta"]) * g[j] ** 2
            new.append(w[-1][j] - h["learning_rate"] * g[j] / (math.sqrt(v[j]) + h["gamma"]))
        w.append(new)
    return w


def dp_adagrad(h: dict[str, Any], s: Stream) -> list[Vector]:
    w, v = [list(s.initial)], [0.0] * s.d
    for t in range(s.steps):
        g = private_gradient(h, s, t)
        new = []
        for j in range(s.d):
            v[j] += g[j] ** 2
            ratio = 0.0 if v[j] == 0 else g[j] / math.sqrt(v[j])
            new.append(w[-1][j] - h["learning_rate"] * ratio)
        w.append(new)
    return w


def dp_r_pub(h: dict[str, Any], s: Stream) -> list[Vector]:
    w, v = [list(s.initial)], [0.0] * s.d
    for t in range(s.steps):
        g = private_gradient(h, s, t)
        new = []
        for j in range(s.d):
            v[j] = h["beta"] * v[j] + (1 - h["beta"]) * s.public[t][j] ** 2
            new.append(w[-1][j] - h["learning_rate"] * g[j] / (math.sqrt(v[j]) + h["gamma"]))
        w.append(new)
    return w


def dp_adam_pub(h: dict[str, Any], s: Stream) -> list[Vector]:
    w, m, v = [list(s.initial)], [0.0] * s.d, [0.0] * s.d
    b1, b2, b3 = h["betas"]
    for t in range(1, s.steps + 1):
        g, p = private_gradient(h, s, t - 1), s.public[t - 1]
        new = []
        for j in range(s.d):
            m[j] = b2 * m[j] + (1 - b2) * (b1 * g[j] + (1 - b1) * p[j])
            v[j] = b3 * v[j] + (1 - b3) * p[j] ** 2
            numerator = m[j] / (1 - b2**t)
            denominator = math.sqrt(v[j] / (1 - b3**t)) + h["gamma"]
            new.append(w[-1][j] - h["learning_rate"] * numerator / denominator)
        w.append(new)
    return w


def pda_dpmd(h: dict[str, Any], s: Stream) -> list[Vector]:
    w = [list(s.initial)]
    for t in range(1, s.steps + 1):
        g, p = private_gradient(h, s, t - 1), s.public[t - 1]
        alpha = math.cos(math.pi * t / (2 * s.steps))
        mixed = [alpha * g[j] + (1 - alpha) * p[j] for j in range(s.d)]
        w.append([w[-1][j] - h["learning_rate"] * mixed[j] for j in range(s.d)])
    return w


def plain_mean(h: dict[str, Any], s: Stream, t: int) -> Vector:
    batch = s.gradients[t][0]
    return [sum(g[j] for g in batch) / h["expected_batch_size"] for j in range(s.d)]


def sgd(h: dict[str, Any], s: Stream) -> list[Vector]:
    w, b = [list(s.initial)], [0.0] * s.d
    for t in range(s.steps):
        g = plain_mean(h, s, t)
        b = [h.get("momentum", 0.0) * b[j] + g[j] for j in range(s.d)]
        w.append([w[-1][j] - h["learning_rate"] * b[j] for j in range(s.d)])
    return w


def adam(h: dict[str, Any], s: Stream) -> list[Vector]:
    w, m, v = [list(s.initial)], [0.0] * s.d, [0.0] * s.d
    b1, b2 = h["betas"]
    for t in range(1, s.steps + 1):
        g = plain_mean(h, s, t - 1)
        new = []
        for j in range(s.d):
            m[j] = b1 * m[j] + (1 - b1) * g[j]
            v[j] = b2 * v[j] + (1 - b2) * g[j] ** 2
            m_hat, v_hat = m[j] / (1 - b1**t), v[j] / (1 - b2**t)
            new.append(w[-1][j] - h["learning_rate"] * m_hat / (math.sqrt(v_hat) + h["gamma"]))
        w.append(new)
    return w


def rmsprop(h: dict[str, Any], s: Stream) -> list[Vector]:
    w, v = [list(s.initial)], [0.0] * s.d
    for t in range(s.steps):
        g = plain_mean(h, s, t)
        new = []
        for j in range(s.d):
            v[j] = h["beta"] * v[j] + (1 - h["beta"]) * g[j] ** 2
            new.append(w[-1][j] - h["learning_rate"] * g[j] / (math.sqrt(v[j]) + h["gamma"]))
        w.append(new)
    return w


ADAM = {"betas": [0.8, 0.95], "gamma": 1e-3}
TRANSCRIPTIONS: list[tuple[str, Any, dict[str, Any]]] = [
    ("dp-sgd", dp_sgd, {}),
    ("dp-sgd-warm", dp_sgd, {}),
    ("dp-sgdm", dp_sgdm, {"momentum": 0.85}),
    ("dp-sgdm", dp_sgdm, {"momentum": 0.85, "schedule": "adam-equivalent"}),
    ("dp-adam", dp_adam, ADAM),
    ("dp-adambc", dp_adambc, {"betas": [0.8, 0.95], "gamma_prime": 1e-4}),
    ("dp-adambc", dp_adambc, {"betas": [0.8, 0.95], "gamma_prime": 1e-4, "phi": 0.02}),
    (
        "dp-adambc",
        dp_adambc,
        {
            "betas": [0.8, 0.99],
            "gamma_prime": 1e-9,
            "gamma_schedule": "bound",
            "gamma_probability": 0.1,
        },
    ),
    ("clipped-adam-biased", clipped_adam_biased, ADAM | {"phi": 0.3}),
    ("dp-adam-noiseless", dp_adam_noiseless, ADAM),
    ("dp-rmsprop", dp_rmsprop, {"beta": 0.9, "gamma": 1e-3}),
    ("dp-adagrad", dp_adagrad, {}),
    ("dp-r-pub", dp_r_pub, {"beta": 0.9, "gamma": 1e-3}),
    ("dp-adam-pub", dp_adam_pub, {"betas": [0.7, 0.8, 0.95], "gamma": 1e-3}),
    ("pda-dpmd", pda_dpmd, {}),
    ("sgd", sgd, {}),
    ("adam", adam, ADAM),
    ("rmsprop", rmsprop, {"beta": 0.9, "gamma": 1e-3}),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("method", "transcription", "own"), TRANSCRIPTIONS)
def test_follows_the_paper(method: str, transcription: Any, own: dict[str, Any], case: str) -> None:
    h = RUN | {"learning_rate": 0.3} | own
    if method in ("sgd", "adam", "rmsprop"):
        h = {name: value for name, value in h.items() if name != "clip_norm"}
    for seed in range(3):
        stream = record(seed, case)
        assert_same(method, h, stream, transcription(h, stream))
