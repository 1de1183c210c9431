"""Replay against plain transcriptions: micro-batches, and federated training on users' updates."""

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
    momentum,
    noisy,
    record,
    run_replay,
    sgd,
    squares,
)

from clipnoise import replay
from clipnoise.errors import UserError

# Micro-batches.


def micro_batch_gradient(h: dict[str, Any], s: Stream, t: int, width: float) -> Vector:
    """Clip the sum of each m neighbours divided by m; noise for `width` clip norms."""
    m, c = h["microbatch_size"], h["clip_norm"]
    examples = s.gradients[t][0]
    means = [
        [sum(g[j] for g in examples[first : first + m]) / m for j in range(s.d)]
        for first in range(0, len(examples), m)
    ]
    groups = h["expected_batch_size"] / m
    deviation = h["noise_multiplier"] * width * c / groups
    return noisy(mean_of_clipped(means, c, groups, s.d), deviation, s.noise[t][0])


def dp_sgd(h: dict[str, Any], s: Stream, width: float) -> list[Vector]:
    return sgd(h, s, lambda t: micro_batch_gradient(h, s, t, width))


def dp_adambc(h: dict[str, Any], s: Stream, width: float) -> list[Vector]:
    groups = h["expected_batch_size"] / h["microbatch_size"]
    phi = (h["noise_multiplier"] * width * h["clip_norm"] / groups) ** 2

    def release(t: int, _: Vector) -> tuple[Vector, Vector]:
        g = micro_batch_gradient(h, s, t, width)
        return g, squares(g)

    def denominator(t: int, v_hat: float) -> float:
        return math.sqrt(max(v_hat - phi, h["gamma_prime"]))

    return adam(h | {"betas": (0.9, 0.999)}, s, release, denominator)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("accounting", "width"), [("corrected", 2.0), ("as-published", 1.0)])
@pytest.mark.parametrize("size", [2, 4])
def test_micro_batches_follow_the_formula(
    accounting: str, width: float, size: int, case: str
) -> None:
    own = {"microbatch_size": size, "microbatch_accounting": accounting, "gamma_prime": 1e-4}
    h, stream = RUN | {"learning_rate": 0.3} | own, record(0, case)
    assert_same("dp-adambc", h, stream, dp_adambc(h, stream, width))
    del h["gamma_prime"]
    assert_same("dp-sgd", h, stream, dp_sgd(h, stream, width))


@pytest.mark.parametrize("method", ["dp-sgd", "dp-adam", "ime-adam"])
def test_micro_batches_of_one_are_examples(method: str) -> None:
    h, stream = RUN | {"learning_rate": 0.3}, record(0, "ordinary", releases=2)
    if method != "ime-adam":
        stream.noise = [[z[0]] for z in stream.noise]
    one = run_replay(method, h | {"microbatch_size": 1}, stream)
    np.testing.assert_array_equal(one, run_replay(method, h, stream))


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"microbatch_size": 3}, "4 must be a multiple of it, got 3"),
        ({"microbatch_size": 0}, "microbatch_size: input should be greater than 0"),
        ({"microbatch_size": 2, "microbatch_accounting": "mine"}, "microbatch_accounting"),
        ({"microbatch_accounting": "as-published"}, "requires a microbatch_size above 1"),
        ({"microbatchsize": 2}, "Did you mean 'microbatch_size'?"),
    ],
)
def test_micro_batches_that_make_no_sense_are_refused(own: dict[str, Any], message: str) -> None:
    h, stream = RUN | {"learning_rate": 0.3} | own, record(0, "ordinary")
    with pytest.raises(UserError) as raised:
        run_replay("dp-sgd", h, stream)
    assert message in str(raised.value)


# Federated training: the stream holds the updates Δ_u of users.


