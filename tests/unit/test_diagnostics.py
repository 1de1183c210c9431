"""Diagnostics see the moments with and without noise, and make the run non-private."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from budgets import budget
from every_method import build

from clipnoise.core.clipping import ClippedSum, Clipping
from clipnoise.core.method import Method
from clipnoise.core.state import Public
from clipnoise.methods.privatize_then_adapt.dp_adambc import DPAdamBC
from clipnoise.privacy.queries import ClippedMean
from clipnoise.run.diagnostics import BINS, Diagnostics
from clipnoise.run.outcome import Outcome, Recorded
from clipnoise.run.provenance import Provenance
from clipnoise.run.results import read_run, run_folder, write_run
from clipnoise.run.spec import RunSpec, from_mapping, to_mapping
from clipnoise.run.train import Run, train

PUBLIC = Public(noise_multiplier=0.5, expected_batch_size=10, total_steps=50)
PHI = (0.5 * 2 / 10) ** 2  # (σC/B)² at C = 2


def adambc(**options: Any) -> Method:
    return DPAdamBC(learning_rate=0.1, clip_norm=2, gamma_prime=1e-4, **options)


def watched(steps: int, clean: torch.Tensor, method: Method, deviation: float) -> Recorded:
    """Return what diagnostics saw of the same clean value in each step, with noise on it."""
    seen = Diagnostics(method, torch.zeros_like(clean))
    draws = torch.Generator().manual_seed(1)
    for _ in range(steps):
        noise = deviation * torch.randn(clean.shape, generator=draws)
        seen.observe(clean + noise, clean, Clipping(2.0), PUBLIC)
    return seen.result()


def test_moments_of_a_constant_value_are_that_value_and_its_square() -> None:
    found = watched(7, torch.full((5,), 0.3), adambc(), 0.0)
    said = found.statistics
    assert found.step == 7
    assert found.phi == pytest.approx(PHI)
    for kind in ("clipped", "private"):
        for key in ("min", "q1", "median", "q3", "max", "mean"):
            assert said[f"m_{kind}.{key}"] == pytest.approx(0.3)
            assert said[f"v_{kind}.{key}"] == pytest.approx(0.09)
            assert said[f"update_{kind}.{key}"] == pytest.approx(1)
    assert said["v_corrected.mean"] == pytest.approx(0.09 - PHI)
    assert said["update_corrected.mean"] == pytest.approx(0.3 / math.sqrt(0.09 - PHI))


def test_what_crosses_is_released_as_it_is_and_seen_with_and_without_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the sum (3, 6), at B = 10, C = 2 and σ = 0.5, noise (1, −1) leaves (0.4, 0.5)."""
    crossing = (ClippedMean(), Clipping(2.0), [torch.tensor([1.0, -1.0])], PUBLIC)
    seen: list[torch.Tensor] = []
    watching = Diagnostics(adambc(), torch.zeros(2))
    monkeypatch.setattr(watching, "observe", lambda *given: seen.extend(given[:2]))
    released = watching.cross(ClippedSum(torch.tensor([3.0, 6.0])), *crossing)
    for value, expected in (
        (released[0], [0.4, 0.5]),
        (seen[0], [0.4, 0.5]),
        (seen[1], [0.3, 0.6]),
    ):
        torch.testing.assert_close(value, torch.tensor(expected))


def test_the_norm_is_counted_in_clip_norms_at_every_step() -> None:
    found = watched(3, torch.tensor([0.6, 0.8, 0.0]), adambc(), 0.0)
    assert found.series["step"] == (1, 2, 3)
    assert found.series["clipped_gradient_norm"] == pytest.approx([0.5] * 3)
    assert found.statistics["clipped_gradient_norm.mean"] == pytest.approx(0.5)


def test_quartiles_interpolate_between_coordinates() -> None:
    said = watched(1, torch.tensor([4.0, 1.0, 2.0, 3.0]), adambc(), 0.0).statistics
    found = [said[f"m_clipped.{key}"] for key in ("min", "q1", "median", "q3", "max")]
    assert found == pytest.approx([1, 1.75, 2.5, 3.25, 4])


def test_noise_alone_lifts_the_second_moment_to_phi_and_half_of_it_is_below() -> None:
    found = watched(50, torch.zeros(4000), adambc(), math.sqrt(PHI))
    said = found.statistics
    assert said["v_clipped.max"] == 0
    assert said["v_private.mean"] == pytest.approx(PHI, rel=0.02)
    assert found.series["negative_fraction"][-1] == pytest.approx(0.5, abs=0.06)
    assert said["v_corrected.min"] == pytest.approx(1e-4)
    assert "update_clipped.max" not in said, "no coordinate has a second moment without noise"


