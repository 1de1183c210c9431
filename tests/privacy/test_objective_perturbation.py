"""Objective perturbation: its theorem by quadrature, and what the code releases."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from every_method import build
from scipy.special import expit
from torch import nn

from clipnoise import replay
from clipnoise.audit.controls import curvature_left_out
from clipnoise.core.clip_rules import EACH_LAYER, HARD, ClipRule
from clipnoise.core.clipping import Clipping
from clipnoise.core.minimum import minimum
from clipnoise.core.query import Component, declared
from clipnoise.core.taken import AtMinimum
from clipnoise.data.digits import Digits
from clipnoise.data.signature import ClassMargins
from clipnoise.errors import UserError
from clipnoise.gradients.clipping import clipped_sum
from clipnoise.gradients.engine import VmapEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.models.dense import Logistic
from clipnoise.privacy.accountants.gaussian import gaussian_delta, gaussian_epsilon
from clipnoise.privacy.budget import Privacy
from clipnoise.privacy.calibration import calibrate
from clipnoise.privacy.counterfactual import Counterfactual
from clipnoise.privacy.noise.banded import BandedNoise
from clipnoise.privacy.queries import PerturbedMinimum
from clipnoise.run.procedure import Training
from clipnoise.run.results import privacy_statement
from clipnoise.run.spec import RunSpec
from clipnoise.run.train import Run

NAME = "dp-objective-perturbation"
NORMAL = NormalDist()
EPSILONS = np.array([0.0, 0.02, 0.1, 0.3, 1.0, 2.0, 3.0])


def gdp(s: float, kappa: float) -> float:
    """Return μ of the theorem."""
    return s / 2 - NORMAL.inv_cdf(NORMAL.cdf(-s / 2) / (1 + kappa))


def density(
    theta: np.ndarray[Any, Any], examples: list[float], ridge: float, s: float, margin: float
) -> np.ndarray[Any, Any]:
    """Return the density of the minimum for one parameter and C = 1, from that of the noise."""
    b, slope = -ridge * theta, np.full_like(theta, ridge)
    for u in examples:
        weight = expit(margin + u * theta)
        b, slope = b - weight * u, slope + weight * (1 - weight) * u * u
    return np.exp(-((b * s) ** 2) / 2) * s / math.sqrt(2 * math.pi) * slope


@pytest.mark.parametrize("u", [1.0, -0.6])
@pytest.mark.parametrize("rest", [[], [1.0, -1.0, 0.5], [0.8] * 5])
@pytest.mark.parametrize(
    ("s", "ridge", "margin"), [(1.0, 0.5, 0.0), (0.25, 10.0, 2.0), (2.0, 0.3, 1.0), (1.0, 0.1, 3.0)]
)
def test_no_profile_of_the_minimum_is_above_that_of_the_theorem(
    s: float, ridge: float, margin: float, rest: list[float], u: float
) -> None:
    theta = np.linspace(-8 / s - 8, 8 / s + 8, 400_001) / ridge
    width = theta[1] - theta[0]
    p, q = (density(theta, rest + more, ridge, s, margin) for more in ([u], []))
    assert p.sum() * width == pytest.approx(1, abs=1e-6)
    assert q.sum() * width == pytest.approx(1, abs=1e-6)
    allowed = gaussian_delta(gdp(s, 1 / (4 * ridge)), EPSILONS)
    for one, other in ((p, q), (q, p)):
        found = [np.maximum(one - math.exp(e) * other, 0).sum() * width for e in EPSILONS]
        assert (np.array(found) <= allowed + 1e-9).all()


def test_the_noise_alone_does_not_pay_for_the_curvature() -> None:
    """With a small λ, the bound of a Gaussian mechanism on the sum is exceeded."""
    theta = np.linspace(-2000, 2000, 400_001)
    p, q = (density(theta, more, 0.005, 1.0, 0.0) for more in ([1.0], []))
    found = np.maximum(p - math.e * q, 0).sum() * (theta[1] - theta[0])
    assert float(gaussian_delta(1.0, np.array([1.0]))[0]) < 0.15 < found
    control = curvature_left_out()
    assert control.claimed == gaussian_epsilon(1.0, 1e-5)
    assert control.refuted


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("sigma", [0.1, 1.0, 30.0])
def test_curvature_second_noise_and_noise_on_the_sum_cost_one_gaussian_mechanism(
    sigma: float, share: float
) -> None:
    of, c = AtMinimum(share), 0.7
    (component,) = PerturbedMinimum(share).components(c, 1.0)
    variance = (component.noise_factor * sigma * component.sensitivity) ** 2
    s = c / math.sqrt((1 - share / 4) * variance)
    mu = gdp(s, c**2 / (4 * of.ridge(sigma, c))) if s < 10 else math.sqrt(1 - share / 4) / sigma
    second = 2 * of.tolerance(c) / math.sqrt(share / 4 * variance)
    assert math.hypot(mu, second) == pytest.approx(1 / sigma, rel=1e-6)


def test_a_query_at_a_minimum_that_leaves_nothing_or_releases_something_else_is_refused() -> None:
    class Greedy(PerturbedMinimum):
        def components(self, clip_norm: float, expected_batch_size: float) -> Any:
            return (Component(clip_norm / expected_batch_size),)

    class Squares(PerturbedMinimum):
        def values(self, mean: torch.Tensor, clip_norm: float) -> Any:
            return (mean.square(),)

    with pytest.raises(ValueError, match="adds too little noise"):
        declared(Greedy(), 1.0, 4.0)
    with pytest.raises(ValueError, match=r"Squares\.values"):
        declared(Squares(), 1.0, 4.0)


def exact(u: np.ndarray[Any, Any], b: np.ndarray[Any, Any], ridge: float, margin: float) -> Any:
    """Return the sum at the minimum, by Newton's method."""
    theta = np.zeros(u.shape[1])
    for _ in range(200):
        weight = expit(margin + u @ theta)
        gradient = weight @ u + ridge * theta + b
        hessian = (u.T * (weight * (1 - weight))) @ u + ridge * np.eye(len(theta))
        theta = theta - np.linalg.solve(hessian, gradient)
    return expit(margin + u @ theta) @ u


