"""Language models: the inputs of transformers' networks, what is trained, pretrained weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.models.base import model_class

CLASSES, VOCABULARY = 3, 50
CLASSIFY = Signature("tokens", (12,), CLASSES, vocabulary=VOCABULARY)
FILL_IN = Signature("tokens", (12,), VOCABULARY, "masked-tokens", vocabulary=VOCABULARY)
SMALL = {"layers": 2, "width": 8, "heads": 2, "dropout": 0.0}
SEPARATOR = 7
IDS = torch.tensor(
    [
        [5, 9, 9, SEPARATOR, 11, 12, SEPARATOR, 0, 0, 0, 0, 0],
        [5, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, SEPARATOR],
        [5, SEPARATOR, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
)


def build(
    name: str, signature: Signature = CLASSIFY, weights: Path = Path("weights"), **options: Any
) -> nn.Module:
    torch.manual_seed(0)
    model = parse(model_class(name), {**SMALL, "pretrained": False, **options})
    return model.build(signature, weights).eval()


def checkpoint(folder: Path, name: str, signature: Signature = FILL_IN) -> dict[str, Tensor]:
    """Write weights as transformers does, and return the tensors of the file."""
    torch.manual_seed(1)
    inside: Any = build(name, signature, train="all").inside
    with torch.no_grad():
        for parameter in inside.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    inside.save_pretrained(folder / name)
    return load_file(folder / name / "model.safetensors")


def parameters(network: nn.Module) -> dict[str, Tensor]:
    return {name.removeprefix("inside."): p for name, p in network.named_parameters()}


def test_averaged_words_are_a_linear_map_of_the_mean_over_real_tokens() -> None:
    torch.manual_seed(0)
    network: Any = parse(model_class("averaged-words"), {"width": 4}).build(CLASSIFY, Path())
    means = torch.stack([network.words.weight[ids[ids != 0]].mean(dim=0) for ids in IDS])
    torch.testing.assert_close(network(IDS), network.last(means))


def test_bert_sees_the_mask_and_the_segments_that_its_tokenizer_would_give() -> None:
    network: Any = build("bert-base", separator=SEPARATOR)
    segments = torch.zeros_like(IDS)
    segments[0, 4:7] = 1
    expected = network.inside(
        input_ids=IDS, attention_mask=(IDS != 0).long(), token_type_ids=segments
    ).logits
    torch.testing.assert_close(network(IDS), expected)
    assert not torch.allclose(network(IDS), build("bert-base", separator=49)(IDS))


def test_roberta_pads_with_its_own_token_though_the_data_pad_with_0() -> None:
    texts = [[0, 9, 9, 2, 2, 12, 2], [0, 2]]  # as its tokenizer numbers: 0 begins, 2 ends
    own = torch.full((2, 12), 1)
    for row, text in zip(own, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    given = torch.where(own == 0, 1, torch.where(own == 1, 0, own))  # as the data hold them
    network: Any = build("roberta-base")
    expected = network.inside(input_ids=own, attention_mask=(own != 1).long()).logits
    torch.testing.assert_close(network(given), expected)


REAL = {
    "bert-base": (3, 28_996, 108_312_579, 7_680_771),
    "bert-large": (2, 28_996, 333_581_314, 13_647_874),
    "roberta-base": (3, 50_265, 124_647_939, 124_647_939),
}


@pytest.mark.parametrize("name", REAL)
def test_the_papers_networks_have_as_many_parameters_as_published(name: str) -> None:
    classes, vocabulary, total, trained = REAL[name]
    with torch.device("meta"):
        signature = Signature("tokens", (128,), classes, vocabulary=vocabulary)
        network = model_class(name)(pretrained=False).build(signature, Path("weights"))
    assert sum(p.numel() for p in network.parameters()) == total
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == trained


def test_tiny_bert_trains_its_4_4_million_parameters_on_masked_tokens() -> None:
    with torch.device("meta"):
        signature = Signature("tokens", (512,), 30_522, "masked-tokens", vocabulary=30_522)
        network = model_class("tiny-bert")(pretrained=False).build(signature, Path("weights"))
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == 4_416_698


def test_only_the_last_block_the_pooler_and_the_head_train() -> None:
    trained = [name for name, p in parameters(build("bert-base")).items() if p.requires_grad]
    assert {name.partition(".layer.1.")[0] for name in trained} == {
        "bert.encoder", "bert.pooler.dense.weight", "bert.pooler.dense.bias",
        "classifier.weight", "classifier.bias",
    }  # fmt: skip
    head = [n for n, p in parameters(build("bert-base", FILL_IN)).items() if p.requires_grad]
    assert "bert.embeddings.word_embeddings.weight" not in head  # though it is the decoder's too
    assert "cls.predictions.bias" in head


@pytest.mark.parametrize("name", ["tiny-bert", "roberta-base"])
def test_all_pretrained_weights_are_used_to_predict_masked_tokens(
    name: str, tmp_path: Path
) -> None:
    saved = checkpoint(tmp_path, name)
    found = parameters(build(name, FILL_IN, tmp_path, pretrained=True))
    assert all(torch.equal(found[key], saved[key]) for key in found if key in saved)
    assert set(found) - set(saved) <= {"cls.predictions.decoder.bias", "lm_head.decoder.bias"}


def test_what_is_reinitialised_starts_from_random_values_and_the_rest_does_not(
    tmp_path: Path,
) -> None:
    saved = checkpoint(tmp_path, "bert-base", CLASSIFY)
    fresh = parameters(build("bert-base", CLASSIFY, tmp_path, pretrained=True))
    kept = {name for name in saved if torch.equal(saved[name], fresh[name])}
    initialised = ("bert.encoder.layer.1.", "bert.pooler.", "classifier.")
    assert kept == {name for name in saved if not name.startswith(initialised)}
    same = parameters(build("bert-base", CLASSIFY, tmp_path, pretrained=True, reinitialise=False))
    assert all(torch.equal(saved[n], same[n]) for n in saved if not n.startswith("classifier."))


def test_old_names_bare_encoders_and_the_older_file_format_are_read(tmp_path: Path) -> None:
    saved = checkpoint(tmp_path, "bert-base", CLASSIFY)
    expected = build("bert-base", CLASSIFY, tmp_path, pretrained=True)(IDS)
    old = {
        name.removeprefix("bert.")
        .replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in saved.items()
        if name.startswith("bert.")
    }
    torch.save(old, tmp_path / "bert-base" / "pytorch_model.bin")
    (tmp_path / "bert-base" / "model.safetensors").unlink()
    found = build("bert-base", CLASSIFY, tmp_path, pretrained=True)(IDS)
    torch.testing.assert_close(found, expected)


def truncate(folder: Path) -> str:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return "model.safetensors is truncated or damaged"


def lose(folder: Path) -> str:
    (folder / "model.safetensors").unlink()
    return "model.safetensors does not exist"


def lose_config(folder: Path) -> str:
    (folder / "config.json").unlink()
    return "config.json does not exist"


def break_config(folder: Path) -> str:
    (folder / "config.json").write_text("{")
    return "config.json is not JSON"


def deepen(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 12}))
    return "num_hidden_layers is 12, but 2 is wanted"


def drop_tensor(folder: Path) -> str:
    tensors = load_file(folder / "model.safetensors")
    del tensors["bert.encoder.layer.0.output.dense.weight"]
    save_file(tensors, folder / "model.safetensors")
    return "another architecture: bert.encoder.layer.0.output.dense.weight is missing"


def reshape_tensor(folder: Path) -> str:
    tensors = load_file(folder / "model.safetensors")
    name = "bert.embeddings.word_embeddings.weight"
    save_file({**tensors, name: torch.zeros(40, 8)}, folder / "model.safetensors")
    return r"word_embeddings.weight has the shape \(40, 8\), not \(50, 8\)"


def poison(folder: Path) -> str:
    (folder / "model.safetensors").unlink()
    torch.save({"code": Path("somewhere")}, folder / "pytorch_model.bin")
    return "pytorch_model.bin is truncated or damaged"


@pytest.mark.parametrize(
    "damage",
    [truncate, lose, lose_config, break_config, deepen, drop_tensor, reshape_tensor, poison],
)
def test_weights_that_do_not_fit_are_one_clear_error(damage: Any, tmp_path: Path) -> None:
    checkpoint(tmp_path, "bert-base", CLASSIFY)
    problem = damage(tmp_path / "bert-base")
    with pytest.raises(UserError, match=problem) as caught:
        build("bert-base", CLASSIFY, tmp_path, pretrained=True)
    assert f"clipnoise weights fetch bert-base --weights {tmp_path}" in str(caught.value)


def test_a_vocabulary_of_another_size_is_named_with_both_sizes(tmp_path: Path) -> None:
    checkpoint(tmp_path, "bert-base", CLASSIFY)
    other = Signature("tokens", (12,), CLASSES, vocabulary=60)
    with pytest.raises(UserError, match="vocab_size is 50, but 60 is wanted"):
        build("bert-base", other, tmp_path, pretrained=True)


def test_texts_longer_than_the_positions_are_refused() -> None:
    with pytest.raises(UserError, match="takes up to 512 tokens"):
        build("bert-base", Signature("tokens", (513,), 2, vocabulary=50))
