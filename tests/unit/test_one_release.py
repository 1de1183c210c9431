"""Prototypes and least squares from one release: the papers' sums, sensitivities, whole runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import build
from pseudocode import CASES, RUN, Stream, Vector, assert_same, private_gradient, record
from torch import nn
from torch.nn.utils import vector_to_parameters

import clipnoise
from clipnoise.core.clipping import Clipping
from clipnoise.core.state import Public, State
from clipnoise.data.digits import Digits
from clipnoise.data.signature import ClassScores, Signature
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.gradients.engine import VmapEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.methods.one_release import symmetric
from clipnoise.models.base import model_class
from clipnoise.models.dense import LeastSquares, Logistic, MultilayerPerceptron
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.budget import Privacy
from clipnoise.privacy.calibration import calibrate
from clipnoise.privacy.noise.banded import BandedNoise
from clipnoise.run.procedure import Training
from clipnoise.run.results import privacy_statement
from clipnoise.run.spec import RunSpec
from clipnoise.run.train import Run

CLASSES, FEATURES, N = 3, 4, 40


def dp_prototypes(h: dict[str, Any], s: Stream) -> list[Vector]:
    """The direction of the sum of what was released, for one class."""
    w, sums = [list(s.initial)], [0.0] * s.d
    for t in range(s.steps):
        sums = [x - y for x, y in zip(sums, private_gradient(h, s, t), strict=True)]
        length = math.sqrt(sum(x * x for x in sums))
        w.append([x / length for x in sums])
    return w


def least_squares(h: dict[str, Any], sums: Vector, p: int, steps: int) -> Vector:
    """S̃ and the solution for the released sums of one or two features, by Cramer's rule."""
    m = p * (p + 1) // 2
    a, b, c = sums[:m] if p == 2 else (sums[0], 0.0, math.inf)  # ((a, b), (b, c))
    smallest = a if p == 1 else (a + c) / 2 - math.sqrt((a - c) ** 2 / 4 + b * b)
    tau = h["noise_multiplier"] * h["clip_norm"] / h["expected_batch_size"] * math.sqrt(steps)
    ridge = max(0.0, h["ridge"] * tau * math.sqrt(p) - smallest)
    if p == 1:
        return sums[:1] + [r / (a + ridge) for r in sums[1:]]
    a_, c_ = a + ridge, c + ridge
    weights = []
    for r, s in zip(sums[3::2], sums[4::2], strict=True):
        weights += [(r * c_ - s * b) / (a_ * c_ - b * b), (s * a_ - r * b) / (a_ * c_ - b * b)]
    return sums[:3] + weights


def dp_least_squares(h: dict[str, Any], s: Stream) -> list[Vector]:
    """One feature: the first number is the sum of its squares, the others those of the classes."""
    w, sums = [list(s.initial)], [0.0] * s.d
    for t in range(s.steps):
        sums = [x - y for x, y in zip(sums, private_gradient(h, s, t), strict=True)]
        w.append(least_squares(h, sums, 1, t + 1))
    return w


@pytest.mark.parametrize("case", CASES)
def test_follows_the_paper(case: str) -> None:
    for seed in range(3):
        stream = record(seed, case)
        assert_same("dp-prototypes", RUN, stream, dp_prototypes(RUN, stream))
        for ridge in (1.0, 0.3):
            h = RUN | {"ridge": ridge}
            assert_same("dp-least-squares", h, stream, dp_least_squares(h, stream))


@pytest.mark.parametrize("ridge", [0.1, 1.0, 5.0])
def test_least_squares_of_two_features_solves_what_was_released_so_far(ridge: float) -> None:
    method = build("dp-least-squares", clip_norm=RUN["clip_norm"], ridge=ridge)
    d, draw = 3 + 2 * CLASSES, torch.Generator().manual_seed(0)
    state = State(torch.zeros(d, dtype=torch.float64), shapes=((1, 3), (CLASSES, 2)))
    public = Public(
        noise_multiplier=RUN["noise_multiplier"],
        expected_batch_size=RUN["expected_batch_size"],
        total_steps=3,
    )
    sums = torch.zeros(d, dtype=torch.float64)
    for state.step in (1, 2, 3):
        release = torch.randn(d, generator=draw, dtype=torch.float64)
        sums -= release
        theta = method.update((release,), state, public)  # type: ignore[arg-type]
        expected = least_squares(RUN | {"ridge": ridge}, sums.tolist(), 2, state.step)
        torch.testing.assert_close(theta, torch.tensor(expected, dtype=torch.float64))