@pytest.mark.parametrize("seed", range(5))
def test_what_is_released_is_the_sum_at_the_minimum_with_both_noises(seed: int) -> None:
    draw = np.random.default_rng(seed)
    c, b, sigma, share, margin = 0.5, 3.0, 1.5, 0.4, 1.0
    rows, z = draw.normal(size=(1, 6, 3)), draw.normal(size=(1, 2, 3))
    path = replay(
        NAME,
        {"clip_norm": c, "curvature_share": share, "margin": margin}
        | {"noise_multiplier": sigma, "expected_batch_size": b},
        [0.0] * 3,
        rows,
        z,
    )
    of, deviation = AtMinimum(share, margin), sigma * c / math.sqrt(1 - share)
    u = rows[0] * np.minimum(1, c / np.linalg.norm(rows[0], axis=1, keepdims=True))
    linear = deviation * math.sqrt(1 - share / 4) * z[0, 0]
    expected = exact(u, linear, of.ridge(sigma, c), margin) + linear
    released = -of.ridge(sigma, c) * path[-1]
    left = released - expected - deviation * math.sqrt(share / 4) * z[0, 1]
    assert np.linalg.norm(left) <= of.tolerance(c)


def test_the_model_is_the_mean_of_the_minima() -> None:
    draw = np.random.default_rng(0)
    rows, z = draw.normal(size=(3, 6, 2)), draw.normal(size=(3, 2, 2))
    options = {"clip_norm": 1.0, "noise_multiplier": 1.0, "expected_batch_size": 6.0}
    whole = replay(NAME, options, [0.0] * 2, rows, z)
    alone = [replay(NAME, options, [0.0] * 2, rows[t : t + 1], z[t : t + 1])[-1] for t in range(3)]
    np.testing.assert_allclose(whole[-1], np.mean(alone, axis=0), atol=1e-12)


def test_an_example_moves_the_sum_at_the_minimum_by_no_more_than_c_whatever_the_noise() -> None:
    draw = np.random.default_rng(1)
    for _ in range(50):
        u = draw.normal(size=(5, 3))
        u /= np.maximum(1, np.linalg.norm(u, axis=1, keepdims=True))
        b, ridge = draw.normal(size=3), 10.0 ** draw.uniform(-1, 2)
        moved = exact(u, b, ridge, 0.0) - exact(u[1:], b, ridge, 0.0)
        assert np.linalg.norm(moved) <= 1 + 1e-9


