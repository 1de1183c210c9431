"""Networks to time: those of the suite, and small forms of those that papers train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

TOKENS, VOCABULARY = 64, 8000


@dataclass(frozen=True)
class Case:
    """A network with random weights, and made-up data of the shape it takes.

    Attributes:
        build: makes the network.
        shape: of one example.
        classes: outputs.
        tokens: whether inputs are token ids.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    tokens: bool = False

    def batch(self, count: int, device: str) -> tuple[Tensor, Tensor]:
        """Make up a batch of inputs and targets."""
        draws = torch.Generator().manual_seed(0)
        targets = torch.randint(self.classes, (count,), generator=draws)
        if self.tokens:
            inputs = torch.randint(VOCABULARY, (count, *self.shape), generator=draws)
        else:
            inputs = torch.randn(count, *self.shape, generator=draws)
        return inputs.to(device), targets.to(device)


class Logits(nn.Module):
    """A language model that takes token ids alone and returns logits alone."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.inside(input_ids=ids).logits
        return logits


def suite(model: str, shape: tuple[int, ...], classes: int) -> Case:
    """Take a registered model."""
    from clipnoise.data.signature import Signature
    from clipnoise.models.base import model_class

    signature = Signature("features" if len(shape) == 1 else "image", shape, classes)
    weights = Path("weights")
    return Case(lambda: model_class(model)().build(signature, weights), shape, classes)


def vit() -> nn.Module:
    """Build a small vision transformer: 4×4 patches of 32×32 pixels, six blocks of width 192."""
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=32, patch_size=4, embed_dim=192, depth=6, num_heads=3, num_classes=10
    )


def bert(*, embeddings_trained: bool) -> nn.Module:
    """Build a small BERT: four blocks of width 128."""
    from transformers import BertConfig, BertForSequenceClassification

    options = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    network = BertForSequenceClassification(options)
    network.bert.embeddings.requires_grad_(embeddings_trained)
    return Logits(network)


def resnet(*, small_stem: bool) -> nn.Module:
    """Build a ResNet-18 with GroupNorm, with the stem for 32×32 pixels or the usual one."""
    from timm.models.resnet import BasicBlock, ResNet

    network = ResNet(
        BasicBlock,
        [2, 2, 2, 2],
        num_classes=10,
        norm_layer=lambda width, **_: nn.GroupNorm(16, width),
    )
    if small_stem:
        network.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        network.maxpool = nn.Identity()
    for module in network.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # Opacus' hooks take no layers that overwrite their input
    return network


CASES: dict[str, Case] = {
    "logistic 10,000×500": suite("logistic", (10_000,), 500),
    "cnn-small": suite("cnn-small", (1, 28, 28), 10),
    "cnn-5": suite("cnn-5", (1, 28, 28), 10),
    "cnn-5-averaged": suite("cnn-5-averaged", (1, 28, 28), 10),
    "ViT, small": Case(vit, (3, 32, 32), 10),
    "BERT, small": Case(lambda: bert(embeddings_trained=True), (TOKENS,), 2, tokens=True),
    "BERT, small, frozen embeddings": Case(
        lambda: bert(embeddings_trained=False), (TOKENS,), 2, tokens=True
    ),
    "ResNet-18, 3×3 stem": Case(lambda: resnet(small_stem=True), (3, 32, 32), 10),
    "ResNet-18, 7×7 stem": Case(lambda: resnet(small_stem=False), (3, 32, 32), 10),
}