def test_the_first_step_is_below_phi_as_often_as_a_normal_is_within_one_deviation() -> None:
    found = watched(1, torch.zeros(20000), adambc(), math.sqrt(PHI))
    assert found.series["negative_fraction"] == pytest.approx([0.6827], abs=0.012)


@pytest.mark.parametrize(("name", "share"), [("ime-adam", 2), ("clipped-adam-biased", 0)])
def test_phi_is_the_variance_of_the_noise_that_the_query_adds(name: str, share: float) -> None:
    method = build(name, clip_norm=2)
    assert watched(3, torch.zeros(4), method, 0.1).phi == pytest.approx(share * PHI)


def test_the_corrected_moment_is_the_one_that_the_method_divides_by() -> None:
    said = watched(5, torch.full((3,), 0.3), adambc(phi=0.05), 0.0).statistics
    assert said["v_corrected.mean"] == pytest.approx(0.09 - 0.05)


def test_histograms_count_every_coordinate_within_their_ends() -> None:
    found = watched(20, torch.linspace(-1, 1, 2000), adambc(), math.sqrt(PHI)).histograms
    assert found["second"].log10
    for counts in found["second"].counts.values():
        assert (len(counts), sum(counts)) == (BINS, 2000)
    for name, counts in found["first"].counts.items():
        assert 1990 <= sum(counts) <= 2000, name


def test_a_long_series_is_thinned_and_its_statistics_are_not() -> None:
    found = watched(1234, torch.full((2,), 0.1), adambc(), 0.0)
    steps = found.series["step"]
    assert len(steps) <= 100
    assert steps[-1] == 1234
    assert len(set(map(int.__sub__, steps[1:], steps))) == 1, "evenly spaced"
    assert len(json.dumps(asdict(found))) < 30_000


def spec(method: dict[str, Any], *, diagnostics: bool = True, noisy: bool = True) -> RunSpec:
    return from_mapping(
        {
            "dataset": "digits",
            "model": "logistic",
            "method": {"learning_rate": 0.01, **method},
            "privacy": {"noise_multiplier": 1} if noisy else None,
            "training": {
                "expected_batch_size": 50,
                "steps": 4,
                "evaluations": 2,
                **({"diagnostics": True} if diagnostics else {}),
            },
            "seed": 1,
        }
    )


WATCHED = spec({"id": "dp-adambc", "clip_norm": 1})


def go(run: RunSpec, cache: Path) -> Outcome:
    return train(run, cache=cache, calibration=budget(run))


def test_a_run_with_diagnostics_claims_no_privacy_and_says_so(cache: Path, tmp_path: Path) -> None:
    outcome = go(WATCHED, cache)
    assert [row.epsilon for row in outcome.metrics] == [None] * 3
    folder = run_folder(tmp_path, WATCHED)
    folder.mkdir(parents=True)
    write_run(folder, WATCHED, outcome, budget(WATCHED), Provenance("cpu"))
    files = read_run(folder)
    assert files is not None
    assert files.summary["privacy"]["claim"] == "non-private"
    assert files.summary["privacy"]["epsilon"] is None
    assert files.summary["diagnostics"]["statistics"]["v_private.mean"] > 0


def test_watching_changes_nothing_that_is_trained(cache: Path) -> None:
    private = replace(WATCHED, training=replace(WATCHED.training, diagnostics=False))
    watched, alone = go(WATCHED, cache), go(private, cache)
    assert [row.test_loss for row in watched.metrics] == [row.test_loss for row in alone.metrics]
    assert alone.diagnostics is None
    assert all(row.epsilon is not None for row in alone.metrics)


def test_what_was_seen_before_a_checkpoint_is_seen_after_it(cache: Path) -> None:
    whole, behind = (Run.prepare(WATCHED, cache, "cpu", noise_multiplier=1.0) for _ in range(2))
    stream = whole.batches()
    for _ in range(2):
        whole.step(next(stream))
    behind.set_state({name: value.clone() for name, value in whole.get_state().items()})
    rest = behind.batches(after=2)
    for _ in range(2):
        whole.step(next(stream))
        behind.step(next(rest))
    assert whole.diagnostics is not None
    assert behind.diagnostics is not None
    assert behind.diagnostics.result() == whole.diagnostics.result()


def test_a_method_without_noise_or_clip_shows_one_second_moment(cache: Path) -> None:
    seen = go(spec({"id": "adam"}, noisy=False), cache).diagnostics
    assert seen is not None
    assert seen.phi == 0
    assert seen.sorted["v_clipped"] == seen.sorted["v_private"]
    assert "v_corrected" not in seen.sorted


def test_only_a_run_that_is_watched_has_another_hash() -> None:
    plain = spec({"id": "dp-adambc", "clip_norm": 1}, diagnostics=False)
    assert plain.hash != WATCHED.hash
    assert from_mapping(to_mapping(WATCHED)) == WATCHED
