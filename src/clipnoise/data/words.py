"""Words as models without a pretrained tokenizer take them: a vocabulary counted in some texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from clipnoise.errors import UserError

if TYPE_CHECKING:
    import numpy as np

WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
MARKUP = re.compile(r"<[^>]*>")
PADDING, UNKNOWN, FIRST = 0, 1, 2  # ids in a sequence


def words_in(text: str) -> list[str]:
    """Return the words of a text in order: lower case, without markup and punctuation."""
    return WORD.findall(MARKUP.sub(" ", text.lower()))


@dataclass(frozen=True)
class Vocabulary:
    """The most frequent words of some texts.

    Attributes:
        words: the most frequent first; of equally frequent ones in alphabetical order.
        documents: in how many texts each occurs.
        texts: how many texts there were.
    """

    words: tuple[str, ...]
    documents: tuple[int, ...]
    texts: int

    @classmethod
    def counted(cls, texts: Iterable[str], size: int, source: str) -> Vocabulary:
        """Count the words of some texts.

        Args:
            texts: the texts.
            size: how many words to keep.
            source: what the texts are, for the error.

        Raises:
            UserError: there are fewer words.
        """
        counts: Counter[str] = Counter()
        documents: Counter[str] = Counter()
        number = 0
        for text in texts:
            found = words_in(text)
            counts.update(found)
            documents.update(set(found))
            number += 1
        if len(counts) < size:
            raise UserError(
                f"words: {size} are asked for, but {source} has only {len(counts)} different ones."
            )
        kept = sorted(counts, key=lambda word: (-counts[word], word))[:size]
        return cls(tuple(kept), tuple(documents[word] for word in kept), number)

    @cached_property
    def rank(self) -> dict[str, int]:
        """The place of each word, from 0."""
        return {word: place for place, word in enumerate(self.words)}

    @cached_property
    def inverse_frequency(self) -> np.ndarray:
        """Return ln(texts / texts with the word) of each word, float64 of shape (size,)."""
        import numpy as np

        return np.log(self.texts / np.array(self.documents))

    def counts(self, found: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of the words that occur, ascending, and how often each does."""
        import numpy as np

        places = [self.rank[word] for word in found if word in self.rank]
        columns, counts = np.unique(np.array(places, dtype="int64"), return_counts=True)
        return columns, counts

    def encode(self, texts: Iterable[Sequence[str]], length: int) -> Iterator[np.ndarray]:
        """Turn texts into ids: 1 for an unknown word, then the words from 2 on.

        Args:
            texts: one string an example.
            length: of the longest sequence; what follows is cut off.

        Yields:
            uint16 of shape (words of the text, at least 1,).
        """
        import numpy as np

        for (text,) in texts:
            found = words_in(text)[:length]
            ids = [self.rank[word] + FIRST if word in self.rank else UNKNOWN for word in found]
            yield np.array(ids or [UNKNOWN], dtype="uint16")
