"""The metrics that a study may ask for, against their definitions, and how they are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from clipnoise.data.base import Examples
from clipnoise.data.measures import MEASURES, fitting, measured, require_metric
from clipnoise.data.signature import NO_TARGET, TASKS
from clipnoise.errors import UserError
from clipnoise.run.spec import from_mapping, to_mapping
from clipnoise.run.train import ConstantPrediction, Scores, evaluate

GENERATOR = torch.Generator().manual_seed(0)
CLASSES = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
SPEC: dict[str, Any] = {
    "dataset": {"id": "digits"},
    "model": {"id": "logistic"},
    "method": {"id": "sgd", "learning_rate": 0.1},
    "training": {"expected_batch_size": 64, "steps": 2},
    "seed": 0,
}


def scores(task: Any, outputs: torch.Tensor, targets: torch.Tensor, size: int = 7) -> Scores:
    """Return every metric that fits a task, of a network whose outputs are its inputs."""
    fit = [one for one in MEASURES.values() if task in one.tasks]
    return evaluate(torch.nn.Identity(), TASKS[task], Examples(outputs, targets), size, fit)


def constant(task: Any, targets: torch.Tensor, outputs: int) -> Scores:
    fit = [one for one in MEASURES.values() if task in one.tasks]
    network = ConstantPrediction(TASKS[task].constant(targets, outputs))
    return evaluate(network, TASKS[task], Examples(torch.zeros(len(targets), 1), targets), 7, fit)


def test_perfect_predictions_have_the_best_value_of_each_metric() -> None:
    logits = 50 * torch.nn.functional.one_hot(CLASSES).float()
    found = scores("classification", logits, CLASSES).measured
    best = {"balanced_accuracy": 1, "f1_macro": 1, "auc": 1, "calibration_error": 0}
    assert found == pytest.approx(best, abs=1e-9)


def test_the_majority_class_has_chance_level_in_each_metric() -> None:
    found = constant("classification", CLASSES, 3)
    assert found.score == pytest.approx(0.6)
    shares = (0.6, 0.3, 0.1)
    assert found.loss == pytest.approx(-sum(p * math.log(p) for p in shares))
    assert found.measured == pytest.approx(
        {
            "balanced_accuracy": 1 / 3,
            "f1_macro": 2 * 0.6 / (0.6 + 1) / 3,  # precision 0.6 and recall 1 of one class
            "auc": 0.5,
            "calibration_error": 0,
        },
        abs=1e-6,
    )


def test_no_constant_prediction_beats_the_mean_predictor() -> None:
    targets = torch.randn(50, 2, generator=GENERATOR)
    found = constant("regression", targets, 2)
    assert found.loss == pytest.approx(float(0.5 * targets.var(dim=0, correction=0).sum()))
    assert found.measured["r2"] == pytest.approx(0, abs=1e-6)
    for shift in (-0.1, 0.1):
        moved = (targets.mean(dim=0) + shift).expand(50, 2)
        assert scores("regression", moved, targets).loss > found.loss


def test_the_area_under_the_curve_is_the_chance_to_order_a_pair_rightly() -> None:
    targets = torch.randint(2, (40,), generator=GENERATOR)
    logits = torch.randn(40, 2, generator=GENERATOR)
    margin = (logits[:, 1] - logits[:, 0]).double()
    pairs = margin[targets == 1][:, None] > margin[targets == 0][None, :]
    found = scores("classification", logits, targets).measured["auc"]
    assert found == pytest.approx(float(pairs.double().mean()))


def test_the_calibration_error_is_the_gap_between_confidence_and_accuracy() -> None:
    logits = torch.tensor([[0.8, 0.2]]).log().expand(100, 2)
    targets = (torch.arange(100) >= 50).long()  # right half of the time, at a confidence of 0.8
    found = scores("classification", logits, targets).measured["calibration_error"]
    assert found == pytest.approx(0.3, abs=1e-6)


def test_errors_of_a_regression_follow_their_definitions() -> None:
    targets = torch.tensor([[0.0], [2.0], [4.0]])
    found = scores("regression", targets + torch.tensor([[1.0], [-1.0], [1.0]]), targets).measured
    assert found == pytest.approx({"r2": 1 - 3 / 8, "mae": 1.0})


def test_perplexity_counts_each_token_once() -> None:
    targets = torch.tensor([[1, NO_TARGET], [2, 3], [NO_TARGET, NO_TARGET]])
    even = torch.zeros(3, 2, 6)
    assert scores("masked-tokens", even, targets).measured["perplexity"] == pytest.approx(6)
    sure = even.clone()
    sure[0, 0, 1] = 1e4  # the only token of its example: log-perplexity is 2/3 log 6, not 1/2
    found = scores("masked-tokens", sure, targets).measured["perplexity"]
    assert found == pytest.approx(6 ** (2 / 3), rel=1e-5)


@pytest.mark.parametrize("task", ["classification", "regression", "masked-tokens"])
def test_batches_change_no_metric(task: Any) -> None:
    shape = {"classification": (30, 3), "regression": (30, 3), "masked-tokens": (30, 4, 3)}[task]
    outputs = torch.randn(shape, generator=GENERATOR)
    targets = torch.randn(30, 3, generator=GENERATOR)
    if task != "regression":
        targets = torch.randint(3, shape[:-1], generator=GENERATOR)
    few, many = (scores(task, outputs, targets, size).measured for size in (4, 100))
    assert few == pytest.approx(many)


def test_outputs_that_are_not_finite_have_no_metric() -> None:
    logits = torch.zeros(100, 3)
    logits[3, 1] = math.nan
    assert all(map(math.isnan, scores("classification", logits, CLASSES).measured.values()))


@pytest.mark.parametrize("name", MEASURES)
def test_every_metric_fits_a_task_and_says_what_it_is(name: str) -> None:
    one = MEASURES[name]
    assert all(name in fitting(task) for task in one.tasks)
    assert one.tasks
    assert one.name
    assert type(one).__doc__


def test_a_metric_that_does_not_fit_the_task_is_refused_with_those_that_do() -> None:
    with pytest.raises(UserError, match=r"r2 does not fit classification.*Allowed: accuracy, auc"):
        require_metric("r2", "classification", "metrics")
    with pytest.raises(UserError, match=r"unknown metric 'f1_makro'\. Did you mean 'f1_macro'"):
        require_metric("f1_makro", "classification", "metrics")
    with pytest.raises(UserError, match=r"metrics: mae does not fit classification"):
        from_mapping({**SPEC, "metrics": ["mae"]})


def test_metrics_that_every_run_has_change_no_hash_and_others_do_in_any_order() -> None:
    plain = from_mapping(SPEC)
    assert "metrics" not in to_mapping(plain)
    assert from_mapping({**SPEC, "metrics": ["accuracy", "loss"]}).hash == plain.hash
    more = [
        from_mapping({**SPEC, "metrics": names})
        for names in (["auc", "f1_macro"], ["f1_macro", "auc"])
    ]
    assert more[0].hash == more[1].hash != plain.hash
    assert from_mapping(to_mapping(more[0])) == more[0]
    assert measured(["auc", "accuracy", "f1_macro"]) == ("f1_macro", "auc")
