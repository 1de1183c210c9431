"""Text as token ids: pretrained tokenizers, counted vocabularies, and masking.

Token ids are those of the tokenizer, with one exception: 0 is padding everywhere, so where a
tokenizer pads with another id the two are swapped. The models swap them back.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from clipnoise.data.base import Examples, TokenCounts
from clipnoise.data.rows import RaggedRows, Rows, positions
from clipnoise.data.signature import NO_TARGET
from clipnoise.errors import UserError
from clipnoise.lazy import Tensor, np, torch
from clipnoise.models.pretrained import Weights
from clipnoise.seeds import GAMMA, derive, mix64

TokenizerName = Literal["bert-base", "bert-large", "tiny-bert", "roberta-base"]

BATCH = 1000  # texts tokenised at once
TARGETS, HIDDEN, REPLACED = 0.15, 0.8, 0.1  # shares: of tokens to predict; of these, what is done
WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
MARKUP = re.compile(r"<[^>]*>")
UNKNOWN, FIRST = 1, 2  # ids in a sequence of words; 0 is padding
MOST_IDS = 2**16  # ids are kept in 16 bits


@dataclass(frozen=True)
class Tokens:
    """What is known about a tokenizer before its file is read.

    Attributes:
        vocabulary: number of token ids.
        padding: the id of padding in the tokenizer's own numbering.
        mask: the id of the mask.
        words: the first id of ordinary tokens; lower ids are special tokens.
        names: of padding and mask in the file, where these are known.
        lowercase: whether text is lowercased, where the file is a plain vocabulary.
    """

    vocabulary: int
    padding: int
    mask: int
    words: int
    names: tuple[str, ...]
    lowercase: bool = False

    @property
    def end(self) -> int:
        """One past the last id of ordinary tokens: RoBERTa's mask comes last."""
        return self.mask if self.mask > self.words else self.vocabulary


BERT_NAMES = ("[PAD]", "[MASK]")
BERT = Tokens(28_996, 0, 103, 104, BERT_NAMES)
TOKENIZERS = {
    "bert-base": BERT,
    "bert-large": BERT,
    "tiny-bert": Tokens(30_522, 0, 103, 104, BERT_NAMES, lowercase=True),
    "roberta-base": Tokens(50_265, 1, 50_264, 4, ("<pad>", "<mask>")),
}


