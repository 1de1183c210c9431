"""Texts with a label, in Parquet files as on the Hugging Face hub: sentences, pairs, reviews."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from clipnoise.data.base import Partitioned, TokenCounts, dataset_class
from clipnoise.data.rows import SPARSE, RaggedRows, RaggedWriter, SparseRows
from clipnoise.data.signature import Signature
from clipnoise.data.text import (
    FIRST,
    MOST_IDS,
    TOKENIZERS,
    Tokenizer,
    TokenizerName,
    Vocabulary,
    ranks_and_counts,
    words_in,
)
from clipnoise.errors import UserError, unknown
from clipnoise.fields import Count
from clipnoise.lazy import Tensor, np

Encode: TypeAlias = "Callable[[Iterable[Sequence[str]]], Iterator[np.ndarray]]"

NO_LABEL = -1
UNLABELLED = "unlabelled"  # the part of a source whose texts have no label
FIXED_LENGTH = 290  # words of a review in the released code of AdaDPS
ROWS_AT_ONCE = 4096


def parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield some columns of each row of a Parquet file, reading it in pieces.

    Raises:
        UserError: the file is truncated or damaged, lacks a column, or has a missing value.
    """
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

    done = 0
    try:
        file = ParquetFile(path)
        for column in columns:
            if column not in file.schema_arrow.names:
                raise unknown("column", column, file.schema_arrow.names, file=str(path))
        for piece in file.iter_batches(ROWS_AT_ONCE, columns=list(columns)):
            values = [piece.column(column) for column in columns]
            for column, held in zip(columns, values, strict=True):
                if held.null_count:
                    end = done + len(piece)
                    raise UserError(f"{path}: {column}: a missing value in rows {done} to {end}.")
            yield from zip(*(held.to_pylist() for held in values), strict=True)
            done += len(piece)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a Parquet file, or truncated or damaged ({error}).") from None


@dataclass(frozen=True, kw_only=True)
class LabelledTexts(Partitioned):
    """Base of the datasets whose raw files are texts with a label.

    Attributes:
        columns: of the text: one for a sentence, two for a pair.
        classes: number of labels.
        drops_unlabelled: whether rows with the label −1 are left out; elsewhere they are an error.
    """

    columns: ClassVar[tuple[str, ...]]
    classes: ClassVar[int]
    drops_unlabelled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_pieces("train", self.test_part)
        if self.validation_file:
            self.require_pieces("validation")

    @property
    def labelled_parts(self) -> tuple[str, ...]:
        """The parts of the source whose texts have labels."""
        return tuple(part for part in self.pieces if part != UNLABELLED)

    def labelled(self, folder: Path, part: str, labels: array[int]) -> Iterator[Sequence[str]]:
        """Yield the texts of a part; the label of each is appended as it is yielded.

        Raises:
            UserError: a file is damaged, lacks a column, or holds an invalid label.
        """
        for name in self.pieces[part]:
            path = folder / name
            for *text, label in parquet_rows(path, (*self.columns, "label")):
                if label == NO_LABEL and self.drops_unlabelled:
                    continue
                if not isinstance(label, int) or not 0 <= label < self.classes:
                    allowed = f"0 to {self.classes - 1}"
                    raise UserError(f"{path}: the label {label!r}; allowed are {allowed}.")
                labels.append(label)
                yield text

    def owners(self, folder: Path) -> dict[str, np.ndarray]:
        """Return the user of each text of the training file as arrays to be prepared, if known.

        Raises:
            UserError: as for `labelled`.
        """
        return {}