def test_without_noise_the_solution_is_that_of_least_squares_even_if_features_repeat() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(N, FEATURES, generator=draw, dtype=torch.float64)
    x = torch.cat([x, x[:, :1]], dim=1)
    y = nn.functional.one_hot(torch.randint(CLASSES, (N,), generator=draw)).double()
    i, j = torch.triu_indices(FEATURES + 1, FEATURES + 1)
    release = -torch.cat([(x.T @ x)[i, j], (y.T @ x).flatten()])
    shapes = ((1, len(i)), (CLASSES, FEATURES + 1))
    state = State(torch.zeros_like(release), step=1, shapes=shapes)
    method, public = build("dp-least-squares"), Public(0.0, 1.0, 1)
    theta = method.update((release,), state, public)  # type: ignore[arg-type]
    solved = torch.linalg.lstsq(x, y, driver="gelsd").solution
    torch.testing.assert_close(x @ state.split(theta)[1].mT, x @ solved, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [VmapEngine, FactoredEngine])
def test_what_an_example_adds_is_its_clipped_features_at_the_place_of_its_class(kind: Any) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(N, FEATURES, generator=draw, dtype=torch.float64)
    y = torch.randint(CLASSES, (N,), generator=draw)
    engine = kind(nn.Linear(FEATURES, CLASSES).double().train(), ClassScores().losses)
    c = float(x.norm(dim=1).median())
    theta = torch.randn(engine.flat.theta.shape, generator=draw, dtype=torch.float64)
    expected = torch.zeros(CLASSES, FEATURES + 1, dtype=torch.float64)
    rows = torch.cat([x, torch.ones(N, 1, dtype=torch.float64)], dim=1)
    for row, label in zip(rows, y, strict=True):
        expected[label] -= row * min(1.0, c / float(row.norm()))
    found = engine.clipped_sum(x, y, Clipping(c).at(theta))
    weight, bias = engine.flat.split(found)
    torch.testing.assert_close(weight, expected[:, :-1])
    torch.testing.assert_close(bias, expected[:, -1])
    without = engine.clipped_sum(x[1:], y[1:], Clipping(c).at(theta))
    assert float((found - without).norm()) <= c * (1 + 1e-9)


@pytest.mark.parametrize("kind", [VmapEngine, FactoredEngine])
def test_what_an_example_adds_to_both_sums_of_least_squares_is_clipped_together(kind: Any) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(N, FEATURES, generator=draw, dtype=torch.float64)
    y = torch.randint(CLASSES, (N,), generator=draw)
    model = LeastSquares(length=2.0)
    network = model.build(Signature("features", (FEATURES,), CLASSES), Path("weights"))
    engine, c = kind(network.double().train(), ClassScores().losses), 4.7
    build("dp-least-squares").check_shapes(engine.flat.shapes)
    rows = torch.cat([2 * nn.functional.normalize(x), torch.ones(N, 1).double()], dim=1)
    weights = []
    matrix = torch.zeros(FEATURES + 1, FEATURES + 1, dtype=torch.float64)
    sums = torch.zeros(CLASSES, FEATURES + 1, dtype=torch.float64)
    for row, label in zip(rows, y, strict=True):
        outer = row.outer(row)
        norm = float((outer.triu().square().sum() + row.square().sum()).sqrt())
        weights.append(min(1.0, c / norm))
        matrix += weights[-1] * outer
        sums[label] += weights[-1] * row
    assert len({weight == 1 for weight in weights}) == 2
    found = engine.clipped_sum(x, y, Clipping(c).at(engine.flat.theta))
    products, scores = engine.flat.split(-found)
    torch.testing.assert_close(symmetric(products), matrix)
    torch.testing.assert_close(scores, sums)
    without = engine.clipped_sum(x[1:], y[1:], Clipping(c).at(engine.flat.theta))
    assert float((found - without).norm()) <= c * (1 + 1e-9)


def test_the_products_change_no_prediction_and_no_example_is_far_longer_than_another() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(N, FEATURES, generator=draw) * torch.logspace(-6, 6, N).unsqueeze(1)
    x[1], x[2, 1:] = 0.0, 0.0
    y = torch.randint(CLASSES, (N,), generator=draw)
    signature = Signature("features", (FEATURES,), CLASSES)
    network: Any = LeastSquares().build(signature, Path("weights"))
    engine = VmapEngine(network.train(), ClassScores().losses)
    norms = engine.per_example_gradients(x, y, engine.flat.theta).norm(dim=1)
    others = norms[torch.arange(N) != 1]
    assert 3 < float(others.min()) <= float(others.max()) < 3.41
    assert float(norms[1]) == pytest.approx(math.sqrt(2))
    before = network(x)
    with torch.no_grad():
        network.products.weight.add_(1.0)
    changes = network(x) - before
    torch.testing.assert_close(changes, changes[:, :1].expand_as(changes))