class Tokenizer:
    """A tokenizer from the weights folder of its model."""

    def __init__(
        self, name: str, weights: Path, length: int, vocabulary: int | None = None
    ) -> None:
        """Read `<weights>/<name>/tokenizer.json`, or `vocab.txt` where only this exists.

        Args:
            name: the model's id, or any folder with a tokenizer.json and a config.json.
            weights: the folder of pretrained weights.
            length: of the longest sequence, special tokens included; of a pair the longer text is
                truncated.
            vocabulary: how many token ids its model has; None for a model with an id.

        Raises:
            UserError: the files are missing or damaged, or belong to another model.
        """
        known = TOKENIZERS.get(name)
        if known is None:
            padding = Weights(name, weights).config().get("pad_token_id") or 0
            self.facts = Tokens(vocabulary or 0, padding, mask=0, words=0, names=())
        else:
            self.facts = known
        path, self._tokenizer = _read(name, weights, self.facts)
        size, wanted = self._tokenizer.get_vocab_size(True), self.facts.vocabulary
        if size > wanted or (known and size != wanted):  # a model may have more ids than are used
            raise UserError(
                f"{path}: a vocabulary of {size} tokens, but {name} has {wanted}: "
                "it is another model's tokenizer."
            )
        expectations = zip(self.facts.names, (self.facts.padding, self.facts.mask), strict=False)
        for word, expected in expectations:
            if self._tokenizer.token_to_id(word) != expected:
                raise UserError(f"{path}: {word} is not token {expected}, as {name} has it.")
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(length)

    def encode(self, texts: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        """Tokenise texts, one or two strings per example, with the special tokens of the model.

        Yields:
            The token ids of each, uint16 (or int32 if they need it) of shape (its length,).
        """
        kind = "uint16" if self.facts.vocabulary <= MOST_IDS else "int32"
        padding = self.facts.padding
        rest = iter(texts)
        while batch := list(islice(rest, BATCH)):
            inputs = [tuple(text) if len(text) > 1 else text[0] for text in batch]
            for encoding in self._tokenizer.encode_batch_fast(inputs):
                ids = np.array(encoding.ids, dtype=kind)
                first, pad = ids == 0, ids == padding
                ids[first], ids[pad] = padding, 0  # nothing changes where padding is 0
                yield ids


def _read(name: str, weights: Path, facts: Tokens) -> tuple[Path, Any]:
    """Return the file of a tokenizer, and the tokenizer."""
    import tokenizers
    from tokenizers.models import WordPiece

    whole, plain = weights / name / "tokenizer.json", weights / name / "vocab.txt"
    try:
        if whole.exists():
            return whole, tokenizers.Tokenizer.from_file(str(whole))
        words = WordPiece.read_file(str(plain)) if plain.exists() else None
    except Exception as error:  # the library raises nothing narrower for a damaged file
        raise UserError(f"{whole.parent}: the tokenizer is damaged ({error}).") from None
    if words is not None and facts.names == BERT_NAMES:
        tokenizer = tokenizers.BertWordPieceTokenizer(words, lowercase=facts.lowercase)
        return plain, tokenizer._tokenizer
    raise UserError(
        f"{whole}: no tokenizer there. Run: clipnoise weights fetch {name} --weights {weights}"
    )


def words_in(text: str) -> list[str]:
    """Return the words of a text in order: lower case, without markup and punctuation."""
    return WORD.findall(MARKUP.sub(" ", text.lower()))


def most_frequent(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """Return the rank of the most frequent entries from 0; ties are in alphabetical order."""
    order = sorted(counts, key=lambda entry: (-counts[entry], entry))
    return {entry: rank for rank, entry in enumerate(order[:size])}


def ranks_and_counts(
    words: Iterable[str], rank: Mapping[str, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranks of the known words that occur, ascending, and how often each does."""
    known = [rank[word] for word in words if word in rank]
    ranks, counts = np.unique(np.array(known, dtype="int64"), return_counts=True)
    return ranks, counts


@dataclass(frozen=True)
class Vocabulary:
    """The most frequent words of some texts.

    Attributes:
        rank: of each word from 0, the most frequent first; ties are in alphabetical order.
        counts: of each word, in that order.
        unknown: how many other words the texts have, repetitions included.
    """

    rank: dict[str, int]
    counts: TokenCounts
    unknown: int

    @classmethod
    def counted(cls, texts: Iterable[str], size: int, source: str) -> Vocabulary:
        """Count the words of some texts, and keep so many.

        Raises:
            UserError: there are fewer words; names the source.
        """
        counts, documents, number = Counter[str](), Counter[str](), 0
        for text in texts:
            words = words_in(text)
            counts.update(words)
            documents.update(set(words))
            number += 1
        if len(counts) < size:
            raise UserError(
                f"words: {size} are asked for, but {source} has only {len(counts)} different ones."
            )
        rank = most_frequent(counts, size)
        occurrences, texts_with = (
            np.array([counter[word] for word in rank]) for counter in (counts, documents)
        )
        unknown = counts.total() - int(occurrences.sum())
        return cls(rank, TokenCounts(occurrences, texts_with, number), unknown)

    @property
    def inverse_frequency(self) -> np.ndarray:
        """Return ln(texts / texts with the word) of each word, float64 of shape (size,)."""
        return np.log(self.counts.texts / self.counts.texts_with)

    @property
    def counts_of_ids(self) -> TokenCounts:
        """Return the counts by token id: padding occurs nowhere, unknown words in every text."""
        special = (np.array([0, self.unknown]), np.array([0, self.counts.texts]))
        words = (self.counts.occurrences, self.counts.texts_with)
        occurrences, texts_with = map(np.concatenate, zip(special, words, strict=True))
        return TokenCounts(occurrences, texts_with, self.counts.texts)

    def encode(self, texts: Iterable[Sequence[str]], length: int) -> Iterator[np.ndarray]:
        """Turn texts into ids: 1 for an unknown word, then the words from 2 on.

        Longer texts than `length` are truncated; one without words has one unknown word.

        Yields:
            uint16 of shape (words of the text,).
        """
        for (text,) in texts:
            words = words_in(text)[:length]
            ids = [self.rank[word] + FIRST if word in self.rank else UNKNOWN for word in words]
            yield np.array(ids or [UNKNOWN], dtype="uint16")


@dataclass(frozen=True)
class Masking:
    """Which tokens are to be predicted: a share of the ordinary ones.

    Of these 80% are hidden by the mask, 10% replaced by a random token, and 10% left. The choice
    follows from the seed, the row and the position, so nothing is stored, and an example has the
    same targets in every epoch.

    Attributes:
        seed: the split seed.
        mask: the token id of the mask.
        first, end: ordinary tokens have the ids from `first` up to `end`, exclusive.

    Source: Devlin et al. 2019, BERT, section 3.1.
    """

    seed: int
    mask: int
    first: int
    end: int

    def examples(self, rows: RaggedRows) -> Examples:
        """Return masked tokens as inputs, with the tokens to predict as targets."""
        return Examples(MaskedRows(rows, self, False), MaskedRows(rows, self, True))

    def targets(self, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return the tokens to predict.

        Args:
            rows: the number of each example, int64 of shape (b,).
            tokens: int64 of shape (b, width).

        Returns:
            The true token where one is to be predicted, −100 elsewhere; int64 of shape (b, width).
        """
        ordinary = (tokens >= self.first) & (tokens < self.end)
        chosen = ordinary & (self._uniform(rows, tokens.shape[1], 0) < TARGETS)
        return np.where(chosen, tokens, NO_TARGET)

    def inputs(self, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return the tokens that a model sees; arguments and shape as for `targets`."""
        width = tokens.shape[1]
        chosen = self.targets(rows, tokens) != NO_TARGET
        way, other = self._uniform(rows, width, 1), self._uniform(rows, width, 2)
        others = self.first + (other * (self.end - self.first)).astype("int64")
        changed = np.where(way < HIDDEN, self.mask, others)
        return np.where(chosen & (way < HIDDEN + REPLACED), changed, tokens)

    def _uniform(self, rows: np.ndarray, width: int, stream: int) -> np.ndarray:
        """Return numbers in [0, 1) from SplitMix64 at a counter, float64 of shape (b, width)."""
        key, gamma = np.uint64(derive("split", self.seed)), np.uint64(GAMMA)
        positions = np.arange(width, dtype="uint64") * np.uint64(3) + np.uint64(stream)
        mixed = mix64(rows.astype("uint64")[:, None] + key + gamma)
        return (mix64(mixed + positions + gamma) >> np.uint64(11)) / 2.0**53


@dataclass(frozen=True)
class MaskedRows(Rows):
    """Ragged rows of tokens with some of them masked, or the tokens to predict.

    Attributes:
        rows: the tokens.
        masking: which tokens are to be predicted.
        targets: whether these are the targets, not the inputs.
    """

    rows: RaggedRows
    masking: Masking
    targets: bool

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        places = positions(self.rows.chosen, chosen)
        draw = self.masking.targets if self.targets else self.masking.inputs
        return torch.from_numpy(draw(places, self.rows.padded(places))).to(self.device)
