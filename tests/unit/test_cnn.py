"""The convolutional nets are the ones that their sources describe."""

from __future__ import annotations

import itertools

import pytest
from torch import nn

from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.models.cnn import AveragedCNN, FiveLayerCNN, SmallCNN


def kinds(network: nn.Module) -> list[str]:
    return [type(module).__name__ for module in network.children()]


def size(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_cnn_5_is_five_times_convolution_tanh_and_max_pooling(shape: tuple[int, ...]) -> None:
    network = FiveLayerCNN().build(shape, 10)
    assert kinds(network) == ["Conv2d", "Tanh", "MaxPool2d"] * 5 + ["Flatten", "Linear"]


def test_the_averaged_net_has_the_size_of_its_source() -> None:
    widths = (3, 32, 64, 128, 256, 10)
    expected = sum(9 * a * b + b for a, b in itertools.pairwise(widths))
    assert size(AveragedCNN().build((3, 32, 32), 10)) == expected


def test_options_of_the_small_net_change_its_layers() -> None:
    plain = kinds(SmallCNN().build((1, 8, 8), 10))
    assert plain == ["Conv2d", "Tanh", "MaxPool2d"] * 2 + ["Flatten", "Linear"]
    averaged = SmallCNN(pooling="average", group_norm=True, width=8).build((1, 8, 8), 10)
    assert kinds(averaged)[:4] == ["Conv2d", "GroupNorm", "Tanh", "AvgPool2d"]
    assert size(averaged) < size(SmallCNN().build((1, 8, 8), 10))


def test_a_width_that_group_norm_cannot_divide_is_refused() -> None:
    with pytest.raises(UserError, match="width must be a multiple of 4"):
        parse(SmallCNN, {"width": 6, "group_norm": True})
