"""Networks of PyTorch, timm and transformers drop the same values in every engine and batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clipnoise.core.clipping import Clipping
from clipnoise.data.base import DenseExamples
from clipnoise.gradients.choice import choose_engine
from clipnoise.gradients.clipping import clipped_sum
from clipnoise.gradients.dropout import Masks
from clipnoise.gradients.engine import OneByOne

CLASSES, TOKENS, LONGEST, KEY = 3, 12, 7, 2**40 + 5
LOSS = nn.CrossEntropyLoss(reduction="none")
IMAGES, TEXTS = (3, 32, 32), (LONGEST,)


class Encoder(nn.Module):
    """A transformer of PyTorch on texts whose padding is masked."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.words, self.axis = nn.Embedding(TOKENS, 8), 0 if batch_first else 1
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.3, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.words(ids).transpose(0, self.axis)
        rows = self.encoder(rows, src_key_padding_mask=ids == 0).transpose(0, self.axis)
        outputs: Tensor = self.last(rows[:, 0])
        return outputs


class Classifier(nn.Module):
    """A network of transformers that is told which tokens are padding.

    It is told either token by token, and then branches on whether there are any, or by what is
    added to the scores of each pair of tokens.
    """

    def __init__(self, family: str, *, pairs: bool, **options: Any) -> None:
        super().__init__()
        import transformers

        config = transformers.AutoConfig.for_model(
            family, vocab_size=TOKENS, num_labels=CLASSES, pad_token_id=0, **options
        )
        self.inside = transformers.AutoModelForSequenceClassification.from_config(config)
        self.pairs, self.causal = pairs, family == "gpt2"

    def forward(self, ids: Tensor) -> Tensor:
        mask = (ids != 0).long()
        if self.pairs:
            hidden = (ids == 0)[:, None, None, :].expand(-1, 1, LONGEST, -1)
            if self.causal:
                hidden = hidden | torch.ones(LONGEST, LONGEST, dtype=torch.bool).triu(diagonal=1)
            kind = self.inside.dtype
            mask = hidden.to(kind) * torch.finfo(kind).min
        logits: Tensor = self.inside(input_ids=ids, attention_mask=mask).logits
        return logits


def bert(*, pairs: bool) -> nn.Module:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    rates = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}
    longest = {"intermediate_size": 12, "max_position_embeddings": LONGEST}
    return Classifier("bert", pairs=pairs, **sizes, **rates, **longest)


def gpt2(*, pairs: bool) -> nn.Module:
    sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": LONGEST}
    rates = {"resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0.3}
    return Classifier("gpt2", pairs=pairs, **sizes, **rates, bos_token_id=1, eos_token_id=1)


def of_timm(name: str, **options: Any) -> nn.Module:
    import timm

    network: nn.Module = timm.create_model(
        name, num_classes=CLASSES, drop_rate=0.2, drop_path_rate=0.5, **options
    )
    return network


NETWORKS: dict[str, tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = {
    "ConvNeXt with stochastic depth": (
        "factored",
        lambda: of_timm("convnext_atto", depths=(1, 2, 1, 1), dims=(4, 8, 8, 12)),
        IMAGES,
    ),
    "ViT with stochastic depth": (
        "factored",
        lambda: of_timm(
            "vit_tiny_patch16_224", img_size=32, patch_size=16, embed_dim=12, depth=2, num_heads=2
        ),
        IMAGES,
    ),
    "encoder": ("factored", lambda: Encoder(batch_first=True), TEXTS),
    "encoder, examples second": ("factored", lambda: Encoder(batch_first=False), TEXTS),
    "BERT": ("factored", lambda: bert(pairs=True), TEXTS),
    "BERT, mask by token": ("one by one", lambda: bert(pairs=False), TEXTS),
    "GPT-2": ("factored", lambda: gpt2(pairs=True), TEXTS),
    "GPT-2, mask by token": ("one by one", lambda: gpt2(pairs=False), TEXTS),
}


def build(name: str) -> nn.Module:
    """Build a network in which no parameter is zero: layer scales would hide what they scale."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        network = NETWORKS[name][1]().double().train()
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        return network


def data(shape: tuple[int, ...]) -> DenseExamples:
    """Draw images, or texts of which each ends with padding of another length."""
    draws = torch.Generator().manual_seed(1)
    targets = torch.arange(8) % CLASSES
    if shape == IMAGES:
        return DenseExamples(torch.randn(8, *shape, generator=draws, dtype=torch.float64), targets)
    ids = torch.randint(2, TOKENS, (8, *shape), generator=draws)
    ids[torch.arange(LONGEST) > torch.arange(8).unsqueeze(1)] = 0
    return DenseExamples(ids, targets)


@pytest.mark.quick(name=["ViT with stochastic depth", "encoder", "GPT-2", "BERT, mask by token"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_drop_the_same_values_in_every_engine_and_batch(
    name: str,
) -> None:
    expected_engine, _, shape = NETWORKS[name]
    examples = data(shape)
    choice = choose_engine(build(name), LOSS, examples)
    assert choice.name == expected_engine, choice.reason
    engine, reference = choice.engine, OneByOne(build(name), LOSS)
    theta, numbers = engine.flat.theta.clone(), torch.arange(100, 108)
    whole = examples.inputs, examples.targets, theta
    gradients = reference.per_example_gradients(*whole, Masks(KEY, numbers))
    assert not torch.allclose(gradients, reference.per_example_gradients(*whole, Masks(1, numbers)))
    for order in (
        torch.tensor([6, 0, 3, 7, 1, 5, 2, 4]),
        torch.tensor([5, 2, 7]),
        torch.tensor([4]),
    ):
        some = examples.inputs[order], examples.targets[order]
        taken = engine.per_example_gradients(*some, theta, Masks(KEY, numbers[order]))
        torch.testing.assert_close(taken, gradients[order], rtol=1e-8, atol=1e-11)
        for scale in (None, torch.linspace(0.5, 2, len(theta), dtype=theta.dtype)):
            clipping = Clipping(float(gradients.norm(dim=1).median()), scale=scale, key=KEY)
            clipping = replace(clipping.at(theta), examples=numbers[order])
            total = engine.clipped_sum(*some, clipping)
            expected = clipped_sum([gradients[order]], clipping)
            torch.testing.assert_close(total, expected, rtol=1e-8, atol=1e-10)
