"""Reviews of films (IMDB) and of products (Amazon): positive or negative."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.data.base import Splits
from clipnoise.data.labelled import (
    Encode,
    LabelledTexts,
    Parts,
    Sequences,
    TokenisedTexts,
    hub_files,
    one_file_each,
)
from clipnoise.data.readers import parquet_rows
from clipnoise.data.remote import RemoteFile
from clipnoise.data.rows import RaggedWriter, SparseRows
from clipnoise.data.signature import Signature
from clipnoise.data.text import FIRST, MOST_IDS, Vocabulary, words_in
from clipnoise.fields import Count

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Counted = Literal["unlabelled", "private"]

UNLABELLED = one_file_each("plain_text", unlabelled="unsupervised")


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
        words: size of the vocabulary, the most frequent words first.
        counted: in which reviews words are counted. The 50,000 "unlabelled" ones are published
            beside the labelled ones and in no split here: they are public. "private" counts in the
            training file, as the released code does: the vocabulary then depends on private
            examples, which no noise covers, and ε is nominal.
    """

    prepared_with: ClassVar[tuple[str, ...]] = ("words", "counted")

    words: Count = 10_000
    counted: Counted = "unlabelled"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not FIRST < self.words <= MOST_IDS:
            raise ValueError(f"words must be above {FIRST} and at most {MOST_IDS}")

    @property
    def meaning(self) -> str:
        """What the words stand for."""
        return f"the {self.words} most frequent words of IMDB's {self.counted} reviews"

    def caveat(self) -> str | None:
        if self.counted == "unlabelled":
            return None
        return "the vocabulary was counted in the private reviews, which no noise covers"

    def vocabulary(self, cache: Path, size: int) -> Vocabulary:
        """Count a vocabulary of a given size.

        Raises:
            UserError: IMDB's raw files are missing or damaged, or have fewer words.
        """
        folder = Imdb().raw_files(cache).require()
        names = UNLABELLED["unlabelled"] if self.counted == "unlabelled" else Imdb.parts["train"]
        paths = [folder / f"{name}.parquet" for name in names]

        def texts() -> Iterator[str]:
            for path in paths:
                for (text,) in parquet_rows(path, Imdb.columns):
                    yield text

        return Vocabulary.counted(texts(), size, " and ".join(map(str, paths)))


@dataclass(frozen=True, kw_only=True)
class WordSequences(CountedWords, Sequences):
    """Base of reviews as sequences of words; two of the `words` ids are padding and unknown.

    Source: AdaDPS, Appendix B and released code (10,000 words, the first 290 of a review).
    """

    preprocessing: ClassVar[str] = (
        "lower case, without markup and punctuation; 0 is padding, 1 an unknown word"
    )

    prepared_with: ClassVar[tuple[str, ...]] = ("words", "counted", "length")

    length: Count = 290

    @property
    def signature(self) -> Signature:
        shape, words, meaning = (self.length,), self.words, self.meaning
        return Signature("tokens", shape, self.classes, vocabulary=words, meaning=meaning)

    def encoder(self, cache: Path, weights: Path) -> Encode:
        vocabulary = self.vocabulary(cache, self.words - FIRST)
        return partial(vocabulary.encode, length=self.length)


@dataclass(frozen=True, kw_only=True)
class ImdbWords(ImdbReviews, WordSequences):
    """IMDB reviews as sequences of words."""

    id: ClassVar[str] = "imdb-words"
    title: ClassVar[str] = "IMDB (words)"


@dataclass(frozen=True, kw_only=True)
class AmazonWords(AmazonReviews, WordSequences):
    """Amazon reviews as sequences of words, from the vocabulary of IMDB."""

    id: ClassVar[str] = "amazon-words"
    title: ClassVar[str] = "Amazon reviews (words)"


@dataclass(frozen=True, kw_only=True)
class BagOfWords(CountedWords):
    """Base of reviews as bags of words.

    Attributes:
        features: "bag-of-words" is the relative frequency of a word in a review; "tf-idf" is that
            times ln(reviews / reviews with the word), counted in the vocabulary's reviews.

    Source: AdaDPS, Appendix B and released code.
    """

    preprocessing: ClassVar[str] = (
        "lower case, without markup and punctuation; relative frequency of each word, or tf-idf"
    )
    prepared_with: ClassVar[tuple[str, ...]] = ("words", "counted", "features")

    features: Literal["bag-of-words", "tf-idf"] = "bag-of-words"

    @property
    def signature(self) -> Signature:
        meaning = f"{self.features} of {self.meaning}"
        return Signature("features", (self.words,), self.classes, meaning=meaning)

    def prepare(self, cache: Path) -> None:
        import numpy as np

        folder, vocabulary = self.raw_files(cache).require(), self.vocabulary(cache, self.words)
        idf = vocabulary.inverse_frequency if self.features == "tf-idf" else np.ones(self.words)
        arrays: dict[str, np.ndarray] = {}
        for part in self.parts:
            columns, values = RaggedWriter(cache, "uint16"), RaggedWriter(cache, "float32")
            labels = array("b")
            for (text,) in self.labelled(folder, part, labels):
                words = words_in(text)
                ranks, counts = vocabulary.counts(words)
                columns.append(ranks)
                values.append(counts / max(len(words), 1) * idf[ranks])
            arrays[f"{part}_starts"], arrays[f"{part}_columns"] = columns.arrays()
            arrays[f"{part}_values"] = values.arrays()[1]
            arrays[f"{part}_labels"] = np.array(labels)
        self.write(cache, arrays)

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
    """Amazon reviews as bags of IMDB's words: public data from outside IMDB's distribution."""

    id: ClassVar[str] = "amazon-bow"
    title: ClassVar[str] = "Amazon reviews (bags of words)"
