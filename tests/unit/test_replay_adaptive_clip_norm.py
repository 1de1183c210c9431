"""Replay against plain transcriptions of the papers: a clip norm that releases decide."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pseudocode
import pytest
import torch
from every_method import build
from pseudocode import CASES, RUN, Stream, Vector, assert_same, clip, mean_of_clipped, noisy, record

from clipnoise.core.state import Public, State
from clipnoise.core.taken import GradientsAndSlacks


def released(h: dict[str, Any], s: Stream) -> list[Vector]:
    """Andrew et al. 2021, Algorithm 1: g̃ of each step, C following the quantile q.

    In the paper's terms z_Δ = (z⁻² − (2σ_b)⁻²)^(−1/2), with z = σ the multiplier of both.
    """
    c, z, b = h["clip_norm"], h["noise_multiplier"], h["expected_batch_size"]
    sigma_b = z / (2 * math.sqrt(h["count_share"]))
    z_delta = (z**-2 - (2 * sigma_b) ** -2) ** -0.5
    found = []
    for t in range(s.steps):
        batch, (for_mean, for_count) = s.gradients[t][0], s.noise[t]
        found.append(noisy(mean_of_clipped(batch, c, b, s.d), z_delta * c / b, for_mean))
        short = sum(1 for v in batch if math.sqrt(sum(x * x for x in v)) <= c)
        below = (short - len(batch) / 2 + sigma_b * for_count[0]) / b + 0.5
        c *= math.exp(-h["clip_learning_rate"] * (below - h["target_quantile"]))
    return found


def dp_sgd_quantile(h: dict[str, Any], s: Stream) -> list[Vector]:
    gradients = released(h, s)
    return pseudocode.sgd(h, s, lambda t: gradients[t])


def dp_adam_quantile(h: dict[str, Any], s: Stream) -> list[Vector]:
    gradients = released(h, s)
    return pseudocode.adam(h, s, lambda t, _: (gradients[t], pseudocode.squares(gradients[t])))


QUANTILE = {"target_quantile": 0.3, "clip_learning_rate": 0.4, "count_share": 0.2}


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("norms at")])
@pytest.mark.parametrize(
    ("method", "transcription", "own"),
    [
        ("dp-sgd-quantile", dp_sgd_quantile, {}),
        ("dp-adam-quantile", dp_adam_quantile, {"betas": [0.8, 0.95], "gamma": 1e-3}),
    ],
)
def test_follows_the_paper(method: str, transcription: Any, own: dict[str, Any], case: str) -> None:
    h = RUN | {"learning_rate": 0.3} | QUANTILE | own
    for seed in range(3):
        stream = record(seed, case, releases=2)
        assert_same(method, h, stream, transcription(h, stream))


def slacks(v: Vector, c: float, slots: int) -> Vector:
    """Zou et al. 2026, equations 7 and 8: a slots full, b in the next one, nothing in the rest."""
    width = c / math.sqrt(slots)
    left = math.sqrt(slots) * max(c - math.sqrt(sum(x * x for x in v)), 0.0)
    full = min(slots, math.floor(left / width))
    rest = [left - full * width] if full < slots else []
    return [width] * full + rest + [0.0] * (slots - full - 1)


def dp_sgd_slaclip(h: dict[str, Any], s: Stream) -> list[Vector]:
    """Zou et al. 2026, equations 6 to 11 and 28 to 30."""
    c, b, slots, w = h["clip_norm"], h["expected_batch_size"], h["slots"], [list(s.initial)]
    for t in range(s.steps):
        extended = [clip(v, c) + slacks(v, c, slots) for v in s.gradients[t][0]]
        sums = [sum(column) for column in zip(*extended, strict=True)] or [0.0] * (s.d + slots)
        release = noisy([x / b for x in sums], h["noise_multiplier"] * c / b, s.noise[t][0])
        shares = [x / (c / math.sqrt(slots)) for x in release[s.d :]]
        r = min(1.0, max(0.0, shares[-1] / c))
        gamma = min(1.0, max(0.0, 1 - (1 - r) / 2))
        w.append([x - h["learning_rate"] * y for x, y in zip(w[-1], release[: s.d], strict=True)])
        moved = c * math.exp(h["clip_learning_rate"] * (gamma - shares[0]))
        c = min(h["highest_clip_norm"], max(h["lowest_clip_norm"], moved))
    return w


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_slaclip_follows_the_paper(slots: int, case: str) -> None:
    own = {"clip_learning_rate": 0.4, "lowest_clip_norm": 0.9, "highest_clip_norm": 1.6}
    h = RUN | {"learning_rate": 0.3, "slots": slots} | own
    for seed in range(3):
        stream, draw = record(seed, case), random.Random(seed)
        noise = [
            [z + [draw.gauss(0, 1) for _ in range(slots)] for z in step] for step in stream.noise
        ]
        stream = replace(stream, noise=noise)
        assert_same("dp-sgd-slaclip", h, stream, dp_sgd_slaclip(h, stream))


@pytest.mark.parametrize("slots", [1, 2, 7, 64])
@pytest.mark.parametrize("clip_norm", [1e-3, 1.0, 40.0])
def test_a_clipped_vector_and_its_slacks_are_no_longer_than_the_clip_norm(
    clip_norm: float, slots: int
) -> None:
    draw, taken = torch.Generator().manual_seed(0), GradientsAndSlacks(slots)
    norms = 2 * clip_norm * torch.rand(10_000, generator=draw, dtype=torch.float64)
    whole = clip_norm / slots * torch.arange(2 * slots + 1, dtype=torch.float64)  # slots just full
    norms = torch.cat([norms, whole])
    clipped = norms.clamp(max=clip_norm)
    slots_filled = taken.coordinates(norms, clipped, clip_norm)
    lengths = torch.hypot(clipped, slots_filled.norm(dim=1))
    assert float(lengths.max()) <= taken.bound(clip_norm) * (1 + 1e-12)
    assert float(lengths[-2 * slots - 1]) == pytest.approx(clip_norm)  # a vector of zeros
    expected = math.sqrt(slots) * (clip_norm - clipped)
    torch.testing.assert_close(slots_filled.sum(dim=1), expected)
    assert (slots_filled.diff(dim=1) <= 0).all()
    found = [slacks([float(norm)], clip_norm, slots) for norm in norms[:200]]
    torch.testing.assert_close(slots_filled[:200], torch.tensor(found, dtype=torch.float64))


def test_slaclip_raises_a_clip_norm_that_all_exceed_and_lowers_one_that_none_comes_near() -> None:
    method: Any = build("dp-sgd-slaclip", clip_norm=2.0, slots=4, highest_clip_norm=2.5)
    public = Public(noise_multiplier=0.0, expected_batch_size=4.0, total_steps=9)
    for filled, expected in [(0.0, 2.0 * math.exp(0.25)), (1.0, 2.0 * math.exp(-0.125))]:
        state = State(torch.zeros(3, dtype=torch.float64), step=1)
        release = torch.full((7,), filled, dtype=torch.float64)  # λ = C/√K = 1
        method.update((release,), state, public)
        assert method.current_clip_norm(state) == pytest.approx(min(2.5, expected))


def test_clip_norms_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(ValueError, match="lowest_clip_norm must not be above"):
        build("dp-sgd-slaclip", lowest_clip_norm=60.0)
