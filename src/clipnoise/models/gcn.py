"""Graph networks with one step of message passing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from clipnoise.data.signature import Signature
from clipnoise.fields import Count
from clipnoise.lazy import Tensor, nn
from clipnoise.models.base import Model, network_of


@dataclass(frozen=True, kw_only=True)
class GCN(Model):
    """Encodes each node, averages a node with its in-neighbours, and decodes the mean.

    One more layer is applied to the mean and added to it. As DP-GCN in Daigavane et al. 2021;
    widths and layers of DP-AdamBC, Appendix A (DP-Adam and DP-AdamBC; DP-SGD has two encoder
    layers and one decoder layer).

    Attributes:
        width: outputs of every layer but the last.
        encoder_layers: before the mean.
        decoder_layers: after it, including the last layer.
    """

    id = "gcn"
    work = 250.0
    title = "DP-GCN"
    accepts = "nodes of a graph to classify, with their in-neighbours"

    width: Count = 100
    encoder_layers: Count = 1
    decoder_layers: Count = 2

    @classmethod
    def takes(cls, signature: Signature) -> bool:
        return signature.kind == "nodes" and signature.task_name == "classification"

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        self.require(signature)
        features = signature.shape[1] - 1
        inside = (self.width,) * (self.decoder_layers - 1)
        decoder = nn.Linear(self.width, signature.outputs)
        return network_of(
            _decoded_mean,
            by_rows=True,  # it adds up over the neighbours of a node, an axis of one example
            encoder=_layers((features, *(self.width,) * self.encoder_layers)),
            core=_layers((self.width, self.width)),
            decoder=nn.Sequential(*_layers((self.width, *inside)), decoder),
        )


def _layers(widths: Sequence[int]) -> nn.Sequential:
    pairs = pairwise(widths)
    return nn.Sequential(*(layer for a, b in pairs for layer in (nn.Linear(a, b), nn.Tanh())))


def _decoded_mean(network: Any, nodes: Tensor) -> Any:
    """Nodes with in-neighbours (b, 1 + K, features + 1) in, outputs (b, classes) out."""
    present = (nodes[..., -1:] > 0).to(nodes.dtype)
    states = network.encoder(nodes[..., :-1]) * present
    mean = states.sum(dim=-2) / present.sum(dim=-2).clamp(min=1)
    return network.decoder(mean + network.core(mean))
