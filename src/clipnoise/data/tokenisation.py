"""The tokenizers of pretrained models: text to token ids, once, when a dataset is prepared.

Token ids are those of the tokenizer, with one exception: 0 is padding everywhere, so where a
tokenizer pads with another id the two change places. The models know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clipnoise.data.base import Dataset
from clipnoise.errors import UserError

if TYPE_CHECKING:
    import numpy as np

TokenizerName = Literal["bert-base", "bert-large", "tiny-bert", "roberta-base"]

BATCH = 1000  # texts tokenised at once


@dataclass(frozen=True)
class Tokens:
    """What is known of a tokenizer before its file is read.

    Attributes:
        vocabulary: how many token ids there are.
        padding: the id of padding in the tokenizer's own numbering.
        mask: the id of the mask.
        words: the first id from which on tokens are parts of text; below are special ones.
        names: what padding and mask are called in the file.
        lowercase: whether text is made lower case, where the file is a plain vocabulary.
    """

    vocabulary: int
    padding: int
    mask: int
    words: int
    names: tuple[str, str]
    lowercase: bool = False

    @property
    def end(self) -> int:
        """The token id after the last part of text: RoBERTa's mask comes last."""
        return self.mask if self.mask > self.words else self.vocabulary


BERT_NAMES = ("[PAD]", "[MASK]")
TOKENIZERS: dict[TokenizerName, Tokens] = {
    "bert-base": Tokens(28_996, 0, 103, 104, BERT_NAMES),
    "bert-large": Tokens(28_996, 0, 103, 104, BERT_NAMES),
    "tiny-bert": Tokens(30_522, 0, 103, 104, BERT_NAMES, lowercase=True),
    "roberta-base": Tokens(50_265, 1, 50_264, 4, ("<pad>", "<mask>")),
}


class Tokenizer:
    """A tokenizer from the weights folder of its model."""

    def __init__(self, name: TokenizerName, weights: Path, length: int) -> None:
        """Read `<weights>/<name>/tokenizer.json`, or `vocab.txt` where there is only this one.

        Args:
            name: the model's id.
            weights: the folder of pretrained weights.
            length: the longest sequence, special tokens included; of a pair the longer one is cut.

        Raises:
            UserError: the files are missing or damaged, or are another model's.
        """
        self.facts = TOKENIZERS[name]
        path, self._tokenizer = _read(name, weights, self.facts)
        found = self._tokenizer.get_vocab_size(with_added_tokens=True)
        if found != self.facts.vocabulary:
            raise UserError(
                f"{path}: a vocabulary of {found} tokens, but {name} has {self.facts.vocabulary}: "
                "it is another model's tokenizer."
            )
        for word, expected in zip(
            self.facts.names, (self.facts.padding, self.facts.mask), strict=True
        ):
            if self._tokenizer.token_to_id(word) != expected:
                raise UserError(f"{path}: {word} is not token {expected}, as {name} has it.")
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(length)

    def encode(self, texts: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        """Tokenise sentences or pairs of them, with the special tokens of the model.

        Args:
            texts: one or two strings an example.

        Yields:
            The token ids of each, uint16 of shape (length of it,).
        """
        import numpy as np

        rest = iter(texts)
        while batch := list(islice(rest, BATCH)):
            inputs = [tuple(text) if len(text) > 1 else text[0] for text in batch]
            for encoding in self._tokenizer.encode_batch_fast(inputs):
                yield self._with_padding_at_zero(np.array(encoding.ids, dtype="uint16"))

    def _with_padding_at_zero(self, ids: np.ndarray) -> np.ndarray:
        padding = self.facts.padding
        if padding == 0:
            return ids
        first, pad = ids == 0, ids == padding
        ids[first], ids[pad] = padding, 0
        return ids


def _read(name: TokenizerName, weights: Path, facts: Tokens) -> tuple[Path, Any]:
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
        cut = tokenizers.BertWordPieceTokenizer(words, lowercase=facts.lowercase)
        return plain, cut._tokenizer
    raise UserError(
        f"{whole}: no tokenizer there. Run: clipnoise weights fetch {name} --weights {weights}"
    )


@dataclass(frozen=True, kw_only=True)
class Tokenising(Dataset):
    """Base of datasets that need a tokenizer to be prepared."""

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        """Write the dataset into the cache.

        Args:
            cache: the folder of prepared datasets.
            weights: the folder of pretrained weights; None for `weights` beside the cache.

        Raises:
            UserError: a raw file or the tokenizer is missing or damaged.
        """
        raise NotImplementedError
