"""The convolutional networks are those that their sources describe."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import nn

from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.models.base import Model
from clipnoise.models.images import AveragedCNN, FiveLayerCNN, ReleasedCNN, SmallCNN


def kinds(network: nn.Module) -> list[str]:
    return [type(module).__name__ for module in network.children()]


def built(model: Model, shape: tuple[int, ...]) -> nn.Module:
    return model.build(Signature("image", shape, 10), Path("weights"))


def size(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_cnn_5_is_five_times_convolution_tanh_and_max_pooling(shape: tuple[int, ...]) -> None:
    network = built(FiveLayerCNN(), shape)
    assert kinds(network) == ["Conv2d", "MaxPool2d", "Tanh"] * 5 + ["Flatten", "Linear"]


def test_the_averaged_net_has_the_size_of_its_source() -> None:
    widths = (3, 32, 64, 128, 256, 10)
    expected = sum(9 * a * b + b for a, b in itertools.pairwise(widths))
    assert size(built(AveragedCNN(), (3, 32, 32))) == expected


def test_the_released_net_is_that_of_its_source() -> None:
    network = built(ReleasedCNN(), (3, 32, 32))
    with_pooling = ["Conv2d", "MaxPool2d", "Tanh", "GroupNorm"]
    last = ["Conv2d", "Tanh", "GroupNorm", "Conv2d", "AdaptiveAvgPool2d", "Flatten"]
    assert kinds(network) == with_pooling * 3 + last
    norms = [module for module in network.modules() if isinstance(module, nn.GroupNorm)]
    assert [(norm.num_groups, norm.num_channels) for norm in norms] == [
        (16, width) for width in (32, 64, 128, 256)
    ]
    convolutions = sum(9 * a * b + b for a, b in itertools.pairwise((3, 32, 64, 128, 256, 100)))
    assert size(network) == convolutions + 2 * (32 + 64 + 128 + 256)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_the_released_net_has_a_hundred_outputs_for_ten_classes(shape: tuple[int, ...]) -> None:
    assert built(ReleasedCNN(width=16), shape)(torch.zeros(2, *shape)).shape == (2, 100)


def test_fewer_outputs_than_classes_are_refused() -> None:
    with pytest.raises(UserError, match="9 are fewer than the 10 classes"):
        built(ReleasedCNN(outputs=9), (3, 32, 32))


def test_options_of_the_small_net_change_its_layers() -> None:
    plain = kinds(built(SmallCNN(), (1, 8, 8)))
    assert plain == ["Conv2d", "MaxPool2d", "Tanh"] * 2 + ["Flatten", "Linear"]
    averaged = built(SmallCNN(pooling="average", group_norm=True, width=8), (1, 8, 8))
    assert kinds(averaged)[:4] == ["Conv2d", "GroupNorm", "Tanh", "AvgPool2d"]
    assert size(averaged) < size(built(SmallCNN(), (1, 8, 8)))


@pytest.mark.parametrize("model", [SmallCNN(), FiveLayerCNN(), ReleasedCNN(), AveragedCNN()])
def test_pooling_before_tanh_computes_what_the_sources_compute_in_the_other_order(
    model: Model,
) -> None:
    torch.manual_seed(0)
    network = built(model, (3, 32, 32)).double()
    layers = list(network.children())
    for i, (layer, after) in enumerate(itertools.pairwise(layers)):
        if isinstance(layer, nn.MaxPool2d) and isinstance(after, nn.Tanh):
            layers[i], layers[i + 1] = after, layer
    other = nn.Sequential(*layers)
    assert kinds(other) != kinds(network)
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    outputs = [one(images) for one in (network, other)]
    gradients = [torch.autograd.grad(x.square().sum(), network.parameters()) for x in outputs]
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*gradients)


def test_a_width_that_group_norm_cannot_divide_is_refused() -> None:
    with pytest.raises(UserError, match="width must be a multiple of 4"):
        parse(SmallCNN, {"width": 6, "group_norm": True})
