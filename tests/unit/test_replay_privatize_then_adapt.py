"""Replay against plain transcriptions of the papers: privatize, then adapt; and no privacy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pseudocode
import pytest
from pseudocode import (
    CASES,
    RUN,
    Stream,
    Vector,
    assert_same,
    clipped_mean,
    plain_mean,
    private_gradient,
    record,
    squares,
)


def dp_sgd(h: dict[str, Any], s: Stream) -> list[Vector]:
    return pseudocode.sgd(h, s, lambda t: private_gradient(h, s, t))


def dp_sgdm(h: dict[str, Any], s: Stream) -> list[Vector]:
    def rate(t: int) -> float:
        if h.get("schedule") != "adam-equivalent":
            return h["learning_rate"]
        root_phi = h["noise_multiplier"] * h["clip_norm"] / h["expected_batch_size"]
        share = (1 - h["momentum"]) / (1 - h["momentum"] ** t)
        return h["learning_rate"] * share / root_phi

    return pseudocode.momentum(h, s, lambda t: private_gradient(h, s, t), rate)


def twice(g: Vector) -> tuple[Vector, Vector]:
    return g, squares(g)


def dp_adam(h: dict[str, Any], s: Stream) -> list[Vector]:
    return pseudocode.adam(h, s, lambda t, _: twice(private_gradient(h, s, t)))


def dp_adambc(h: dict[str, Any], s: Stream) -> list[Vector]:
    variance = (h["noise_multiplier"] * h["clip_norm"] / h["expected_batch_size"]) ** 2

    def denominator(t: int, v_hat: float) -> float:
        floor = h["gamma_prime"]
        if h.get("gamma_schedule") == "bound":
            floor = max(floor, proposition_3(t, h["betas"][1], variance, h["gamma_probability"]))
        return math.sqrt(max(v_hat - h.get("phi", variance), floor))

    return pseudocode.adam(h, s, lambda t, _: twice(private_gradient(h, s, t)), denominator)


def proposition_3(t: int, b2: float, phi: float, alpha: float) -> float:
    nu = 4 * phi * math.sqrt((1 - b2 ** (2 * t)) / (1 - b2**2))
    b = 4 * phi
    small = math.sqrt(math.log(1 / (alpha / 2)) * 2 * nu**2)
    large = math.log(1 / (alpha / 2)) * 2 * b
    delta = small if small <= nu**2 / b else large
    return (1 - b2) / (1 - b2**t) * delta


def clipped_adam_biased(h: dict[str, Any], s: Stream) -> list[Vector]:
    def denominator(t: int, v_hat: float) -> float:
        return math.sqrt(v_hat + h["phi"]) + h["gamma"]

    return pseudocode.adam(h, s, lambda t, _: twice(clipped_mean(h, s, t)), denominator)


def dp_adam_noiseless(h: dict[str, Any], s: Stream) -> list[Vector]:
    return pseudocode.adam(
        h, s, lambda t, _: (private_gradient(h, s, t), squares(clipped_mean(h, s, t)))
    )


def dp_rmsprop(h: dict[str, Any], s: Stream) -> list[Vector]:
    return pseudocode.rmsprop(h, s, lambda t: twice(private_gradient(h, s, t)))


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
    return pseudocode.rmsprop(h, s, lambda t: (private_gradient(h, s, t), squares(s.public[t])))


def dp_adam_pub(h: dict[str, Any], s: Stream) -> list[Vector]:
    b1, *others = h["betas"]

    def release(t: int, _: Vector) -> tuple[Vector, Vector]:
        g, p = private_gradient(h, s, t), s.public[t]
        return [b1 * g[j] + (1 - b1) * p[j] for j in range(s.d)], squares(p)

    return pseudocode.adam(h | {"betas": others}, s, release)


def public_preconditioner(h: dict[str, Any], s: Stream) -> list[Vector]:
    """Design principles, Algorithm 9, with ν from the public gradients of each step."""
    moments = {"betas": h["betas"][1:]}

    def release(t: int, _: Vector) -> tuple[Vector, Vector]:
        return private_gradient(h, s, t), squares(s.public[t])

    return pseudocode.adam(h | moments, s, release)


def pda_dpmd(h: dict[str, Any], s: Stream) -> list[Vector]:
    def mixed(t: int) -> Vector:
        g, p = private_gradient(h, s, t), s.public[t]
        alpha = math.cos(math.pi * (t + 1) / (2 * s.steps))
        return [alpha * g[j] + (1 - alpha) * p[j] for j in range(s.d)]

    return pseudocode.sgd(h, s, mixed)


def sgd(h: dict[str, Any], s: Stream) -> list[Vector]:
    return pseudocode.momentum(h, s, lambda t: plain_mean(h, s, t))


def adam(h: dict[str, Any], s: Stream) -> list[Vector]:
    return pseudocode.adam(h, s, lambda t, _: twice(plain_mean(h, s, t)))


def rmsprop(h: dict[str, Any], s: Stream) -> list[Vector]:
    return pseudocode.rmsprop(h, s, lambda t: twice(plain_mean(h, s, t)))


def dp_adamw(h: dict[str, Any], s: Stream) -> list[Vector]:
    """Loshchilov and Hutter 2019, Algorithm 2: the decay is applied to the weights themselves."""
    b1, b2 = h["betas"]
    w, m, v = [list(s.initial)], [0.0] * s.d, [0.0] * s.d
    for t in range(1, s.steps + 1):
        g, new = private_gradient(h, s, t - 1), []
        for j in range(s.d):
            m[j], v[j] = b1 * m[j] + (1 - b1) * g[j], b2 * v[j] + (1 - b2) * g[j] ** 2
            step = m[j] / (1 - b1**t) / (math.sqrt(v[j] / (1 - b2**t)) + h["gamma"])
            shrunk = w[-1][j] * (1 - h["learning_rate"] * h["weight_decay"])
            new.append(shrunk - h["learning_rate"] * step)
        w.append(new)
    return w


def dp_adamw_bc(h: dict[str, Any], s: Stream) -> list[Vector]:
    """Chooi et al. 2025, DP-AdamW-BC: Φ is taken off v̂, and the weights themselves decay."""
    b1, b2 = h["betas"]
    phi = (h["noise_multiplier"] * h["clip_norm"] / h["expected_batch_size"]) ** 2
    w, m, v = [list(s.initial)], [0.0] * s.d, [0.0] * s.d
    for t in range(1, s.steps + 1):
        g, new = private_gradient(h, s, t - 1), []
        for j in range(s.d):
            m[j], v[j] = b1 * m[j] + (1 - b1) * g[j], b2 * v[j] + (1 - b2) * g[j] ** 2
            corrected = max(v[j] / (1 - b2**t) - phi, h["gamma_prime"])
            step = m[j] / (1 - b1**t) / math.sqrt(corrected)
            new.append(w[-1][j] - h["learning_rate"] * (step + h["weight_decay"] * w[-1][j]))
        w.append(new)
    return w


def dp_microadam(h: dict[str, Any], s: Stream) -> list[Vector]:
    """Hudişteanu et al. 2025, steps 6 to 14 of the authors' code: a ring buffer of (I, V)."""
    (b1, b2), size, k = h["betas"], h["window"], math.ceil(h["density"] * s.d)
    w, error = [list(s.initial)], [0.0] * s.d
    ring: list[list[tuple[int, float]]] = [[] for _ in range(size)]
    for t in range(1, s.steps + 1):
        a = [x + y for x, y in zip(private_gradient(h, s, t - 1), error, strict=True)]
        indices = sorted(range(s.d), key=lambda j: -abs(a[j]))[:k]
        ring[(t - 1) % size] = [(j, a[j]) for j in indices]
        error = [0.0 if j in indices else a[j] for j in range(s.d)]
        m, v = [0.0] * s.d, [0.0] * s.d
        for i in range(min(t, size)):
            age = (t - i - 1) % size
            for j, value in ring[i]:
                m[j] += b1**age * value
                v[j] += b2**age * value**2
        first, second = (1 - b1) / (1 - b1**t), (1 - b2) / (1 - b2**t)
        steps = [first * m[j] / (h["gamma"] + math.sqrt(second * v[j])) for j in range(s.d)]
        w.append([w[-1][j] - h["learning_rate"] * steps[j] for j in range(s.d)])
    return w


