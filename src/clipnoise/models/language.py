"""Models of token sequences: averaged word vectors, a recurrent network, and the BERT family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from clipnoise.data.signature import Signature
from clipnoise.fields import Count, Decay, Natural, unhashed_at
from clipnoise.lazy import Tensor, nn, torch
from clipnoise.models.base import Model, Part, PartlyTrained, network_of
from clipnoise.models.pretrained import Checksum, Weights, hub
from clipnoise.models.recomputed import recompute_blocks


class WordModel(Model):
    """Base of the models of words that are not pretrained."""

    accepts = "sequences of tokens to classify"

    @classmethod
    def takes(cls, signature: Signature) -> bool:
        return signature.kind == "tokens" and signature.task_name == "classification"


@dataclass(frozen=True, kw_only=True)
class AveragedWords(WordModel):
    """An embedding, and a linear layer on the mean of its vectors over the words of a text.

    Source: Joulin et al. 2017, Bag of Tricks for Efficient Text Classification (fastText), without
    its n-grams.

    Attributes:
        width: length of a word's vector.
    """

    id = "averaged-words"
    work = 100.0
    title = "Averaged word vectors"

    width: Count = 32

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        self.require(signature)
        assert signature.vocabulary is not None
        return network_of(
            lambda network, ids: network.last(_mean(network.words(ids), ids)),
            words=nn.Embedding(signature.vocabulary, self.width),
            last=nn.Linear(self.width, signature.outputs),
        )


@dataclass(frozen=True, kw_only=True)
class LSTM(WordModel):
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

    id = "lstm"
    work = 1e5
    title = "LSTM"

    width: Count = 64
    layers: Count = 2
    dropout: Decay = 0.2

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        self.require(signature)
        assert signature.vocabulary is not None

        def forward(network: Any, ids: Tensor) -> Any:
            states = network.dropout(network.memory(network.dropout(network.words(ids)))[0])
            return network.last(_mean(states, ids))

        return network_of(
            forward,
            words=nn.Embedding(signature.vocabulary, self.width),
            memory=nn.LSTM(self.width, self.width, self.layers, batch_first=True),
            last=nn.Linear(self.width, signature.outputs),
            dropout=nn.Dropout(self.dropout),
        )


def _mean(states: Tensor, ids: Tensor) -> Tensor:
    """Return the mean of states (b, T, w) over real tokens, whose id is not 0: (b, w)."""
    present = (ids != 0).unsqueeze(2)
    return (states * present).sum(dim=1) / present.sum(dim=1).clamp(min=1)


LONGEST = 512


@dataclass(frozen=True, kw_only=True)
class LanguageModel(PartlyTrained):
    """A transformer encoder with a head for a class, or for the token at each position.

    It takes token ids with 0 for padding, whatever its tokenizer pads with: where that is another
    id, the network swaps the two.

    Attributes:
        pretrained: whether it starts from the weights folder, or from random values.
        layers: encoder blocks.
        width: length of a token's vector; the feed-forward layers are four times as wide.
        heads: number of attention heads.
        train: a part, or the "last-block" with the pooler and the head.
        reinitialise: whether the last block and the pooler always start from random values.
        dropout: share of values set to 0 in training, in frozen layers too.
        sha256: of the file of tensors that it starts from; None takes whichever are there.
        recompute: whether what a block computes is computed again in the backward pass, which takes
            time, rather than kept for it, which takes memory.
    """

    accepts = f"up to {LONGEST} tokens, to classify or with masked tokens to predict"
    family: ClassVar[Literal["bert", "roberta"]]
    tokens: ClassVar[Mapping[str, float]]

    pretrained: bool = True
    layers: Count = 12
    width: Count = 768
    heads: Count = 12
    train: Part | Literal["last-block"] = "all"
    reinitialise: bool = False
    dropout: Decay = 0.1
    sha256: Checksum | None = None
    recompute: Annotated[bool, unhashed_at(False)] = False

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, {self.heads}")

    def tensors(self, weights: Path) -> Path | None:
        return Weights(self.id, weights).file() if self.pretrained else None

    @classmethod
    def takes(cls, signature: Signature) -> bool:
        known = signature.task_name in ("classification", "masked-tokens")
        return signature.kind == "tokens" and known and signature.shape[0] <= LONGEST

    @property
    def second_segment_after(self) -> int | None:
        """The token after whose first occurrence the second segment begins, or None."""
        return None

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        self.require(signature)
        folder = Weights(self.id, weights)
        if self.pretrained:
            folder.require(self._architecture(signature))
            if self.sha256 is not None:
                folder.require_digest(self.sha256)
        network = self._untrained(signature)
        last = (f"{self.family}.encoder.layer.{self.layers - 1}.", f"{self.family}.pooler.")
        if self.pretrained:
            fresh = ("classifier.", *(last if self.reinitialise else ()))
            folder.load_into(network, f"{self.family}.", fresh)
        kept = last if self.train == "last-block" else ()
        named = network.named_parameters()
        below = [p for name, p in named if name.startswith(f"{self.family}.")
                 and not name.startswith(kept)]  # fmt: skip
        self.partly_trained(network, below)
        if self.recompute:
            recompute_blocks(network)
        return logits(network, int(self.tokens["pad_token_id"]), self.second_segment_after)

    def _untrained(self, signature: Signature) -> nn.Module:
        """Build transformers' network with random values."""
        import transformers

        masked = signature.task_name == "masked-tokens"
        head = "AutoModelForMaskedLM" if masked else "AutoModelForSequenceClassification"
        config = transformers.AutoConfig.for_model(
            self.family,
            **self._architecture(signature),
            **self.tokens,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            num_labels=signature.outputs,
        )
        network: nn.Module = getattr(transformers, head).from_config(config)
        return network

    def _architecture(self, signature: Signature) -> dict[str, int | None]:
        """Return what config.json of matching weights must contain."""
        return {
            "vocab_size": signature.vocabulary,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": 4 * self.width,
        }


