"""Dense networks compute what their docstrings say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clipnoise.data.signature import Signature
from clipnoise.fields import parse
from clipnoise.models.base import model_class

IMAGES = Signature("image", (1, 4, 4), 3)


@pytest.mark.parametrize("widths", [(), (5,), (5, 2)], ids=str)
def test_a_perceptron_has_a_tanh_after_each_linear_layer_but_the_last(
    widths: tuple[int, ...],
) -> None:
    torch.manual_seed(0)
    network = parse(model_class("mlp"), {"widths": list(widths)}).build(IMAGES, Path("weights"))
    weights = list(network.parameters())
    assert [tuple(bias.shape) for bias in weights[1::2]] == [*((w,) for w in widths), (3,)]
    images = torch.randn(2, 1, 4, 4)
    expected = images.flatten(1)
    for number, (matrix, bias) in enumerate(zip(weights[::2], weights[1::2], strict=True)):
        expected = expected @ matrix.T + bias
        expected = expected if number == len(widths) else expected.tanh()
    torch.testing.assert_close(network(images), expected)
