"""Recurrent networks for token sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.fields import Count, Decay
from clipnoise.models.base import Model

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from clipnoise.data.signature import Signature


@dataclass(frozen=True, kw_only=True)
class LSTM(Model):
    """An embedding, two LSTM layers and a linear layer on the mean of their outputs.

    With 10,000 words and two classes it has 706,690 parameters, as in the paper. The mean is over
    real tokens only. The released code pads all texts to 290 tokens and includes the padding in the
    mean; here the padding of a text depends on the others in its batch, and no output may.
    Source: AdaDPS, Appendix B and released code.

    Attributes:
        width: length of a word's vector and of each layer's state.
        layers: number of LSTM layers.
        dropout: share of the values of word vectors and of states set to 0 in training.
    """

    id: ClassVar[str] = "lstm"
    title: ClassVar[str] = "LSTM"
    accepts: ClassVar[str] = "sequences of tokens to classify"

    width: Count = 64
    layers: Count = 2
    dropout: Decay = 0.2

    @classmethod
    def takes(cls, signature: Signature) -> bool:
        return signature.kind == "tokens" and signature.task_name == "classification"

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        from torch import nn

        self.require(signature)
        assert signature.vocabulary is not None
        return _network(
            nn.Embedding(signature.vocabulary, self.width),
            nn.LSTM(self.width, self.width, self.layers, batch_first=True),
            nn.Linear(self.width, signature.outputs),
            nn.Dropout(self.dropout),
        )


def _network(words: nn.Module, memory: nn.Module, last: nn.Module, dropout: nn.Module) -> nn.Module:
    from torch import Tensor, nn

    class Recurrent(nn.Module):
        """Token ids (b, T) in, outputs (b, classes) out."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.memory, self.last = words, memory, last
            self.dropout = dropout

        def forward(self, ids: Tensor) -> Tensor:
            present = (ids != 0).unsqueeze(2)
            states = self.dropout(self.memory(self.dropout(self.words(ids)))[0])
            mean = (states * present).sum(dim=1) / present.sum(dim=1).clamp(min=1)
            outputs: Tensor = self.last(mean)
            return outputs

    return Recurrent()