def mean_update(h: dict[str, Any], s: Stream, t: int) -> Vector:
    """AdaDPS, Algorithm 3, lines 7 to 9, with the noise of b users or of one sum."""
    b = h["expected_batch_size"]
    if "clip_norm" not in h:
        return [sum(row[j] for row in s.gradients[t][0]) / b for j in range(s.d)]
    c = h["clip_norm"]
    per_user = h.get("noise_placement") == "per-user"
    deviation = h["noise_multiplier"] * c * (math.sqrt(b) if per_user else 1.0)
    return noisy(mean_of_clipped(s.gradients[t][0], c, b, s.d), deviation / b, s.noise[t][0])


def descent(h: dict[str, Any], s: Stream, t: int) -> Vector:
    """−Δ: a server's rule descends along it as along a gradient."""
    return [-x for x in mean_update(h, s, t)]


def fed_avg(h: dict[str, Any], s: Stream) -> list[Vector]:
    return momentum(h, s, lambda t: descent(h, s, t))


def fed_adam(h: dict[str, Any], s: Stream) -> list[Vector]:
    return adam(h, s, lambda t, _: (descent(h, s, t), squares(descent(h, s, t))))


ADAM = {"betas": [0.8, 0.95], "gamma": 1e-3}
TRANSCRIPTIONS: list[tuple[str, Any, dict[str, Any]]] = [
    ("dp-fedavg", fed_avg, {"momentum": 0.0}),
    ("dp-fedavg", fed_avg, {"momentum": 0.9}),
    ("adadps-fed", fed_avg, {"momentum": 0.9}),
    ("dp-fedadam", fed_adam, ADAM | {"bias_correction": True}),
    ("dp-fedadam", fed_adam, ADAM | {"bias_correction": False}),
    ("fedavg", fed_avg, {"momentum": 0.9}),
    ("adas-fed", fed_avg, {"momentum": 0.9}),
    ("fedadam", fed_adam, ADAM | {"bias_correction": True}),
]
PRIVATE = ("clip_norm", "noise_multiplier", "noise_placement")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("placement", ["central", "per-user"])
@pytest.mark.parametrize(("method", "transcription", "own"), TRANSCRIPTIONS)
def test_federated_training_follows_the_paper(
    method: str, transcription: Any, own: dict[str, Any], placement: str, case: str
) -> None:
    h = RUN | {"learning_rate": 0.5, "noise_placement": placement} | own
    if method in ("fedavg", "fedadam", "adas-fed"):
        h = {name: value for name, value in h.items() if name not in PRIVATE}
    for seed in range(2):
        stream = record(seed, case)
        assert_same(method, h, stream, transcription(h, stream))


def test_noise_per_user_is_the_square_root_of_b_on_the_sum() -> None:
    """No user is drawn: what is released is the noise of b users over b."""
    b, sigma, c = 9, 0.7, 1.3
    h = {"learning_rate": 1.0, "momentum": 0.0, "clip_norm": c, "noise_multiplier": sigma}
    no_users, z = np.zeros((1, 0, 2)), [[1.0, -2.0]]

    def moved(placement: str) -> Any:
        own = h | {"expected_batch_size": b, "noise_placement": placement}
        return replay("dp-fedavg", own, [0, 0], no_users, z)[1]

    np.testing.assert_allclose(moved("central"), sigma * c / b * np.array(z[0]))
    np.testing.assert_allclose(moved("per-user"), 3 * sigma * c / b * np.array(z[0]))


def test_one_local_step_on_all_examples_is_dp_sgd_on_users() -> None:
    """Δ_u = −η g_u: clipping it at C is clipping g_u at C/η, with the noise of C on both sides."""
    s, rate = record(3, "ordinary"), 0.5
    gradients = np.array([batch[0] for batch in s.gradients])
    plain = RUN | {"learning_rate": rate, "clip_norm": RUN["clip_norm"] / rate}
    expected = replay("dp-sgd", plain, s.initial, gradients, -np.array(s.noise))
    fed = RUN | {"learning_rate": 1.0, "momentum": 0.0}
    out = replay("dp-fedavg", fed, s.initial, -rate * gradients, s.noise)
    np.testing.assert_allclose(out, expected, rtol=1e-12)
