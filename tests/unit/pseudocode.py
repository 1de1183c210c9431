"""Shared parts of the papers' transcriptions, in plain floats and lists without suite code.

A transcription takes the hyper-parameters and a recorded stream (lists of lists of floats) and
returns the iterates. Names: T steps, k iterates back, B examples, d coordinates.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Vector = list[float]


@dataclass
class Stream:
    """A recorded stream. gradients[t][j][i] is example i's gradient at the iterate j steps back."""

    initial: Vector
    gradients: list[list[list[Vector]]]
    noise: list[list[Vector]]
    public: list[Vector]
    side: Vector = field(default_factory=list)

    @property
    def steps(self) -> int:
        return len(self.gradients)

    @property
    def d(self) -> int:
        return len(self.initial)


RUN = {"clip_norm": 1.3, "noise_multiplier": 0.7, "expected_batch_size": 4.0}


def clip(v: Vector, c: float) -> Vector:
    norm = math.sqrt(sum(x * x for x in v))
    return v if norm <= c else [x * c / norm for x in v]


def mean_of_clipped(vectors: list[Vector], c: float, b: float, d: int) -> Vector:
    total = [0.0] * d
    for v in vectors:
        for j, x in enumerate(clip(v, c)):
            total[j] += x
    return [x / b for x in total]


def noisy(mean: Vector, deviation: float, z: Vector) -> Vector:
    return [x + deviation * y for x, y in zip(mean, z, strict=True)]


def private_gradient(h: dict[str, Any], s: Stream, t: int) -> Vector:
    """DP-SGD's g̃_t for t counted from 0."""
    b, c = h["expected_batch_size"], h["clip_norm"]
    mean = mean_of_clipped(s.gradients[t][0], c, b, s.d)
    return noisy(mean, h["noise_multiplier"] * c / b, s.noise[t][0])


def plain_mean(h: dict[str, Any], s: Stream, t: int) -> Vector:
    """The mean gradient over B for t counted from 0, neither clipped nor noisy."""
    batch = s.gradients[t][0]
    return [sum(g[j] for g in batch) / h["expected_batch_size"] for j in range(s.d)]


def clipped_mean(h: dict[str, Any], s: Stream, t: int) -> Vector:
    """DP-SGD's g̃_t without its noise, for t counted from 0."""
    return mean_of_clipped(s.gradients[t][0], h["clip_norm"], h["expected_batch_size"], s.d)


def squares(g: Vector) -> Vector:
    return [x * x for x in g]


def sgd(h: dict[str, Any], s: Stream, gradient: Callable[[int], Vector]) -> list[Vector]:
    """w ← w − ηg, where gradient(t) is that of step t counted from 0."""
    w = [list(s.initial)]
    for t in range(s.steps):
        g = gradient(t)
        w.append([w[-1][j] - h["learning_rate"] * g[j] for j in range(s.d)])
    return w


def momentum(
    h: dict[str, Any],
    s: Stream,
    gradient: Callable[[int], Vector],
    rate: Callable[[int], float] | None = None,
) -> list[Vector]:
    """b ← βb + g; w ← w − ηb, with rate(t) for t from 1 in place of η where it is given."""
    w, b = [list(s.initial)], [0.0] * s.d
    for t in range(s.steps):
        g, beta = gradient(t), h.get("momentum", 0.0)
        b = [beta * b[j] + g[j] for j in range(s.d)]
        eta = h["learning_rate"] if rate is None else rate(t + 1)
        w.append([w[-1][j] - eta * b[j] for j in range(s.d)])
    return w


def rmsprop(
    h: dict[str, Any], s: Stream, release: Callable[[int], tuple[Vector, Vector]]
) -> list[Vector]:
    """v ← βv + (1−β)g²; w ← w − η g/(√v + γ), where release(t) is (g, g²) of step t from 0."""
    w, v = [list(s.initial)], [0.0] * s.d
    for t in range(s.steps):
        g, g2 = release(t)
        v = [h["beta"] * v[j] + (1 - h["beta"]) * g2[j] for j in range(s.d)]
        step = [g[j] / (math.sqrt(v[j]) + h["gamma"]) for j in range(s.d)]
        w.append([w[-1][j] - h["learning_rate"] * step[j] for j in range(s.d)])
    return w