@dataclass(frozen=True, kw_only=True)
class Sequences(LabelledTexts):
    """Base of texts as token ids, kept as ragged rows.

    Attributes:
        length: the most tokens of an example, special tokens included.
    """

    length: Count = 128

    def encoder(self, cache: Path, weights: Path) -> tuple[Encode, TokenCounts | None]:
        """Return the function that turns texts into token ids, and the counts of public text.

        Raises:
            UserError: a file that it needs is missing or damaged.
        """
        raise NotImplementedError

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        folder = self.raw_files(cache).require()
        encode, counts = self.encoder(cache, weights or cache.parent / "weights")
        arrays = {} if counts is None else counts.arrays()
        for part in self.labelled_parts:
            ids, labels = RaggedWriter(cache, "uint16"), array("b")
            for row in encode(self.labelled(folder, part, labels)):
                ids.append(row)
            arrays[f"{part}_starts"], arrays[f"{part}_ids"] = ids.arrays()
            arrays[f"{part}_labels"] = np.array(labels)
        self.write(cache, arrays | self.owners(folder))

    def inputs_of(self, arrays: dict[str, np.ndarray], part: str, rows: Tensor) -> RaggedRows:
        return RaggedRows(arrays[f"{part}_starts"], arrays[f"{part}_ids"], rows, self.length)


@dataclass(frozen=True, kw_only=True)
class TokenisedTexts(Sequences):
    """Base of texts for a pretrained model; of a pair the longer text is truncated.

    Attributes:
        tokenizer: the model whose tokenizer is used, from the weights folder.
    """

    preprocessing = (
        "tokenised with the special tokens of the model, as [CLS] one [SEP] other [SEP] or "
        "[CLS] text [SEP]; 0 is padding"
    )
    prepared_with = ("tokenizer", "length")
    reader = "tokenised-texts"

    tokenizer: TokenizerName = "bert-base"

    @property
    def signature(self) -> Signature:
        vocabulary = TOKENIZERS[self.tokenizer].vocabulary
        return Signature("tokens", (self.length,), self.classes, vocabulary=vocabulary)

    def encoder(self, cache: Path, weights: Path) -> tuple[Encode, TokenCounts | None]:
        return Tokenizer(self.tokenizer, weights, self.length).encode, None


@dataclass(frozen=True, kw_only=True)
class Mnli(TokenisedTexts):
    """MNLI, which has two test sets.

    Attributes:
        mismatched_file: number of examples in the second one.
        genres: whether the test sentences match the genres of the training sentences.
    """

    reader = "mnli"
    mismatched_file: ClassVar[int]

    genres: Literal["matched", "mismatched"] = "matched"

    @property
    def test_part(self) -> str:
        return self.genres

    def sizes(self) -> dict[str, int]:
        mismatched = self.genres == "mismatched" and self.test_examples is None
        return {**super().sizes(), **({"test": self.mismatched_file} if mismatched else {})}


