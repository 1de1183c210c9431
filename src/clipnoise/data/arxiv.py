"""Abstracts of arXiv papers, from a snapshot of its metadata, with masked tokens to predict."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clipnoise.data.base import FourSizes, Splits, cut_rows
from clipnoise.data.rows import RaggedRows, RaggedWriter
from clipnoise.data.signature import Signature
from clipnoise.data.text import TOKENIZERS, Masking, Tokenizer, TokenizerName
from clipnoise.errors import UserError
from clipnoise.fields import Count, Natural


@dataclass(frozen=True, kw_only=True)
class ArxivAbstracts(FourSizes):
    """Abstracts with masked tokens; the tokens to predict are drawn once, from the split seed.

    The test set is the same for every split seed.

    Attributes:
        split_seed: which abstracts are private, for validation or public, and what is masked.
        train_examples, validation_examples, test_examples: as in the paper.
        public_examples: how many are treated as public.
        tokenizer: the model whose tokenizer is used, from the weights folder.
        length: the most tokens of an abstract, special tokens included.

    Source: On Design Principles for Private Adaptive Optimizers, section 5.2.
    """

    reader = "arxiv-abstracts"
    prepared_with = ("tokenizer", "length")

    train_examples: Count = 1_700_000
    validation_examples: Natural = 100_000
    test_examples: Count = 100_000
    public_examples: Natural = 0
    tokenizer: TokenizerName = "tiny-bert"
    length: Count = 512

    @property
    def signature(self) -> Signature:
        size = TOKENIZERS[self.tokenizer].vocabulary
        return Signature("tokens", (self.length,), size, "masked-tokens", vocabulary=size)

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        path = self.raw_files(cache).require() / self.files[0].name
        tokenizer = Tokenizer(self.tokenizer, weights or cache.parent / "weights", self.length)
        ids = RaggedWriter(cache, "uint16")
        for row in tokenizer.encode(abstracts(path)):
            ids.append(row)
        starts, values = ids.arrays()
        self.write(cache, {"starts": starts, "ids": values})

    def load(self, cache: Path) -> Splits:
        (arrays, provenance), sizes = self.read(cache), self.sizes()
        starts, ids = arrays["starts"], arrays["ids"]
        available = len(starts) - 1
        if sum(sizes.values()) > available:
            raise UserError(
                f"dataset.id: {self.id} asks for {sum(sizes.values())} abstracts, but {available} "
                "are prepared; ask for fewer (train_examples, …) or prepare a newer snapshot."
            )
        rows = cut_rows(available, sizes, self.split_seed)
        tokens = TOKENIZERS[self.tokenizer]
        masking = Masking(self.split_seed, tokens.mask, tokens.words, tokens.end)
        return Splits.build(
            lambda part: masking.examples(RaggedRows(starts, ids, rows[part], self.length)),
            sizes,
            provenance,
        )


def abstracts(path: Path) -> Iterator[Sequence[str]]:
    """Yield the abstract of each paper of a snapshot: JSON, one paper per line.

    Raises:
        UserError: a line is truncated or is not a paper; names the line.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                yield (_abstract(path, number, line),)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}).") from None


def _abstract(path: Path, number: int, line: str) -> str:
    try:
        text = json.loads(line)["abstract"]
    except ValueError as error:
        raise UserError(f"{path}: line {number}: truncated or not JSON ({error}).") from None
    except (KeyError, TypeError):
        raise UserError(f"{path}: line {number}: abstract: required, but missing.") from None
    if not isinstance(text, str):
        raise UserError(f"{path}: line {number}: abstract: expected text, got {text!r}.")
    return " ".join(text.split())
