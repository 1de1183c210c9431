"""The empirical audit: correct mechanisms are not refuted, and scores see what they should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clipnoise.audit.canaries import CanaryEngine
from clipnoise.audit.empirical import audit
from clipnoise.audit.findings import Settings
from clipnoise.audit.mistakes import crossing
from clipnoise.audit.subject import subject
from clipnoise.core.clipping import Clipping
from clipnoise.errors import UserError
from clipnoise.gradients.engine import VmapEngine
from clipnoise.privacy.noise import NoiseCorrelation
from clipnoise.privacy.noise.banded import BandedNoise
from clipnoise.privacy.noise.cancelling import CancellingNoise

QUICK = Settings(runs=10)


@pytest.mark.quick(name=["dp-sgd"])
@pytest.mark.parametrize("name", ["dp-sgd", "stp-adam", "adadps-adam", "dp-pmlf", "ime-adam"])
def test_honest_methods_are_not_refuted_but_the_canaries_are_seen(name: str, cache: Path) -> None:
    result = audit(subject(name), cache, QUICK)
    assert result.verdict == "not refuted"
    assert result.claim == "guarantee"
    assert 0 < result.bound.epsilon < result.claimed_epsilon
    assert result.final_bound.epsilon < result.claimed_epsilon
    assert result.guesses.canaries == 6400
    assert len(result.guesses.made) % 3 == 0
    assert result.p_value > 0.05


@pytest.mark.long
@pytest.mark.parametrize(
    ("noise", "sampler"),
    [
        (BandedNoise(bands=2), "cyclic-poisson"),
        (BandedNoise(bands=2), "cyclic"),
        (CancellingNoise(cancelled=0.9), "cyclic"),
        pytest.param(CancellingNoise(cancelled=0.9), "balls-in-bins", marks=pytest.mark.long),
        pytest.param(BandedNoise(bands=2), "b-min-sep", marks=pytest.mark.long),
    ],
)
def test_correlated_noise_is_whitened_before_scoring(
    noise: NoiseCorrelation, sampler: str, cache: Path
) -> None:
    settings = Settings(runs=10, sampling_rate=0.45, steps=8, noise_multiplier=2.0)
    if sampler in ("balls-in-bins", "b-min-sep"):
        settings = replace(settings, accountant="monte-carlo")
    result = audit(subject("dp-sgd", noise=noise, sampler=sampler), cache, settings)
    assert result.verdict == "not refuted"
    assert result.bound.epsilon > 0.3


@pytest.mark.long
@pytest.mark.parametrize("quiet", [0, 1])
def test_a_released_value_without_noise_is_seen_beside_one_that_has_some(
    quiet: int, cache: Path
) -> None:
    def normals(noise: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [z * (number != quiet) for number, z in enumerate(noise)]

    result = audit(subject("ime-adam", cross=crossing(normals=normals)), cache, QUICK)
    assert result.verdict == "refuted"


def test_over_several_runs_canaries_are_in_all_places(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = []

    class Noted(CanaryEngine):
        def __init__(self, *words: Any, **named: Any) -> None:
            super().__init__(*words, **named)
            places.append(self.places)

    monkeypatch.setattr("clipnoise.audit.empirical.CanaryEngine", Noted)
    audit(subject("dp-sgd"), cache, Settings(runs=3, steps=1))
    assert len(torch.cat(places).unique()) == 650  # every parameter
    assert all(len(one.unique()) == 640 for one in places)


@pytest.mark.long
def test_under_replacement_the_claim_is_nominal(cache: Path) -> None:
    result = audit(subject("jme-adam"), cache, QUICK)
    assert result.claim == "nominal"
    assert result.adjacency == "replace"
    assert result.verdict == "not refuted"


def test_a_method_that_claims_nothing_is_not_audited(cache: Path) -> None:
    with pytest.raises(UserError, match=r"^adadps-ideal: makes no claim"):
        audit(subject("adadps-ideal"), cache, QUICK)


def test_there_are_no_more_canaries_than_parameters(cache: Path) -> None:
    with pytest.raises(UserError, match="one for each of 650 parameters, not 651"):
        audit(subject("dp-sgd"), cache, replace(QUICK, canaries=651))


@pytest.mark.parametrize("replaced", [False, True])
def test_a_canary_adds_its_coordinate_or_nothing(replaced: bool) -> None:
    network = torch.nn.Linear(3, 2, bias=False)
    inner = VmapEngine(network, lambda outputs, targets: outputs.sum(1) * (targets + 1))
    places = torch.tensor([4, 1])
    engine = CanaryEngine(inner, torch.tensor([True, False]), places, replaced=replaced)
    theta, scale = engine.flat.theta.clone(), torch.logspace(-3, 3, 6)
    clipping = Clipping(0.5, scale=scale, offset=torch.ones(6))
    total = engine.clipped_sum(torch.zeros(2, 3), torch.tensor([-1, -2]), clipping.at(theta))
    expected = torch.tensor([0, -0.5 if replaced else 0.0, 0, 0, 0.5, 0])
    torch.testing.assert_close(total, expected, rtol=1e-3, atol=1e-2)
    assert not engine.known.any()
    engine.clipped_sum(torch.ones(1, 3), torch.tensor([0]), clipping.at(theta))
    assert float(engine.known.norm()) == pytest.approx(0.5)
