"""Residual networks for images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.fields import Count
from clipnoise.models.cnn import ImageModel

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from clipnoise.data.signature import Signature


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

    id: ClassVar[str] = "resnet-18"
    libraries: ClassVar[tuple[str, ...]] = ("timm.models.resnet",)
    title: ClassVar[str] = "ResNet-18"
    accepts: ClassVar[str] = "images of shape (channels, height, width), 16 to 256 pixels per side"
    sides: ClassVar[tuple[int, int]] = (16, 256)

    stem: Literal["3x3", "imagenet"] = "3x3"
    blocks: tuple[Count, Count, Count, Count] = (2, 2, 2, 2)
    width: Count = 64
    groups: Literal[1, 2, 4, 8, 16, 32] = 32

    def __post_init__(self) -> None:
        if self.width % self.groups:
            raise ValueError(f"width must be a multiple of groups, {self.groups}")

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        from timm.models.resnet import BasicBlock, ResNet
        from torch import nn

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
