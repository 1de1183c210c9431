"""Vision transformers for images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.errors import UserError
from clipnoise.fields import Count
from clipnoise.models.cnn import ImageModel

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from clipnoise.data.signature import Signature


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

    id: ClassVar[str] = "vit"
    libraries: ClassVar[tuple[str, ...]] = ("timm.models.vision_transformer",)
    title: ClassVar[str] = "ViT"
    accepts: ClassVar[str] = "images of shape (channels, height, width), 16 to 256 pixels per side"
    sides: ClassVar[tuple[int, int]] = (16, 256)

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
