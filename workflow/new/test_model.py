"""NewPlugin can be trained privately."""

from __future__ import annotations

from pathlib import Path

import torch

from clipnoise.data.base import DenseExamples
from clipnoise.data.signature import Signature
from clipnoise.gradients.checks import check_model
from clipnoise.gradients.choice import choose_engine
from clipnoise.models.base import model_class

SIGNATURE = Signature("features", (20,), 4)


def test_examples_do_not_mix_and_clipped_sums_are_fast() -> None:
    network = model_class("new-plugin")().build(SIGNATURE, Path("weights"))
    inputs = torch.rand(3, *SIGNATURE.shape)
    assert network(inputs).shape == (3, SIGNATURE.outputs)
    check_model(network, inputs[:1])
    examples = DenseExamples(inputs, torch.arange(3))
    assert choose_engine(network, SIGNATURE.task.losses, examples).name == "factored"
