"""Replay against plain transcriptions: independently and jointly released moments."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pseudocode import (
    CASES,
    RUN,
    Stream,
    Vector,
    adam,
    assert_same,
    clip,
    mean_of_clipped,
    noisy,
    record,
    run_replay,
)

from clipnoise.errors import UserError


def independent_moments(h: dict[str, Any], s: Stream, t: int) -> tuple[Vector, Vector]:
    """The two releases of Algorithm 6, with the square taken inside the ball of radius C."""
    c, b, sigma = h["clip_norm"], h["expected_batch_size"], h["noise_multiplier"]
    root = 1.0 if h.get("for_free") else math.sqrt(2)
    g = mean_of_clipped(s.gradients[t][0], c, b, s.d)
    square = [x * x for x in clip(g, c)]
    return (
        noisy(g, root * c * sigma / b, s.noise[t][0]),
        noisy(square, root * (2 * b + 1) * c**2 / b**2 * sigma, s.noise[t][1]),
    )


def joint_moments(h: dict[str, Any], s: Stream, t: int) -> tuple[Vector, Vector]:
    """(ḡ, cḡ²) with noise for the sensitivity of the pair, divided by c again."""
    C, b, sigma = h["clip_norm"], h["expected_batch_size"], h["noise_multiplier"]
    c = h.get("moment_weight", 1 / (2 * C**2))
    sensitivity = 2 * C / b
    if h.get("accounting") != "as-published":
        sensitivity *= math.sqrt(1 + (2 * c * C) ** 2)
    g = mean_of_clipped(s.gradients[t][0], C, b, s.d)
    weighted = noisy([c * x * x for x in clip(g, C)], sigma * sensitivity, s.noise[t][1])
    return noisy(g, sigma * sensitivity, s.noise[t][0]), [x / c for x in weighted]


def ime_adam(h: dict[str, Any], s: Stream) -> list[Vector]:
    return adam(h, s, lambda t, _: independent_moments(h, s, t))


def jme_adam(h: dict[str, Any], s: Stream) -> list[Vector]:
    return adam(h, s, lambda t, _: joint_moments(h, s, t))


def ime_adagrad(h: dict[str, Any], s: Stream) -> list[Vector]:
    w, v = [list(s.initial)], [0.0] * s.d
    for t in range(s.steps):
        g, g2 = independent_moments(h, s, t)
        new = []
        for j in range(s.d):
            v[j] += g2[j]
            rate = h["learning_rate"] / max(1, math.sqrt(max(v[j], 0)))
            new.append(w[-1][j] - rate * g[j])
        w.append(new)
    return w


ADAM = {"betas": [0.8, 0.95], "gamma": 1e-2}
TRANSCRIPTIONS: list[tuple[str, Any, dict[str, Any]]] = [
    ("ime-adam", ime_adam, ADAM),
    ("ime-adam", ime_adam, ADAM | {"for_free": True}),
    ("ime-adagrad", ime_adagrad, {}),
    ("ime-adagrad", ime_adagrad, {"for_free": True}),
    ("jme-adam", jme_adam, ADAM),
    ("jme-adam", jme_adam, ADAM | {"moment_weight": 0.1}),
    ("jme-adam", jme_adam, ADAM | {"accounting": "as-published"}),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("method", "transcription", "own"), TRANSCRIPTIONS)
def test_follows_the_paper(method: str, transcription: Any, own: dict[str, Any], case: str) -> None:
    h = RUN | {"learning_rate": 0.3} | own
    for seed in range(3):
        stream = record(seed, case, releases=2)
        assert_same(method, h, stream, transcription(h, stream))


def test_published_joint_noise_is_that_of_the_mean_alone() -> None:
    """At c = 1/(2C²) the second moment's noise has standard deviation 4σC³/B."""
    C, b, sigma = 1.3, 4.0, 0.7
    h = RUN | {"learning_rate": 1.0, "betas": [0.0, 0.0], "gamma": 0.0}
    s = Stream([0.0], [[[]]], [[[1.0], [1.0]]], [[0.0]])
    out = run_replay("jme-adam", h | {"accounting": "as-published"}, s)
    assert out[1, 0] == pytest.approx(-(2 * sigma * C / b) / math.sqrt(4 * sigma * C**3 / b))


def test_a_joint_weight_beyond_the_published_range_is_rejected() -> None:
    h = RUN | {"learning_rate": 0.3, "moment_weight": 0.31}
    with pytest.raises(UserError, match=r"at most 1/\(2C²\) = 0\.295858"):
        run_replay("jme-adam", h, record(0, "ordinary", releases=2))


def test_two_releases_need_two_noises() -> None:
    with pytest.raises(UserError, match=r"noise: expected shape \(7, 2, 4\), got \(7, 1, 4\)"):
        run_replay("ime-adam", RUN | {"learning_rate": 0.3}, record(0, "ordinary"))
