"""Averages of iterates: closed forms, whatever the method, and resumed bit for bit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from budgets import budget
from torch import Tensor

from clipnoise import private
from clipnoise.errors import UserError
from clipnoise.run.outcome import Clock
from clipnoise.run.procedure import ExponentialAverage, TailAverage
from clipnoise.run.spec import RunSpec, from_mapping
from clipnoise.run.train import Run
from clipnoise.studies.study import load_study

T = 12
EMA, TAIL = {"kind": "ema", "decay": 0.4}, {"kind": "tail", "after": 0.5}
METHODS = ("dp-sgd", "dp-adam", "dp-schedule-free")


def spec(average: dict[str, Any] | None, method: str = "dp-sgd", **changes: Any) -> RunSpec:
    return from_mapping(
        {
            "dataset": "digits",
            "model": "logistic",
            "method": {"id": method, "learning_rate": 0.5, "clip_norm": 1},
            "privacy": {"epsilon": 8},
            "training": {"expected_batch_size": 50, "steps": T, "average": average},
            "seed": 1,
            **changes,
        }
    )


def prepared(run: RunSpec, cache: Path) -> Run:
    calibration = budget(run)
    assert calibration is not None
    return Run.prepare(run, cache, "cpu", noise_multiplier=calibration.noise_multiplier)


def models(run: Run) -> list[Tensor]:
    return [run.evaluated(), *(run.evaluated() for _ in run.steps(Clock()))]


@pytest.fixture(scope="module")
def iterates(cache: Path) -> dict[str, list[Tensor]]:
    """Return what each method evaluates at every step without an average."""
    return {method: models(prepared(spec(None, method), cache)) for method in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_an_exponential_average_has_the_weights_of_its_decay(
    method: str, cache: Path, iterates: dict[str, list[Tensor]]
) -> None:
    decays = [min(0.4, t / (t + 9)) for t in range(1, T + 1)]
    weights = torch.ones(T + 1)
    for t, decay in enumerate(decays, start=1):
        weights[:t] *= decay
        weights[t] = 1 - decay
    assert float(weights.sum()) == pytest.approx(1)
    expected = (weights[:, None] * torch.stack(iterates[method])).sum(0)
    torch.testing.assert_close(models(prepared(spec(EMA, method), cache))[-1], expected)


@pytest.mark.parametrize("method", METHODS)
def test_a_tail_average_is_the_mean_of_the_last_iterates(
    method: str, cache: Path, iterates: dict[str, list[Tensor]]
) -> None:
    plain = iterates[method]
    averaged = models(prepared(spec(TAIL, method), cache))
    for t in range(T + 1):
        expected = torch.stack(plain[7 : t + 1]).mean(0) if t > 7 else plain[t]
        torch.testing.assert_close(averaged[t], expected)


@pytest.mark.parametrize("average", [EMA, TAIL])
def test_an_average_changes_what_is_published_and_not_what_is_trained(
    average: dict[str, Any], cache: Path
) -> None:
    plain, averaged = (prepared(spec(kind), cache) for kind in (None, average))
    last, mean = models(plain)[-1], models(averaged)[-1]
    assert torch.equal(plain.state.theta, averaged.state.theta)
    assert not torch.equal(last, mean)
    averaged.evaluate(T, None, Clock())
    assert torch.equal(averaged.engine.flat.theta, mean)
    assert budget(spec(average)) == budget(spec(None))


@pytest.mark.parametrize("average", [EMA, TAIL])
@pytest.mark.parametrize("done", [2, 9])
def test_a_resumed_average_is_the_same_bit_for_bit(
    average: dict[str, Any], done: int, cache: Path
) -> None:
    whole, first = (prepared(spec(average, METHODS[-1]), cache) for _ in range(2))
    expected, steps = models(whole)[-1], first.steps(Clock())
    for _ in range(done):
        next(steps)
    saved = {name: value.clone() for name, value in first.get_state().items()}
    resumed = prepared(spec(average, METHODS[-1]), cache)
    resumed.set_state(saved)
    assert torch.equal(models(resumed)[-1], expected)


STUDY = """
panels:
  all:
    datasets: [digits]
    models: [logistic]
    methods:
    - {id: dp-sgd, learning_rate: 1, clip_norm: 1}
    - {id: dp-lion, learning_rate: 0.01, clip_norm: 1}
    epsilons: [3]
    seeds: [1]
    training: {expected_batch_size: 50, steps: 5}
    axes: {average: {none: {}, ema: {training: {average: {kind: ema, decay: 0.9}}}}}
"""


def test_one_line_of_a_study_averages_with_every_method(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"title: Averages\ndescription: With and without.\n{STUDY}report: []\n")
    found = [(run.spec.method.id, run.spec.training.average) for run in load_study(path).runs]
    ema = ExponentialAverage(kind="ema", decay=0.9)
    assert found == [(m, a) for a in (None, ema) for m in ("dp-sgd", "dp-lion")]


def test_the_model_of_ones_own_loop_has_the_average() -> None:
    draw, model = torch.Generator().manual_seed(0), torch.nn.Linear(3, 2)
    inputs = torch.randn(40, 3, generator=draw)
    iterates = [model.weight.detach().clone()]
    for average in (None, {"kind": "tail", "after": 0.0}):
        network = copy.deepcopy(model)
        training = private(
            network,
            torch.nn.CrossEntropyLoss(reduction="none"),
            (inputs, (inputs[:, 0] > 0).long()),
            method="dp-sgd",
            learning_rate=0.5,
            clip_norm=1,
            noise_multiplier=1,
            expected_batch_size=20,
            steps=4,
            seed=3,
            average=average,
        )
        for _ in training:
            if average is None:
                iterates.append(network.weight.detach().clone())
    torch.testing.assert_close(network.weight.detach(), torch.stack(iterates[1:]).mean(0))


def test_shares_are_those_of_the_definitions() -> None:
    ema, tail = ExponentialAverage(kind="ema", decay=0.99), TailAverage(kind="tail", after=0.0)
    assert [ema.share(t, 9) for t in (1, 9, 10**4)] == pytest.approx([0.9, 0.5, 0.01])
    assert [tail.share(t, 9) for t in (1, 2, 9)] == pytest.approx([1, 1 / 2, 1 / 9])


@pytest.mark.parametrize(
    ("average", "said"),
    [
        ({"kind": "emma", "decay": 0.9}, "training.average.kind: 'emma'. Did you mean 'ema'?"),
        ({"kind": "ema", "decay": 1}, "decay: input should be less than 1"),
        ({"kind": "ema"}, "decay: required, but not given"),
        ({"kind": "tail", "after": 0.5, "decay": 0.9}, "decay: unknown key"),
        ({"decay": 0.9}, "training.average: give its 'kind'"),
    ],
)
def test_a_wrong_average_is_named(average: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        spec(average)
    assert said in str(caught.value)
