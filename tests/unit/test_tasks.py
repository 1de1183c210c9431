"""Losses and scores per example, against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from torch.func import grad, vmap

from clipnoise.data.base import Examples
from clipnoise.data.signature import NO_TARGET, TASKS, TaskName
from clipnoise.run.train import evaluate

OUTPUTS = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
SEQUENCES = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(0))
TARGETS = torch.tensor([[NO_TARGET, 2, NO_TARGET, 0, NO_TARGET], [NO_TARGET] * 5, [1, 2, 3, 4, 5]])
TAGS = torch.tensor([[1.0, 0, 1, 0, 0, 0], [0.0] * 6, [1.0] * 6])
CASES: dict[TaskName, tuple[torch.Tensor, torch.Tensor]] = {
    "classification": (OUTPUTS, torch.tensor([0, 5, 2])),
    "multi-label": (OUTPUTS, TAGS),
    "regression": (OUTPUTS, TAGS),
    "reconstruction": (OUTPUTS, TAGS),
    "masked-tokens": (SEQUENCES, TARGETS),
}


@pytest.mark.parametrize("name", CASES)
def test_the_loss_of_an_example_depends_on_no_other(name: TaskName) -> None:
    outputs, targets = CASES[name]
    together = TASKS[name].losses(outputs, targets)
    alone = [TASKS[name].losses(outputs[i : i + 1], targets[i : i + 1]) for i in range(3)]
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.parametrize("name", CASES)
def test_a_loss_can_be_differentiated_example_by_example(name: TaskName) -> None:
    outputs, targets = CASES[name]

    def loss(one: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return TASKS[name].losses(one[None], target[None])[0]

    rows = vmap(grad(loss))(outputs, targets)
    leaf = outputs.clone().requires_grad_()
    TASKS[name].losses(leaf, targets).sum().backward()
    torch.testing.assert_close(rows, leaf.grad)


def test_tags_cost_the_sum_of_their_cross_entropies() -> None:
    task, zeros = TASKS["multi-label"], torch.zeros(1, 4)
    tags = torch.tensor([[1.0, 0, 0, 1]])
    assert float(task.losses(zeros, tags)) == pytest.approx(4 * math.log(2))


def test_the_most_likely_tag_counts_when_it_is_one_of_the_examples() -> None:
    outputs = torch.tensor([[0.0, 3, 1], [2, 0, 0], [0, 0, 1]])
    tags = torch.tensor([[1.0, 1, 0], [0, 1, 1], [0, 0, 0]])
    assert TASKS["multi-label"].scores(outputs, tags).tolist() == [1, 0, 0]


def test_masked_tokens_are_averaged_over_the_targets() -> None:
    task, even = TASKS["masked-tokens"], torch.zeros(3, 5, 6)
    assert task.losses(even, TARGETS).tolist() == pytest.approx([math.log(6), 0, math.log(6)])
    right = torch.nn.functional.one_hot(TARGETS.clamp(min=0), 6).float()
    right[2, :2] = 0
    right[2, :2, 0] = 1
    assert task.scores(right, TARGETS).tolist() == pytest.approx([1, 0, 0.6])


def test_a_regression_has_a_loss_and_no_score() -> None:
    task = TASKS["regression"]
    assert task.score is None
    loss = task.losses(torch.tensor([[3.0, 1]]), torch.tensor([[1.0, 1]]))
    assert float(loss) == pytest.approx(2)


def test_a_run_of_a_task_without_a_score_has_no_accuracy() -> None:
    examples = Examples(inputs=torch.ones(4, 1), targets=torch.zeros(4, 1))
    loss, score, *_ = evaluate(torch.nn.Identity(), TASKS["regression"], examples)
    assert loss == pytest.approx(0.5)
    assert math.isnan(score)


def test_a_reconstruction_costs_the_squared_distance_of_a_pixel_on_average() -> None:
    task = TASKS["reconstruction"]
    assert task.score is None
    loss = task.losses(torch.tensor([[3.0, 1, 0, 0]]), torch.tensor([[1.0, 1, 0, 0]]))
    assert float(loss) == pytest.approx(1)
