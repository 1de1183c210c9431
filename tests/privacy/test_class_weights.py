"""Class weights scale the loss of an example before it is clipped: sensitivity stays C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clipnoise.core.clipping import Clipping
from clipnoise.data.base import dataset_class
from clipnoise.data.signature import WeightedClassification
from clipnoise.errors import UserError
from clipnoise.gradients.apart import adds_up
from clipnoise.privacy.calibration import calibrate
from clipnoise.run.results import privacy_statement
from clipnoise.run.spec import from_mapping, to_mapping
from clipnoise.run.train import Run, train

WEIGHTS = [1.0, 7.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 40.0]


def spec(**training: Any) -> Any:
    return from_mapping(
        {
            "dataset": "digits",
            "model": "logistic",
            "method": {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 0.5},
            "privacy": {"epsilon": 2, "delta": 1e-4},
            "training": {"expected_batch_size": 100, "steps": 3, "evaluations": 1, **training},
            "seed": 1,
        }
    )


def test_the_weighted_loss_is_torch_s_without_its_mean() -> None:
    outputs, targets = torch.randn(20, 3), torch.randint(0, 3, (20,))
    weights = (1.0, 5.0, 0.25)
    expected = nn.CrossEntropyLoss(weight=torch.tensor(weights), reduction="none")
    found = WeightedClassification(weights).losses(outputs, targets)
    assert torch.allclose(found, expected(outputs, targets))
    assert adds_up(WeightedClassification(weights).losses)


def test_a_loss_that_merely_derives_from_the_weighted_one_is_not_trusted() -> None:
    class Mixing(WeightedClassification):
        def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return super().losses(outputs, targets).mean().expand(len(targets))

    assert not adds_up(Mixing((1.0, 2.0)).losses)
    assert not adds_up(WeightedClassification((1.0, 2.0)).scores)


def test_an_example_of_a_heavy_class_adds_at_most_the_clip_norm(tmp_path: Path) -> None:
    dataset_class("digits")().prepare(tmp_path)
    run = Run.prepare(spec(class_weights=WEIGHTS), tmp_path, "cpu")
    inputs, targets = run.splits.train.take(slice(0, 200))
    engine = run.engine
    gradients = engine.per_example_gradients(inputs, targets, run.state.theta)
    plain_engine = Run.prepare(spec(), tmp_path, "cpu").engine
    plain = plain_engine.per_example_gradients(inputs, targets, run.state.theta)
    factors = torch.tensor(WEIGHTS)[targets].unsqueeze(1)
    assert torch.allclose(gradients, plain * factors, rtol=1e-4, atol=1e-6)
    norms = gradients.norm(dim=1)
    assert norms.max() > 0.5  # there is something to clip
    clipping = Clipping(0.5, points=(run.state.theta,))
    for index in range(20):
        alone = engine.clipped_sum(*run.splits.train.take(slice(index, index + 1)), clipping)
        assert alone.norm() <= 0.5 * (1 + 1e-6)


@pytest.mark.long
def test_weights_change_no_noise_and_stand_in_the_statement(tmp_path: Path) -> None:
    weighted, plain = spec(class_weights=WEIGHTS), spec()
    assert weighted.budget == plain.budget
    assert weighted.hash != plain.hash
    assert "class_weights" not in to_mapping(plain)["training"]
    assert from_mapping(to_mapping(weighted)) == weighted
    calibration = calibrate(weighted.budget)
    said = privacy_statement(weighted, calibration).covers
    assert said is not None
    assert "The weights of the classes, 1, 7, 1, 0.5, 1, 1, 1, 1, 1, 40, are public" in said
    assert "weights" not in (privacy_statement(plain, calibration).covers or "")
    dataset_class("digits")().prepare(tmp_path)
    found = [train(one, cache=tmp_path, calibration=calibration) for one in (weighted, plain)]
    assert found[0].metrics[0].train_loss == found[1].metrics[0].train_loss  # metrics have none
    assert found[0].metrics[-1].train_loss != found[1].metrics[-1].train_loss


def test_weights_that_do_not_fit_the_classes_are_refused() -> None:
    with pytest.raises(UserError, match=r"training\.class_weights: give a weight for each of the"):
        spec(class_weights=[1, 2])
    with pytest.raises(UserError, match=r"training\.class_weights\.1: .*greater than 0"):
        spec(class_weights=[1, 0])
    values = to_mapping(spec(class_weights=WEIGHTS))
    with pytest.raises(UserError, match=r"training\.class_weights: are for classification; synth"):
        from_mapping({**values, "dataset": "synthetic-sparse"})