def dp_radam(h: dict[str, Any], s: Stream) -> list[Vector]:
    """Liu et al. 2020, Algorithm 2, with the bound 5 on ρ_t and γ beside √v."""
    b1, b2 = h["betas"]
    w, m, v = [list(s.initial)], [0.0] * s.d, [0.0] * s.d
    rho_inf = 2 / (1 - b2) - 1
    for t in range(1, s.steps + 1):
        g, new = private_gradient(h, s, t - 1), []
        rho = rho_inf - 2 * t * b2**t / (1 - b2**t)
        for j in range(s.d):
            m[j], v[j] = b1 * m[j] + (1 - b1) * g[j], b2 * v[j] + (1 - b2) * g[j] ** 2
            step = m[j] / (1 - b1**t)
            if rho > 5:
                above = (rho - 4) * (rho - 2) * rho_inf
                step *= math.sqrt(above / ((rho_inf - 4) * (rho_inf - 2) * rho))
                step *= math.sqrt(1 - b2**t) / (math.sqrt(v[j]) + h["gamma"])
            new.append(w[-1][j] - h["learning_rate"] * step)
        w.append(new)
    return w


def dp_ademamix(h: dict[str, Any], s: Stream) -> list[Vector]:
    """Pagliardini et al. 2025, Algorithm 1, with the warm-ups of the authors' code."""
    b1, b2, b3 = h["betas"]
    w = [list(s.initial)]
    fast, slow, v = [0.0] * s.d, [0.0] * s.d, [0.0] * s.d
    warm = h["warmup"] * s.steps

    def half_life(beta: float) -> float:
        return math.log(0.5) / math.log(beta) - 1

    for t in range(1, s.steps + 1):
        alpha, beta = h["alpha"], b3
        if t < warm:
            a = t / warm
            alpha = a * h["alpha"]
            beta = 0.5 ** (1 / ((1 - a) * half_life(b1) + a * half_life(b3) + 1))
        g, new = private_gradient(h, s, t - 1), []
        for j in range(s.d):
            fast[j] = b1 * fast[j] + (1 - b1) * g[j]
            slow[j] = beta * slow[j] + (1 - beta) * g[j]
            v[j] = b2 * v[j] + (1 - b2) * g[j] ** 2
            below = math.sqrt(v[j] / (1 - b2**t)) + h["gamma"]
            step = (fast[j] / (1 - b1**t) + alpha * slow[j]) / below
            new.append(w[-1][j] - h["learning_rate"] * (step + h["weight_decay"] * w[-1][j]))
        w.append(new)
    return w


