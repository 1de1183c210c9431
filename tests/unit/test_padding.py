"""How far a text is padded depends on the others in its batch, so no network may notice it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import MODELS, tiny
from torch import Tensor, nn

from clipnoise.data.base import Examples
from clipnoise.data.rows import RaggedRows
from clipnoise.data.signature import Signature
from clipnoise.data.text import Masking
from clipnoise.errors import UserError
from clipnoise.gradients.padding import check_padding

WORDS, LENGTH = 120, 80
MASKED = Masking(seed=1, mask=103, first=104, end=WORDS)


def texts(length: int = LENGTH) -> RaggedRows:
    """Return two texts, a short one and one that is longer than a bucket."""
    starts = np.array([0, 3, 3 + LENGTH])
    return RaggedRows(starts, np.arange(3 + LENGTH) % WORDS, torch.arange(2), length)


def labelled(rows: RaggedRows) -> Examples:
    return Examples(rows, torch.zeros(2, dtype=torch.int64))


class Pooled(nn.Module):
    """Word vectors made one in some way."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.words = how, nn.Embedding(WORDS, 6)
        self.memory, self.last = nn.LSTM(6, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, ids: Tensor) -> Tensor:
        vectors, real = self.words(ids), (ids != 0).unsqueeze(2)
        if self.how == "last state":
            return self.last(self.memory(vectors)[0][:, -1])
        if self.how == "maximum":
            return self.last(vectors.max(dim=1).values)
        if self.how == "Fourier":
            return self.last(torch.fft.fft(vectors, dim=1).real[:, 0])
        if self.how == "length":
            return self.last(vectors[:, 0]) * ids.shape[1]
        if self.how == "mean in training":
            real = real | self.training
        elif self.how == "mean":
            real = torch.ones_like(real)
        return self.last((vectors * real).sum(dim=1) / real.sum(dim=1).clamp(min=1))


@pytest.mark.parametrize(
    "how", ["mean", "maximum", "last state", "Fourier", "length", "mean in training"]
)
def test_a_network_that_notices_padding_is_refused(how: str) -> None:
    with pytest.raises(UserError, match="depends on how far the text is padded"):
        check_padding(Pooled(how), labelled(texts()), WORDS)


def test_a_network_that_leaves_padding_out_passes_as_it_was() -> None:
    network = Pooled("mean of words").eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    check_padding(network, labelled(texts()), WORDS)
    assert not network.training
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)


class FirstHalf(Pooled):
    """Leaves padding out, but reads half of a batch that is wider than 64 tokens."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids[:, : max(64, ids.shape[1] // 2)])


def test_longer_texts_are_tried_too() -> None:
    with pytest.raises(UserError, match="depends on how far the text is padded"):
        check_padding(FirstHalf("mean of words"), labelled(texts(200)), WORDS)


class Named(Pooled):
    def forward(self, ids: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"logits": super().forward(ids)}


def test_a_network_may_return_its_outputs_by_name() -> None:
    check_padding(Named("mean of words"), labelled(texts()), WORDS)


def test_where_all_batches_have_one_width_nothing_is_refused() -> None:
    """A length within a bucket is the width of every batch, and so is that of plain tensors."""
    check_padding(Pooled("mean"), labelled(texts(length=32)), WORDS)
    plain = Examples(torch.ones(2, LENGTH, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
    check_padding(Pooled("mean"), plain, WORDS)


@pytest.mark.parametrize("task", ["classification", "masked-tokens"])
def test_the_models_of_the_suite_do_not_notice_padding(task: str) -> None:
    outputs = WORDS if task == "masked-tokens" else 2
    signature = Signature("tokens", (LENGTH,), outputs, task, vocabulary=WORDS)
    examples = MASKED.examples(texts()) if task == "masked-tokens" else labelled(texts())
    taken = [name for name, kind in MODELS.items() if kind.takes(signature)]
    assert len(taken) >= 3
    for name in taken:
        check_padding(tiny(name).build(signature, Path("weights")), examples, WORDS)


def test_dropout_does_not_count_as_padding() -> None:
    network = Pooled("mean of words")
    network.words = nn.Sequential(network.words, nn.Dropout(0.5))  # type: ignore[assignment]
    check_padding(network, labelled(texts()), WORDS)


def test_padding_is_tried_where_tokens_are_predicted() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.last = nn.Embedding(WORDS, 6), nn.Linear(6, WORDS)

        def forward(self, ids: Tensor) -> Tensor:
            vectors = self.words(ids)
            return self.last(vectors - vectors.mean(dim=1, keepdim=True))

    with pytest.raises(UserError, match="depends on how far the text is padded"):
        check_padding(Tagger(), MASKED.examples(texts()), WORDS)