def adam(
    h: dict[str, Any],
    s: Stream,
    release: Callable[[int, Vector], tuple[Vector, Vector]],
    denominator: Callable[[int, float], float] | None = None,
) -> list[Vector]:
    """Adam (Kingma and Ba 2015, Algorithm 1), the only one in these tests.

    release(t, v̂_{t−1}) is (g, g²) of step t counted from 0; denominator(t, v̂_t) for t from 1 takes
    the place of √max(v̂_t, 0) + γ where it is given.
    """
    w, m, v, v_hat = [list(s.initial)], [0.0] * s.d, [0.0] * s.d, [0.0] * s.d
    b1, b2 = h["betas"]
    for t in range(1, s.steps + 1):
        g, g2 = release(t - 1, v_hat)
        first, second = (1 - b1**t, 1 - b2**t) if h.get("bias_correction", True) else (1.0, 1.0)
        new = []
        for j in range(s.d):
            m[j] = b1 * m[j] + (1 - b1) * g[j]
            v[j] = b2 * v[j] + (1 - b2) * g2[j]
            v_hat[j] = v[j] / second
            root = math.sqrt(max(v_hat[j], 0)) + h.get("gamma", 0.0)
            below = root if denominator is None else denominator(t, v_hat[j])
            new.append(w[-1][j] - h["learning_rate"] * (m[j] / first) / below)
        w.append(new)
    return w


CASES = {
    "ordinary": {"T": 7},
    "one step": {"T": 1},
    "two steps, more iterates than steps": {"T": 2, "k": 4},
    "one example": {"B": 1, "T": 12},
    "larger batch than expected": {"B": 9},
    "empty batches": {"B": 0},
    "one coordinate": {"d": 1},
    "tiny gradients": {"size": 1e-6},
    "huge gradients": {"size": 1e6},
    "zero gradients": {"size": 0.0},
    "norms at, below and above the clip norm": {"at_clip_norm": True, "B": 3},
}


def record(seed: int, case: str, releases: int = 1) -> Stream:
    """Draw a stream of one of the cases; the iterates of a batch differ from each other."""
    options = {"T": 5, "k": 4, "B": 5, "d": 4, "size": 1.0, "at_clip_norm": False} | CASES[case]
    T, k, B, d = (options[name] for name in "TkBd")
    draw = random.Random(f"{seed} {case}")

    def normal(size: float = 1.0) -> Vector:
        return [draw.gauss(0, 1) * size for _ in range(d)]

    def example(i: int) -> Vector:
        if not options["at_clip_norm"]:
            return normal(options["size"])
        # 3-4-5 scaled to the clip norm: exactly at it, just below and just above
        factor = RUN["clip_norm"] / 5 * (1.0, 1 - 1e-9, 1 + 1e-9)[i % 3]
        return [3 * factor, 0.0, -4 * factor] + [0.0] * (d - 3)

    return Stream(
        initial=normal(),
        gradients=[[[example(i) for i in range(B)] for _ in range(k)] for _ in range(T)],
        noise=[[normal() for _ in range(releases)] for _ in range(T)],
        public=[normal() for _ in range(T)],
        side=[0.1 + draw.random() for _ in range(d)],
    )


def run_replay(method: str, h: dict[str, Any], s: Stream) -> Any:
    """Feed a stream to the replay of the suite: the code under test."""
    import numpy as np

    from clipnoise import replay
    from clipnoise.methods.base import method_class

    kind = method_class(method)
    examples = len(s.gradients[0][0])
    shape = (s.steps, len(s.gradients[0]), examples, s.d)
    return replay(
        method,
        h,
        s.initial,
        np.array(s.gradients).reshape(shape),
        s.noise,
        s.public if kind.uses_public_gradient else None,
        side_information=s.side if kind.uses_side_information else None,
    )


def assert_same(method: str, h: dict[str, Any], s: Stream, iterates: list[Vector]) -> None:
    import numpy as np

    np.testing.assert_allclose(run_replay(method, h, s), iterates, rtol=1e-10, atol=1e-12)