def dp_adafactor(h: dict[str, Any], s: Stream) -> list[Vector]:
    """Shazeer and Stern 2018, Algorithm 5: of a vector nothing is factored."""
    w, v = [list(s.initial)], [0.0] * s.d

    def rms(x: Vector) -> float:
        return math.sqrt(sum(y * y for y in x) / len(x))

    for t in range(1, s.steps + 1):
        beta, g = 1 - t ** -h["decay"], private_gradient(h, s, t - 1)
        v = [beta * v[j] + (1 - beta) * (g[j] ** 2 + 1e-30) for j in range(s.d)]
        u = [g[j] / math.sqrt(v[j]) for j in range(s.d)]
        rate = max(h["smallest_scale"], rms(w[-1])) * min(h["learning_rate"], 1 / math.sqrt(t))
        rate /= max(1, rms(u) / h["threshold"])
        shrunk = [x * (1 - h["learning_rate"] * h["weight_decay"]) for x in w[-1]]
        w.append([x - rate * y for x, y in zip(shrunk, u, strict=True)])
    return w


def dp_lssgd(h: dict[str, Any], s: Stream) -> list[Vector]:
    """Wang et al. 2020: the system (I − sL)x = g̃ is solved as it stands, without a transform."""
    system = np.eye(s.d)
    for i in range(s.d):
        system[i, i] += 2 * h["smoothing"]
        for neighbour in (i - 1, i + 1):
            system[i, neighbour % s.d] -= h["smoothing"]
    return pseudocode.sgd(h, s, lambda t: np.linalg.solve(system, private_gradient(h, s, t)))


