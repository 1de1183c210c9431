"""Reviews of films (IMDB) and of products (Amazon): positive or negative."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from clipnoise.data.base import Splits
from clipnoise.data.cache import write_arrays
from clipnoise.data.fetch import RemoteFile, facts, require_raw
from clipnoise.data.labelled import (
    Encode,
    LabelledTexts,
    Parts,
    Sequences,
    hub_files,
    one_file_each,
)
from clipnoise.data.parquet import rows
from clipnoise.data.ragged import Ragged
from clipnoise.data.rows import SparseRows
from clipnoise.data.signature import Signature
from clipnoise.data.tokenised import TokenisedTexts
from clipnoise.data.words import FIRST, Vocabulary, words_in
from clipnoise.fields import Count

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Counted = Literal["unlabelled", "private"]

UNLABELLED = one_file_each("plain_text", unlabelled="unsupervised")
MOST_WORDS = 2**16  # ids are kept in 16 bits


class ImdbReviews(LabelledTexts):
    """Facts about the IMDB reviews."""

    licence: ClassVar[str] = "not stated by its authors"
    source: ClassVar[str] = (
        "A. Maas et al., Learning word vectors for sentiment analysis, ACL 2011; stanfordnlp/imdb "
        "on the Hugging Face hub"
    )
    split: ClassVar[str] = "the published 25,000 and 25,000; validation and public from the first"
    columns: ClassVar[tuple[str, ...]] = ("text",)
    classes: ClassVar[int] = 2
    parts: ClassVar[Parts] = one_file_each("plain_text", train="train", test="test")
    files: ClassVar[tuple[RemoteFile, ...]] = hub_files("stanfordnlp/imdb", {**parts, **UNLABELLED})
    raw: ClassVar[str] = "imdb"
    training_file: ClassVar[int] = 25_000
    test_file: ClassVar[int] = 25_000


class AmazonReviews(LabelledTexts):
    """Facts about the Amazon reviews: one and two stars are negative, four and five positive."""

    licence: ClassVar[str] = "not stated; reviews gathered by J. McAuley and J. Leskovec"
    source: ClassVar[str] = (
        "X. Zhang, J. Zhao, Y. LeCun, Character-level convolutional networks for text "
        "classification, NIPS 2015; fancyzhx/amazon_polarity on the Hugging Face hub"
    )
    split: ClassVar[str] = "the published 3,600,000 and 400,000; validation and public of the first"
    columns: ClassVar[tuple[str, ...]] = ("content",)
    classes: ClassVar[int] = 2
    parts: ClassVar[Parts] = {
        "train": tuple(f"amazon_polarity/train-0000{i}-of-00004" for i in range(4)),
        **one_file_each("amazon_polarity", test="test"),
    }
    files: ClassVar[tuple[RemoteFile, ...]] = hub_files("fancyzhx/amazon_polarity", parts)
    raw: ClassVar[str] = "amazon"
    training_file: ClassVar[int] = 3_600_000
    test_file: ClassVar[int] = 400_000


@dataclass(frozen=True, kw_only=True)
class Imdb(ImdbReviews, TokenisedTexts):
    """IMDB reviews for a pretrained model."""

    id: ClassVar[str] = "imdb"
    title: ClassVar[str] = "IMDB"


@dataclass(frozen=True, kw_only=True)
class Amazon(AmazonReviews, TokenisedTexts):
    """Amazon reviews for a pretrained model."""

    id: ClassVar[str] = "amazon"
    title: ClassVar[str] = "Amazon reviews"


@dataclass(frozen=True, kw_only=True)
class CountedWords(LabelledTexts):
    """Base of reviews as words from a vocabulary that is counted in IMDB reviews.

    Attributes:
        words: how many words are kept, the most frequent first.
        counted: in which reviews. The 50,000 "unlabelled" ones are published beside the labelled
            ones and in no split here: they are public. "private" counts in the training file, as
            the released code does: what the words are then depends on private examples, no noise
            covers that, and ε is nominal.
    """

    words: Count = 10_000
    counted: Counted = "unlabelled"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not FIRST < self.words <= MOST_WORDS:
            raise ValueError(f"words must be above {FIRST} and at most {MOST_WORDS}")

    @property
    def prepared(self) -> str:
        return f"{self.id}@" + "-".join(str(value) for value in self.preparation().values())

    @property
    def meaning(self) -> str:
        """What the words are."""
        return f"the {self.words} most frequent words of IMDB's {self.counted} reviews"

    def preparation(self) -> dict[str, Any]:
        return {"words": self.words, "counted": self.counted}

    def caveat(self) -> str | None:
        if self.counted == "unlabelled":
            return None
        return "the vocabulary was counted in the private reviews, which no noise covers"

    def vocabulary(self, cache: Path, size: int) -> Vocabulary:
        """Count the vocabulary, of some number of words.

        Raises:
            UserError: IMDB's raw files are missing or damaged, or have fewer words.
        """
        folder = require_raw(cache, Imdb())
        names = UNLABELLED["unlabelled"] if self.counted == "unlabelled" else Imdb.parts["train"]
        paths = [folder / f"{name}.parquet" for name in names]

        def texts() -> Iterator[str]:
            for path in paths:
                for (text,) in rows(path, Imdb.columns):
                    yield text

        return Vocabulary.counted(texts(), size, " and ".join(map(str, paths)))


@dataclass(frozen=True, kw_only=True)
class WordSequences(CountedWords, Sequences):
    """Base of reviews as words in a row; of `words` ids, two are padding and the unknown word.

    Source: AdaDPS, Appendix B and released code (10,000 words, the first 290 of a review).
    """

    preprocessing: ClassVar[str] = (
        "lower case, without markup and punctuation; 0 is padding, 1 an unknown word"
    )

    length: Count = 290

    @property
    def signature(self) -> Signature:
        return Signature(
            "tokens",
            (self.length,),
            self.classes,
            vocabulary=self.words,
            meaning=self.meaning,
        )

    def preparation(self) -> dict[str, Any]:
        return {**super().preparation(), "length": self.length}

    def encoder(self, cache: Path, weights: Path) -> Encode:
        vocabulary = self.vocabulary(cache, self.words - FIRST)
        return partial(vocabulary.encode, length=self.length)


@dataclass(frozen=True, kw_only=True)
class ImdbWords(ImdbReviews, WordSequences):
    """IMDB reviews as words in a row."""

    id: ClassVar[str] = "imdb-words"
    title: ClassVar[str] = "IMDB (words)"


@dataclass(frozen=True, kw_only=True)
class AmazonWords(AmazonReviews, WordSequences):
    """Amazon reviews as words in a row, from the vocabulary of IMDB."""

    id: ClassVar[str] = "amazon-words"
    title: ClassVar[str] = "Amazon reviews (words)"


@dataclass(frozen=True, kw_only=True)
class BagOfWords(CountedWords):
    """Base of reviews as bags of words.

    Attributes:
        features: "bag-of-words" is the share that a word has in the words of a review; "tf-idf" is
            that times ln(reviews / reviews with the word), counted where the vocabulary is.

    Source: AdaDPS, Appendix B and released code.
    """

    preprocessing: ClassVar[str] = (
        "lower case, without markup and punctuation; the share of each word in a review, or tf-idf"
    )

    features: Literal["bag-of-words", "tf-idf"] = "bag-of-words"

    @property
    def signature(self) -> Signature:
        meaning = f"{self.features} of {self.meaning}"
        return Signature("features", (self.words,), self.classes, meaning=meaning)

    def preparation(self) -> dict[str, Any]:
        return {**super().preparation(), "features": self.features}

    def prepare(self, cache: Path) -> None:
        import numpy as np

        folder, vocabulary = require_raw(cache, self), self.vocabulary(cache, self.words)
        idf = vocabulary.inverse_frequency if self.features == "tf-idf" else np.ones(self.words)
        arrays: dict[str, np.ndarray] = {}
        for part in self.parts:
            columns, values, labels = Ragged(cache, "uint16"), Ragged(cache, "float32"), array("b")
            for (text,) in self.labelled(folder, part, labels):
                found = words_in(text)
                places, counts = vocabulary.counts(found)
                columns.append(places)
                values.append(counts / max(len(found), 1) * idf[places])
            arrays[f"{part}_starts"], arrays[f"{part}_columns"] = columns.arrays()
            arrays[f"{part}_values"] = values.arrays()[1]
            arrays[f"{part}_labels"] = np.array(labels)
        write_arrays(cache / self.prepared, arrays, facts(cache, self))

    def load(self, cache: Path) -> Splits:
        import torch

        def bags(arrays: dict[str, np.ndarray], part: str, chosen: Tensor) -> SparseRows:
            starts, columns = arrays[f"{part}_starts"], arrays[f"{part}_columns"]
            values = arrays[f"{part}_values"]
            return SparseRows(starts, columns, values, self.words, chosen, torch.float32)

        return self.cut_texts(cache, bags)


@dataclass(frozen=True, kw_only=True)
class ImdbBow(ImdbReviews, BagOfWords):
    """IMDB reviews as bags of words."""

    id: ClassVar[str] = "imdb-bow"
    title: ClassVar[str] = "IMDB (bags of words)"


@dataclass(frozen=True, kw_only=True)
class AmazonBow(AmazonReviews, BagOfWords):
    """Amazon reviews as bags of the words of IMDB: public data out of IMDB's distribution."""

    id: ClassVar[str] = "amazon-bow"
    title: ClassVar[str] = "Amazon reviews (bags of words)"
