"""Image models: small convolutional networks, residual networks and vision transformers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.fields import Count
from clipnoise.lazy import nn
from clipnoise.models.base import Model, Part, PartlyTrained

Pooling = Literal["max", "average"]
GROUPS = 4


class ImageModel(Model):
    """Base of models that classify images.

    Attributes:
        sides: the least and the most pixels of a side.
    """

    sides: ClassVar[tuple[int, int]]

    def __init_subclass__(cls) -> None:
        least, most = cls.sides
        cls.accepts = (
            f"images of shape (channels, height, width), {least} to {most} pixels per side"
        )

    @classmethod
    def takes(cls, signature: Signature) -> bool:
        least, most = cls.sides
        return (
            signature.kind == "image"
            and signature.task_name == "classification"
            and all(least <= side <= most for side in signature.shape[1:])
        )


def max_pooled_tanh(*, ceil_mode: bool = False) -> list[nn.Module]:
    """Return layers that compute the maximum of tanh over each 2×2 window.

    Tanh is increasing, so the maximum may come first. It leaves a quarter of the values, and tanh
    is what costs most in a small network on a CPU. With `ceil_mode` sizes are rounded up.
    """
    return [nn.MaxPool2d(2, ceil_mode=ceil_mode), nn.Tanh()]


@dataclass(frozen=True, kw_only=True)
class SmallCNN(ImageModel, PartlyTrained):
    """Two 3×3 convolutions with tanh and pooling, then a linear layer.

    Tanh keeps activations bounded, which suits clipped gradients.
    Source: Papernot et al. 2021, Tempered Sigmoid Activations for Deep Learning with Differential
    Privacy.

    Attributes:
        width: channels of the first convolution; the second has twice as many.
        pooling: of each 2×2 window.
        group_norm: whether a GroupNorm of four groups follows each convolution.
    """

    id = "cnn-small"
    work = 2e3
    title = "Small CNN"
    sides = (8, 64)

    width: Count = 16
    pooling: Pooling = "max"
    group_norm: bool = False
    train: Part = "all"

    def __post_init__(self) -> None:
        if self.group_norm and self.width % GROUPS:
            raise ValueError(f"width must be a multiple of {GROUPS} with group_norm")

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        self.require(signature)
        channels, height, width = signature.shape
        layers: list[nn.Module] = []
        for before, after in ((channels, self.width), (self.width, 2 * self.width)):
            layers.append(nn.Conv2d(before, after, kernel_size=3, padding=1))
            if self.group_norm:
                layers.append(nn.GroupNorm(GROUPS, after))
            layers += max_pooled_tanh() if self.pooling == "max" else [nn.Tanh(), nn.AvgPool2d(2)]
        features = 2 * self.width * (height // 4) * (width // 4)
        head = nn.Linear(features, signature.outputs)
        network = nn.Sequential(*layers, nn.Flatten(), head)
        return self.partly_trained(network, network[:-1].parameters())


@dataclass(frozen=True, kw_only=True)
class FiveLayerCNN(ImageModel):
    """Five 3×3 convolutions, each followed by tanh and 2×2 max-pooling, then a linear layer.

    This is the network as the paper's text has it. The text states no channels or kernels: the
    first four widths are those of its released network, `cnn-5-released`; the fifth, the linear
    layer and pooling that rounds sizes up, so that five of them fit into 28 pixels, are ours.
    Source: DP-PMLF, Appendix, Models.

    Attributes:
        widths: channels after each convolution.
    """

    id = "cnn-5"
    work = 2e4
    title = "CNN-5"
    sides = (17, 64)

    widths: tuple[Count, Count, Count, Count, Count] = (32, 64, 128, 256, 256)

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        self.require(signature)
        channels, height, width = signature.shape
        layers: list[nn.Module] = []
        for before, after in zip((channels, *self.widths), self.widths, strict=False):
            layers.append(nn.Conv2d(before, after, kernel_size=3, padding=1))
            layers += max_pooled_tanh(ceil_mode=True)
        features = self.widths[-1] * math.ceil(height / 32) * math.ceil(width / 32)
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, signature.outputs))


@dataclass(frozen=True, kw_only=True)
class ReleasedCNN(ImageModel):
    """The 5-layer CNN that DP-PMLF released: group norm, three max-poolings, 100 outputs.

    Four 3×3 convolutions, each with tanh and a GroupNorm of 16 groups, the first three with 2×2
    max-pooling before the norm. A fifth gives `outputs` maps, which are averaged. Ten classes get
    100 outputs too, 90 of which never are a label. The released average covers 4×4, all that three
    poolings leave of 32 pixels; here it covers all that they leave, so that 28 pixels fit as well.
    Source: DP-PMLF, released code, model_utils.py.

    Attributes:
        width: channels of the first convolution; the next three have 2, 4 and 8 times as many.
        outputs: maps of the fifth convolution.
    """

    id = "cnn-5-released"
    work = 2e4
    title = "CNN-5 (released)"
    sides = (8, 39)
    groups: ClassVar[int] = 16

    width: Count = 32
    outputs: Count = 100

    def __post_init__(self) -> None:
        if self.width % self.groups:
            raise ValueError(f"width must be a multiple of {self.groups}, the groups of the norm")

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        self.require(signature)
        if self.outputs < signature.outputs:
            raise UserError(
                f"model.outputs: {self.outputs} are fewer than the {signature.outputs} classes."
            )
        channels, layers = signature.shape[0], list[nn.Module]()
        for position, width in enumerate(self.width * 2**doubling for doubling in range(4)):
            layers.append(nn.Conv2d(channels, width, kernel_size=3, padding=1))
            layers += max_pooled_tanh() if position < 3 else [nn.Tanh()]
            layers.append(nn.GroupNorm(self.groups, width))
            channels = width
        last = nn.Conv2d(channels, self.outputs, kernel_size=3, padding=1)
        return nn.Sequential(*layers, last, nn.AdaptiveAvgPool2d(1), nn.Flatten())


@dataclass(frozen=True, kw_only=True)
class AveragedCNN(ImageModel):
    """Five 3×3 convolutions with tanh; the last gives one map per class, averaged to an output.

    Max-pooling follows the first three; the first convolution is not padded.
    Source: DP-AdamBC, released code, the 5-layer CNN.

    Attributes:
        width: channels of the first convolution; the next three have 2, 4 and 8 times as many.
    """

    id = "cnn-5-averaged"
    work = 2e4
    title = "CNN-5 (averaged)"
    sides = (17, 64)

    width: Count = 32

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        self.require(signature)
        widths = [signature.shape[0], *(self.width * 2**doubling for doubling in range(4))]
        layers: list[nn.Module] = []
        for before, after, padding in zip(widths, widths[1:4], (0, 1, 1), strict=False):
            layers.append(nn.Conv2d(before, after, kernel_size=3, padding=padding))
            layers += max_pooled_tanh()
        return nn.Sequential(
            *layers,
            nn.Conv2d(widths[3], widths[4], kernel_size=3, padding=1),
            nn.Tanh(),
            nn.Conv2d(widths[4], signature.outputs, kernel_size=3, padding=1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )


@dataclass(frozen=True, kw_only=True)
class ResNet18(ImageModel):
    """ResNet-18 with GroupNorm in place of BatchNorm and no activation in place.

    DP-PMLF's released code takes timm's network, lets Opacus replace each BatchNorm by a GroupNorm
    of 32 groups, and enlarges CIFAR images to 224 pixels.
    Source: He et al. 2016, Table 1; DP-PMLF, Appendix, Models.

    Attributes:
        stem: "3x3" keeps the resolution of small images; "imagenet" is the original 7×7
            convolution and pooling, which reduce 32 pixels to one after the last stage.
        blocks: residual blocks of each of the four stages; every stage after the first halves the
            resolution and doubles the channels.
        width: channels of the first stage.
        groups: number of groups of each GroupNorm.
    """

    id = "resnet-18"
    work = 8e5
    title = "ResNet-18"
    sides = (16, 256)

    stem: Literal["3x3", "imagenet"] = "3x3"
    blocks: tuple[Count, Count, Count, Count] = (2, 2, 2, 2)
    width: Count = 64
    groups: Literal[1, 2, 4, 8, 16, 32] = 32

    def __post_init__(self) -> None:
        if self.width % self.groups:
            raise ValueError(f"width must be a multiple of groups, {self.groups}")

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        from timm.models.resnet import BasicBlock, ResNet

        self.require(signature)
        inputs = signature.shape[0]
        network: nn.Module = ResNet(
            BasicBlock,  # type: ignore[arg-type]
            self.blocks,
            channels=tuple(self.width * 2**stage for stage in range(4)),
            num_classes=signature.outputs,
            in_chans=inputs,
            norm_layer=lambda channels, **_: nn.GroupNorm(self.groups, channels),
        )
        if self.stem == "3x3":
            network.conv1 = nn.Conv2d(inputs, 64, kernel_size=3, padding=1, bias=False)
            network.maxpool = nn.Identity()
        for module in network.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = False
        return network


@dataclass(frozen=True, kw_only=True)
class VisionTransformer(ImageModel):
    """A vision transformer with a class token, by default ViT-Small on patches of 4×4 pixels.

    DP-PMLF does not state the size of its network; its released code names ViT-Small, with patches
    of 16×16 on images enlarged to 224 pixels. Small images have about as many patches of 4×4.
    Source: Dosovitskiy et al. 2021, section 3.1; DP-PMLF, Appendix, Models.

    Attributes:
        patch: side length of a patch, in pixels.
        width: length of a token.
        layers: blocks of attention and a multi-layer perceptron.
        heads: number of attention heads.
    """

    id = "vit"
    work = 2e6
    title = "ViT"
    sides = (16, 256)

    patch: Count = 4
    width: Count = 384
    layers: Count = 12
    heads: Count = 6

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, {self.heads}")

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        from timm.models import vision_transformer as timm

        self.require(signature)
        channels, height, width = signature.shape
        if height % self.patch or width % self.patch:
            raise UserError(
                f"model.patch: {self.patch} must divide the sides of the images, "
                f"{height} and {width} pixels."
            )
        network: nn.Module = timm.VisionTransformer(
            img_size=(height, width),
            patch_size=self.patch,
            in_chans=channels,
            num_classes=signature.outputs,
            embed_dim=self.width,
            depth=self.layers,
            num_heads=self.heads,
        )
        return network