def dp_ftrlm(h: dict[str, Any], s: Stream) -> list[Vector]:
    """Kairouz et al. 2021, DP-FTRLM: m ← βm + Σ_{i≤t} g̃_i; w = w_0 − ηm."""
    w, total, m = [list(s.initial)], [0.0] * s.d, [0.0] * s.d
    for t in range(s.steps):
        total = [x + y for x, y in zip(total, private_gradient(h, s, t), strict=True)]
        m = [h["momentum"] * x + y for x, y in zip(m, total, strict=True)]
        w.append([x - h["learning_rate"] * y for x, y in zip(s.initial, m, strict=True)])
    return w


def sign(x: float) -> float:
    return math.copysign(1.0, x) if x else 0.0


def dp_signsgd(h: dict[str, Any], s: Stream) -> list[Vector]:
    return pseudocode.sgd(h, s, lambda t: [sign(x) for x in private_gradient(h, s, t)])


def dp_lion(h: dict[str, Any], s: Stream) -> list[Vector]:
    """Chen et al. 2023, Algorithm 2."""
    b1, b2 = h["betas"]
    w, m = [list(s.initial)], [0.0] * s.d
    for t in range(s.steps):
        g = private_gradient(h, s, t)
        c = [b1 * m[j] + (1 - b1) * g[j] for j in range(s.d)]
        m = [b2 * m[j] + (1 - b2) * g[j] for j in range(s.d)]
        decayed = [sign(c[j]) + h["weight_decay"] * w[-1][j] for j in range(s.d)]
        w.append([w[-1][j] - h["learning_rate"] * decayed[j] for j in range(s.d)])
    return w


def schedule_free(h: dict[str, Any], s: Stream) -> tuple[list[Vector], list[Vector]]:
    """Defazio et al. 2024: z and x from θ_0, gradients at y = (1−β)z + βx; returns y and x."""
    z, x, y = (list(s.initial) for _ in range(3))
    v, weights, b2 = [0.0] * s.d, 0.0, h.get("beta2")
    ys, xs = [list(y)], [list(x)]
    for t in range(1, s.steps + 1):
        g, rate = private_gradient(h, s, t - 1), h["learning_rate"]
        if b2 is not None:
            rate *= math.sqrt(1 - b2**t)
            v = [b2 * v[j] + (1 - b2) * g[j] ** 2 for j in range(s.d)]
            g = [g[j] / (math.sqrt(v[j]) + h["gamma"]) for j in range(s.d)]
            g = [g[j] + h["weight_decay"] * y[j] for j in range(s.d)]
        weights += rate**2
        c = rate**2 / weights
        z = [z[j] - rate * g[j] for j in range(s.d)]
        x = [(1 - c) * x[j] + c * z[j] for j in range(s.d)]
        y = [(1 - h["beta"]) * z[j] + h["beta"] * x[j] for j in range(s.d)]
        ys.append(y)
        xs.append(x)
    return ys, xs