@dataclass(frozen=True, kw_only=True)
class Bert(LanguageModel):
    """BERT: two segments, separated by the token that ends a sentence.

    Attributes:
        separator: that token's id; the second segment follows the first one.
    """

    family = "bert"
    tokens: ClassVar = {
        "pad_token_id": 0,
        "type_vocab_size": 2,
        "max_position_embeddings": LONGEST,
        "layer_norm_eps": 1e-12,
    }

    separator: Natural = 102

    @property
    def second_segment_after(self) -> int | None:
        return self.separator


@dataclass(frozen=True, kw_only=True)
class BertBase(Bert):
    """BERT-base, cased; by default only last block, pooler and head train, from random values.

    Source: Devlin et al. 2019, section 3; DP-AdamBC, section 5 and Appendix A.
    """

    id = "bert-base"
    work = 2e8
    title = "BERT-base"
    pretrained_weights = hub("google-bert/bert-base-cased", "Apache-2.0")

    train: Part | Literal["last-block"] = "last-block"
    reinitialise: bool = True


@dataclass(frozen=True, kw_only=True)
class BertLarge(BertBase):
    """BERT-large, cased; by default only last block, pooler and head train, from random values.

    Source: Devlin et al. 2019, section 3; DP-AdamBC, Appendix, Figure 9.
    """

    id = "bert-large"
    work = 6e8
    title = "BERT-large"
    pretrained_weights = hub("google-bert/bert-large-cased", "Apache-2.0")

    layers: Count = 24
    width: Count = 1024
    heads: Count = 16


@dataclass(frozen=True, kw_only=True)
class TinyBert(Bert):
    """The smallest BERT, of 4.4 million parameters, uncased; all are trained.

    Source: Turc et al. 2019, Table 1 (two layers of width 128); On Design Principles for Private
    Adaptive Optimizers, section 5.
    """

    id = "tiny-bert"
    work = 1e6
    title = "TinyBERT"
    pretrained_weights = hub(
        "google/bert_uncased_L-2_H-128_A-2",
        "Apache-2.0",
        tensors="pytorch_model.bin",
        tokenizer="vocab.txt",
    )

    layers: Count = 2
    width: Count = 128
    heads: Count = 2


@dataclass(frozen=True, kw_only=True)
class RobertaBase(LanguageModel):
    """RoBERTa-base; all parameters are trained.

    Source: Liu et al. 2019, section 3; DP-PMLF, Experiments, Models.
    """

    id = "roberta-base"
    work = 2e8
    title = "RoBERTa-base"
    pretrained_weights = hub("FacebookAI/roberta-base", "MIT")
    family = "roberta"
    tokens: ClassVar = {
        "pad_token_id": 1,
        "type_vocab_size": 1,
        "max_position_embeddings": LONGEST + 2,
        "layer_norm_eps": 1e-5,
    }


def logits(
    inside: nn.Module, padding: int, separator: int | None, *, segments: bool = True
) -> nn.Module:
    """Wrap a network of transformers, so that 0 is padding and a batch needs nothing else.

    Args:
        inside: the network.
        padding: the id that it pads with.
        separator: the token after whose first occurrence the second segment begins, or None.
        segments: whether it is told which segment a token belongs to.
    """

    def forward(network: Any, ids: Tensor) -> Any:
        """Token ids (b, T) in; outputs (b, classes), or (b, T, vocabulary), out."""
        present = ids != 0
        segment = torch.zeros_like(ids)
        if separator is not None:
            ends = (ids == separator).to(ids.dtype)
            segment = (ends.cumsum(dim=1) - ends).clamp(max=1) * present
        if padding:
            ids = torch.where(ids == padding, 0, torch.where(present, ids, padding))
        # transformers uses an additive mask with four axes as it is: no code branches on its
        # values, which vmap could not follow. The first token is never masked, so that a text
        # without tokens has an output too.
        position = torch.arange(ids.shape[1], device=ids.device)
        kind = next(network.inside.parameters()).dtype
        masked = (~present & (position > 0))[:, None, None, :].to(kind)
        mask = masked * torch.finfo(kind).min
        more = {"token_type_ids": segment} if segments else {}
        return network.inside(input_ids=ids, attention_mask=mask, **more).logits

    return network_of(forward, inside=inside)