@dataclass(frozen=True, kw_only=True)
class CountedWords(LabelledTexts):
    """Base of texts as words from a counted vocabulary; `counted` is an option that says where.

    Attributes:
        words: size of the vocabulary, the most frequent words first.
    """

    words: Count = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not FIRST < self.words <= MOST_IDS:
            raise ValueError(f"words must be above {FIRST} and at most {MOST_IDS}")

    @property
    def meaning(self) -> str:
        """What the words stand for."""
        raise NotImplementedError

    def vocabulary(self, cache: Path, size: int) -> Vocabulary:
        """Count a vocabulary of a given size; missing, damaged or short files raise UserError."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class CountedInImdb(CountedWords):
    """Base of reviews as words from a vocabulary that is counted in IMDB reviews.

    Attributes:
        counted: in which reviews words are counted. The 50,000 "unlabelled" ones are published
            beside the labelled ones and in no split here: they are public. "private" counts in the
            training file, as the released code does: the vocabulary then depends on private
            examples, which no noise covers, and ε is nominal.
    """

    counted: Literal["unlabelled", "private"] = "unlabelled"

    @property
    def meaning(self) -> str:
        return f"the {self.words} most frequent words of IMDB's {self.counted} reviews"

    def caveat(self) -> str | None:
        if self.counted == "unlabelled":
            return None
        return "the vocabulary was counted in the private reviews, which no noise covers"

    def counted_in(self) -> str | None:
        return "IMDB's 50,000 unlabelled reviews" if self.counted == "unlabelled" else None

    def vocabulary(self, cache: Path, size: int) -> Vocabulary:
        imdb = dataset_class("imdb")()
        assert isinstance(imdb, LabelledTexts)
        folder = imdb.raw_files(cache).require()
        part = UNLABELLED if self.counted == UNLABELLED else "train"
        paths = [folder / name for name in imdb.pieces[part]]
        texts = (text for path in paths for (text,) in parquet_rows(path, imdb.columns))
        return Vocabulary.counted(texts, size, " and ".join(map(str, paths)))


@dataclass(frozen=True, kw_only=True)
class WordSequences(CountedWords, Sequences):
    """Base of texts as sequences of words; two of the `words` ids are padding and unknown.

    Source: AdaDPS, Appendix B and released code (10,000 words, the first 290 of a review).
    """

    preprocessing = "lower case, without markup and punctuation; 0 is padding, 1 an unknown word"

    prepared_with = ("words", "counted", "length")

    length: Count = FIXED_LENGTH

    @property
    def signature(self) -> Signature:
        shape, words, meaning = (self.length,), self.words, self.meaning
        return Signature("tokens", shape, self.classes, vocabulary=words, meaning=meaning)

    def encoder(self, cache: Path, weights: Path) -> tuple[Encode, TokenCounts | None]:
        vocabulary = self.vocabulary(cache, self.words - FIRST)
        return partial(vocabulary.encode, length=self.length), vocabulary.counts_of_ids


@dataclass(frozen=True, kw_only=True)
class ReviewWords(CountedInImdb, WordSequences):
    """Reviews as sequences of words."""

    reader = "review-words"


@dataclass(frozen=True, kw_only=True)
class BagOfWords(CountedWords):
    """Base of texts as bags of words.

    Attributes:
        features: "bag-of-words" is the relative frequency of a word in a review; "tf-idf" is that
            times the logarithm of reviews / reviews with the word, counted in the vocabulary's
            reviews.
        scale: "review": a frequency is relative to the number of the review's words, and the
            logarithm natural. "released-code": only the first 290 words count, a frequency is
            relative to 290, and the logarithm has base 10, as in AdaDPS's imdb/data; clip norms and
            learning rates of its Table 5 belong to this scale.

    Source: AdaDPS, Appendix B and released code.
    """

    preprocessing = "lower case, without markup and punctuation; frequency of each word, or tf-idf"
    prepared_with = ("words", "counted", "features", "scale")

    features: Literal["bag-of-words", "tf-idf"] = "bag-of-words"
    scale: Literal["review", "released-code"] = "review"

    @property
    def signature(self) -> Signature:
        scale = "" if self.scale == "review" else f" ({self.scale})"
        meaning = f"{self.features}{scale} of {self.meaning}"
        return Signature("features", (self.words,), self.classes, meaning=meaning)

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        folder, vocabulary = self.raw_files(cache).require(), self.vocabulary(cache, self.words)
        idf = vocabulary.inverse_frequency if self.features == "tf-idf" else np.ones(self.words)
        fixed = self.scale == "released-code"
        if fixed and self.features == "tf-idf":
            idf = idf / np.log(10)
        arrays = vocabulary.counts.arrays()
        for part in self.labelled_parts:
            bags, labels = RaggedWriter(cache, "uint16", "float32"), array("b")
            for (text,) in self.labelled(folder, part, labels):
                words = words_in(text)[: FIXED_LENGTH if fixed else None]
                ranks, counts = ranks_and_counts(words, vocabulary.rank)
                length = FIXED_LENGTH if fixed else max(len(words), 1)
                bags.append(ranks, counts / length * idf[ranks])
            found = zip(SPARSE, bags.arrays(), strict=True)
            arrays |= {f"{part}_{name}": values for name, values in found}
            arrays[f"{part}_labels"] = np.array(labels)
        self.write(cache, arrays | self.owners(folder))

    def inputs_of(self, arrays: dict[str, np.ndarray], part: str, rows: Tensor) -> SparseRows:
        starts, columns, values = (arrays[f"{part}_{name}"] for name in SPARSE)
        return SparseRows(starts, columns, values, self.words, rows)


@dataclass(frozen=True, kw_only=True)
class ReviewBags(CountedInImdb, BagOfWords):
    """Reviews as bags of words."""

    reader = "review-bags"