def test_each_class_has_the_direction_of_its_sum_and_no_bias() -> None:
    method, shapes = build("dp-prototypes"), ((CLASSES, FEATURES), (CLASSES,))
    d, draw = CLASSES * (FEATURES + 1), torch.Generator().manual_seed(0)
    state = State(torch.randn(d, generator=draw), step=1, shapes=shapes)
    release = torch.randn(d, generator=draw)
    public = Public(noise_multiplier=1.0, expected_batch_size=4.0, total_steps=1)
    theta = state.theta + method.update((release,), state, public)  # type: ignore[arg-type]
    weight, bias = state.split(theta)
    sums = -release[: CLASSES * FEATURES].view(CLASSES, FEATURES)
    torch.testing.assert_close(weight, nn.functional.normalize(sums))
    assert float(bias.abs().max()) <= 1e-6


def run_of(sigma: float, method: str = "dp-prototypes", **changed: Any) -> RunSpec:
    n, chosen = Digits().sizes()["train"], build(method, clip_norm=3.0)
    assert chosen.made_for is not None
    spec = RunSpec(
        dataset=Digits(),
        model=model_class(chosen.made_for)(),
        method=chosen,
        privacy=Privacy(noise_multiplier=sigma, delta=1e-5, sampler="full"),
        training=Training(expected_batch_size=n, steps=1, evaluations=1),
        seed=1,
    )
    return replace(spec, **changed)


@pytest.mark.parametrize("method", ["dp-prototypes", "dp-least-squares"])
def test_one_release_of_all_examples_classifies_and_costs_one_gaussian_mechanism(
    method: str, cache: Path
) -> None:
    spec = run_of(1.0, method)
    run = Run.prepare(spec, cache, "cpu", noise_multiplier=1.0)
    for batch in run.batches():
        assert len(batch) == spec.unit.count
        run.step(batch)
    test = run.splits.test.dense()
    network = spec.model.build(spec.dataset.signature, cache)
    vector_to_parameters(run.evaluated(), network.parameters())
    right = network(test.inputs.float()).argmax(dim=1) == test.targets
    assert float(right.float().mean()) > 0.8
    assert spec.budget is not None
    statement = privacy_statement(spec, calibrate(spec.budget))
    assert (statement.claim, statement.adjacency) == ("guarantee", "add-remove")
    assert statement.epsilon == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-3)


def test_other_networks_tasks_weights_and_loops_are_refused_in_a_line(cache: Path) -> None:
    deep = run_of(2.0, model=MultilayerPerceptron())
    with pytest.raises(UserError, match=r"a network like logistic; the trained .* \(64, 64\)"):
        Run.prepare(deep, cache, "cpu", noise_multiplier=2.0)
    other = run_of(2.0, "dp-least-squares", model=Logistic())
    with pytest.raises(UserError, match=r"a network like least-squares; .* \(10, 64\), \(10,\)"):
        Run.prepare(other, cache, "cpu", noise_multiplier=2.0)
    weighted = replace(run_of(2.0).training, class_weights=(1.0,) * 10)
    with pytest.raises(UserError, match=r"training\.class_weights: dp-prototypes adds features"):
        run_of(2.0, training=weighted)
    data = torch.utils.data.TensorDataset(torch.randn(8, 2), torch.randint(2, (8,)))
    with pytest.raises(UserError, match="dp-prototypes does not train the loss"):
        clipnoise.private(
            nn.Linear(2, 2),
            nn.CrossEntropyLoss(reduction="none"),
            data=data,
            method="dp-prototypes",
            clip_norm=1.0,
            epsilon=1.0,
            delta=1e-5,
            expected_batch_size=4,
            epochs=1,
        )


def test_least_squares_needs_one_clip_norm_independent_noise_and_not_too_many_features() -> None:
    least = {"kind": "linear", "peak": 3.0, "final": 1.0}
    with pytest.raises(UserError, match="clip_norm: must be one number for all steps"):
        parse(type(build("dp-least-squares")), {"clip_norm": least})
    noise = Privacy(noise_multiplier=2.0, delta=1e-5, sampler="cyclic", noise=BandedNoise(bands=4))
    training = Training(expected_batch_size=100, epochs=1, evaluations=1)
    with pytest.raises(UserError, match=r"banded is correlated across steps\. The λ of dp-least"):
        run_of(2.0, "dp-least-squares", privacy=noise, training=training)
    with pytest.raises(UserError, match=r"at most 1,500 numbers, with one output per class, but"):
        LeastSquares().build(Signature("image", (3, 32, 32), 10), Path("weights"))
