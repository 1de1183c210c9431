"""Class prototypes from one release: the paper's sums, their sensitivity, and whole runs."""

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

import clipnoise
from clipnoise.core.clipping import Clipping
from clipnoise.core.state import Public, State
from clipnoise.data.digits import Digits
from clipnoise.data.signature import ClassScores
from clipnoise.errors import UserError
from clipnoise.gradients.engine import VmapEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.models.dense import Logistic, MultilayerPerceptron
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.budget import Privacy
from clipnoise.privacy.calibration import calibrate
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


@pytest.mark.parametrize("case", CASES)
def test_follows_the_paper(case: str) -> None:
    for seed in range(3):
        stream = record(seed, case)
        assert_same("dp-prototypes", RUN, stream, dp_prototypes(RUN, stream))


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


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    Digits().prepare(folder)
    return folder


def run_of(sigma: float, **changed: Any) -> RunSpec:
    n = Digits().sizes()["train"]
    spec = RunSpec(
        dataset=Digits(),
        model=Logistic(),
        method=build("dp-prototypes", clip_norm=3.0),
        privacy=Privacy(noise_multiplier=sigma, delta=1e-5, sampler="full"),
        training=Training(expected_batch_size=n, steps=1, evaluations=1),
        seed=1,
    )
    return replace(spec, **changed)


def test_one_release_of_all_examples_classifies_and_costs_one_gaussian_mechanism(
    cache: Path,
) -> None:
    spec = run_of(2.0)
    run = Run.prepare(spec, cache, "cpu", noise_multiplier=2.0)
    for batch in run.batches():
        assert len(batch) == spec.unit.count
        run.step(batch)
    test = run.splits.test.dense()
    weight, bias = run.engine.flat.split(run.evaluated())
    right = (test.inputs.flatten(1).float() @ weight.mT + bias).argmax(dim=1) == test.targets
    assert float(right.float().mean()) > 0.8
    assert spec.budget is not None
    statement = privacy_statement(spec, calibrate(spec.budget))
    assert (statement.claim, statement.adjacency) == ("guarantee", "add-remove")
    assert statement.epsilon == pytest.approx(gaussian_epsilon(2.0, 1e-5), rel=1e-3)


def test_other_networks_tasks_weights_and_loops_are_refused_in_a_line(cache: Path) -> None:
    deep = run_of(2.0, model=MultilayerPerceptron())
    with pytest.raises(
        UserError, match=r"one linear layer, such as logistic; these have the shapes"
    ):
        Run.prepare(deep, cache, "cpu", noise_multiplier=2.0)
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
