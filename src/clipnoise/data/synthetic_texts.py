"""Sequences of tokens drawn from known distributions: what stands in for texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.data.base import Examples
from clipnoise.data.drawn import DrawnByPart
from clipnoise.data.masking import MaskedRows, Masking
from clipnoise.data.rows import RaggedRows
from clipnoise.data.signature import Signature
from clipnoise.fields import Count, Fraction

if TYPE_CHECKING:
    import numpy as np

CLS, SEP, MASK, WORDS = 101, 102, 103, 104  # BERT's special tokens, and the first other token


@dataclass(frozen=True, kw_only=True)
class SyntheticZipf(DrawnByPart):
    """Texts whose common tokens say nothing, and whose rare tokens carry the label.

    Common tokens follow Zipf's law: the k-th has probability ∝ 1/k. The last fifth of the
    vocabulary is rare and is dealt to the classes; an example has some of its class's.

    Attributes:
        vocabulary: how many tokens there are, 0 for padding included.
        length: tokens of an example.
        classes: how many classes there are.
        rare: the share of tokens that are rare; at least one token of every example is.
    """

    id: ClassVar[str] = "synthetic-zipf"
    title: ClassVar[str] = "Synthetic texts with telling rare words"

    vocabulary: Count = 1000
    length: Count = 32
    classes: Count = 2
    rare: Fraction = 0.1

    def __post_init__(self) -> None:
        if self.vocabulary // 5 < self.classes:
            raise ValueError("vocabulary must have five tokens for every class at least")

    @property
    def signature(self) -> Signature:
        return Signature("tokens", (self.length,), self.classes, vocabulary=self.vocabulary)

    def draw(self, part: str, count: int, draws: np.random.Generator) -> Examples:
        import numpy as np
        import torch

        common = self.vocabulary - self.vocabulary // 5
        ranks = 1 / np.arange(1, common)
        tokens = 1 + draws.choice(common - 1, (count, self.length), p=ranks / ranks.sum())
        labels = draws.integers(self.classes, size=count)
        each = (self.vocabulary - common) // self.classes
        telling = common + labels[:, None] * each + draws.integers(each, size=tokens.shape)
        places = draws.random(tokens.shape) < self.rare
        places[np.arange(count), draws.integers(self.length, size=count)] = True
        inputs = np.where(places, telling, tokens)
        return Examples(torch.from_numpy(inputs), torch.from_numpy(labels))


@dataclass(frozen=True, kw_only=True)
class SyntheticTokens(DrawnByPart):
    """Sequences in the form of BERT's inputs, of different lengths.

    "classification": `[CLS] words [SEP]`; the class is told by which words are frequent. "pairs":
    `[CLS] one [SEP] other [SEP]`; the second repeats the first, moved by as many words as the class
    says. "masked-tokens": every word follows from the one before.

    Attributes:
        asks: what is asked.
        vocabulary: how many tokens there are; the special ones have BERT's ids, below 104.
        length: of the longest sequence.
        classes: how many classes there are.
    """

    id: ClassVar[str] = "synthetic-tokens"
    title: ClassVar[str] = "Synthetic sequences of tokens"

    asks: Literal["classification", "pairs", "masked-tokens"] = "classification"
    vocabulary: Count = 256
    length: Count = 32
    classes: Count = 2

    def __post_init__(self) -> None:
        if self.vocabulary < WORDS + 8 * self.classes:
            raise ValueError(f"vocabulary must be at least {WORDS + 8 * self.classes}")
        if self.length < 8:
            raise ValueError("length must be at least 8")

    @property
    def signature(self) -> Signature:
        size = self.vocabulary
        if self.asks == "masked-tokens":
            return Signature("tokens", (self.length,), size, "masked-tokens", vocabulary=size)
        return Signature("tokens", (self.length,), self.classes, vocabulary=size)

    def draw(self, part: str, count: int, draws: np.random.Generator) -> Examples:
        import numpy as np
        import torch

        labels = draws.integers(self.classes, size=count)
        sequences = [self._sequence(int(label), draws) for label in labels]
        starts = np.cumsum([0, *map(len, sequences)])
        values = np.concatenate([np.zeros(0, "int64"), *sequences])
        rows = RaggedRows(starts, values, torch.arange(count), self.length)
        if self.asks != "masked-tokens":
            return Examples(rows, torch.from_numpy(labels))
        masking = Masking(self.split_seed, MASK, WORDS, self.vocabulary)
        return Examples(MaskedRows(rows, masking, False), MaskedRows(rows, masking, True))

    def _sequence(self, label: int, draws: np.random.Generator) -> np.ndarray:
        """Return one sequence, int64 of shape (its length,)."""
        import numpy as np

        words = self.vocabulary - WORDS
        longest = self.length - 2 if self.asks != "pairs" else (self.length - 3) // 2
        count = int(draws.integers(max(2, longest // 2), longest + 1))
        if self.asks == "masked-tokens":
            first, stride = draws.integers(words, size=2)
            text = (first + (1 + stride % 8) * np.arange(count)) % words
        else:
            text = draws.integers(words, size=count)
        if self.asks == "classification":
            own = draws.integers(words // self.classes, size=count) * self.classes + label
            text = np.where(draws.random(count) < 0.5, own, text)
        pieces = [text] if self.asks != "pairs" else [text, (text + label) % words]
        return np.concatenate([[CLS], *(np.append(WORDS + piece, SEP) for piece in pieces)])