def schedule_free_points(h: dict[str, Any], s: Stream) -> list[Vector]:
    return schedule_free(h, s)[0]


ADAM = {"betas": [0.8, 0.95], "gamma": 1e-3}
MIX = {"betas": [0.8, 0.95, 0.99], "gamma": 1e-3, "alpha": 3.0, "weight_decay": 0.0}
FACTOR = {"decay": 0.8, "threshold": 1.0, "smallest_scale": 1e-3, "weight_decay": 0.2}
FREE = {"beta": 0.8}
FREE_ADAMW = {"beta": 0.8, "beta2": 0.95, "gamma": 1e-3, "weight_decay": 0.2}
TRANSCRIPTIONS: list[tuple[str, Any, dict[str, Any]]] = [
    ("dp-sgd", dp_sgd, {}),
    ("dp-sgd-warm", dp_sgd, {}),
    ("dp-sgdm", dp_sgdm, {"momentum": 0.85}),
    ("dp-sgdm", dp_sgdm, {"momentum": 0.85, "schedule": "adam-equivalent"}),
    ("dp-sgdm", dp_ftrlm, {"momentum": 0.85}),  # the same without restarts
    ("dp-adam", dp_adam, ADAM),
    ("dp-adamw", dp_adamw, ADAM | {"weight_decay": 0.3}),
    ("dp-signsgd", dp_signsgd, {}),
    ("dp-lion", dp_lion, {"betas": [0.7, 0.95], "weight_decay": 0.3}),
    ("dp-schedule-free", schedule_free_points, FREE),
    ("dp-schedule-free-adamw", schedule_free_points, FREE_ADAMW),
    ("dp-muon", dp_adam, {**ADAM, "clip_rule": {"per": "example"}}),  # no shapes are known
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
    (
        "dp-adamw-bc",
        dp_adamw_bc,
        {"betas": [0.8, 0.95], "gamma_prime": 1e-4, "weight_decay": 0.3},
    ),
    ("dp-microadam", dp_microadam, ADAM | {"density": 0.3, "window": 3}),
    ("dp-microadam", dp_microadam, ADAM | {"density": 1.0, "window": 1}),
    ("dp-microadam", dp_adam, ADAM | {"density": 1.0, "window": 20}),  # nothing is left out
    ("dp-radam", dp_radam, {"betas": [0.8, 0.95], "gamma": 1e-3}),
    ("dp-radam", dp_radam, {"betas": [0.8, 0.5], "gamma": 1e-3}),  # never divides by √v
    ("dp-ademamix", dp_ademamix, MIX | {"warmup": 1.0}),
    ("dp-ademamix", dp_ademamix, MIX | {"warmup": 0.4, "weight_decay": 0.3}),
    ("dp-ademamix", dp_ademamix, MIX | {"warmup": 0.0}),
    ("dp-adafactor", dp_adafactor, FACTOR),
    ("dp-adafactor", dp_adafactor, FACTOR | {"threshold": 0.3, "smallest_scale": 2.0}),
    ("dp-lssgd", dp_lssgd, {"smoothing": 1.7}),
    ("dp-lssgd", dp_sgd, {"smoothing": 0.0}),
    ("clipped-adam-biased", clipped_adam_biased, ADAM | {"phi": 0.3}),
    ("dp-adam-noiseless", dp_adam_noiseless, ADAM),
    ("dp-rmsprop", dp_rmsprop, {"beta": 0.9, "gamma": 1e-3}),
    ("dp-adagrad", dp_adagrad, {}),
    ("dp-r-pub", dp_r_pub, {"beta": 0.9, "gamma": 1e-3}),
    ("dp-adam-pub", dp_adam_pub, {"betas": [0.7, 0.8, 0.95], "gamma": 1e-3}),
    ("dp-adam-pub", public_preconditioner, {"betas": [1.0, 0.8, 0.95], "gamma": 1e-3}),
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