@pytest.mark.parametrize("kind", [VmapEngine, FactoredEngine])
@pytest.mark.parametrize("rule", [HARD, EACH_LAYER])
def test_engines_weigh_each_clipped_margin_by_its_slope(kind: Any, rule: ClipRule) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(9, 4, generator=draw, dtype=torch.float64)
    y = torch.randint(3, (9,), generator=draw)
    network = nn.Linear(4, 3).double().train()
    engine = kind(network, ClassMargins().losses)
    theta = torch.randn(15, generator=draw, dtype=torch.float64)
    rows = torch.zeros(9, 3, 5, dtype=torch.float64) + 1 / 3
    rows[torch.arange(9), y] -= 1
    vectors = rows * torch.cat([x, torch.ones(9, 1)], dim=1).unsqueeze(1)
    flat = torch.cat([vectors[..., :-1].flatten(1), vectors[..., -1]], dim=1)
    plain = Clipping(1.0, rule=rule, of=AtMinimum(margin=1.0)).at(torch.zeros_like(theta))
    expected = torch.zeros_like(theta)
    for row in flat:
        v = clipped_sum([row[None]], plain, [15])
        expected += v / (1 + math.exp(-1 - float(v @ theta)))
    found = engine.clipped_sum(x, y, replace(plain, weighed_at=theta))
    torch.testing.assert_close(found, expected)


def test_the_solver_stops_at_the_tolerance_and_says_where_it_cannot() -> None:
    draw = torch.Generator().manual_seed(0)
    u = torch.randn(200, 20, generator=draw, dtype=torch.float64)
    u[:, 0] *= 10
    asked = 0

    def gradient(theta: torch.Tensor) -> torch.Tensor:
        nonlocal asked
        asked += 1
        return (u @ theta + 1).sigmoid() @ u + 1e-3 * theta

    found = minimum(gradient, torch.zeros(20).double(), curvature=1.0, tolerance=1e-8)
    assert float(gradient(found).norm()) <= 1e-8
    assert asked < 300
    with pytest.raises(UserError, match="a minimum was not found"):
        minimum(lambda x: torch.ones_like(x), torch.zeros(2), curvature=1.0, tolerance=0.1)


def run_of(**privacy: Any) -> RunSpec:
    n = Digits().sizes()["train"]
    asked: dict[str, Any] = {"noise_multiplier": 0.6, "delta": 1e-5, "sampler": "full"} | privacy
    return RunSpec(
        dataset=Digits(),
        model=Logistic(),
        method=build(NAME, clip_norm=3.0, curvature_share=0.1),
        privacy=Privacy(**asked),
        training=Training(expected_batch_size=n - n % 4, steps=1, evaluations=1),
        seed=1,
    )


def test_one_minimum_classifies_and_costs_one_gaussian_mechanism(cache: Path) -> None:
    spec = run_of()
    spec = replace(spec, training=replace(spec.training, expected_batch_size=spec.unit.count))
    run = Run.prepare(spec, cache, "cpu", noise_multiplier=0.6)
    for batch in run.batches():
        run.step(batch)
    test = run.splits.test.dense()
    weight, bias = run.engine.flat.split(run.evaluated())
    right = (test.inputs.flatten(1).float() @ weight.mT + bias).argmax(dim=1) == test.targets
    assert float(right.float().mean()) > 0.85
    assert spec.budget is not None
    statement = privacy_statement(spec, calibrate(spec.budget))
    assert (statement.claim, statement.adjacency) == ("guarantee", "add-remove")
    assert statement.epsilon == pytest.approx(gaussian_epsilon(0.6, 1e-5), rel=1e-3)


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ({"sampler": "poisson", "microbatch_size": 4}, r"privacy\.microbatch_size: must be 1"),
        ({"sampler": "fixed-size", "accountant": "rdp-replace"}, r"method\.id: .* not for replace"),
        ({"counterfactual": Counterfactual(clipping=False)}, r"privacy\.counterfactual: not for"),
        (
            {"sampler": "cyclic", "noise": BandedNoise(bands=4)},
            r"privacy\.noise\.kind: must be independent",
        ),
    ],
)
def test_what_the_proof_does_not_cover_is_refused(privacy: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        run_of(**privacy)
