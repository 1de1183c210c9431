"""Synthetic texts of any size: sequences of tokens, and bags of words with tags and users."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.data.base import PARTS, Dataset, Examples, Splits
from clipnoise.data.rows import RaggedRows, RaggedWriter, SparseRows
from clipnoise.data.signature import Signature
from clipnoise.data.splits import cut_rows
from clipnoise.data.stackoverflow import TASK_OF, Target, tag_targets
from clipnoise.data.synthetic import DrawnOfOneSize
from clipnoise.data.text import MOST_IDS, Masking
from clipnoise.fields import Count, Fraction, Natural

if TYPE_CHECKING:
    import numpy as np

CLS, SEP, MASK, WORDS = 101, 102, 103, 104  # BERT's special tokens, and the first other token
PIECE = 4096  # rows drawn at once


@dataclass(frozen=True, kw_only=True)
class SyntheticZipf(DrawnOfOneSize):
    """Texts whose common tokens are uninformative and whose rare tokens carry the label.

    Common tokens follow Zipf's law: the k-th has probability ∝ 1/k. The last fifth of the
    vocabulary is rare and divided among the classes; an example contains some of its class.

    Attributes:
        vocabulary: number of tokens, including 0 for padding.
        length: tokens per example.
        classes: number of classes.
        rare: the share of tokens that are rare; at least one token of every example is.
    """

    id: ClassVar[str] = "synthetic-zipf"
    title: ClassVar[str] = "Synthetic texts with informative rare words"

    vocabulary: Count = 1000
    length: Count = 32
    classes: Count = 2
    rare: Fraction = 0.1

    def __post_init__(self) -> None:
        if self.vocabulary // 5 < self.classes:
            raise ValueError("vocabulary must have at least five tokens for every class")

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
        informative = common + labels[:, None] * each + draws.integers(each, size=tokens.shape)
        places = draws.random(tokens.shape) < self.rare
        places[np.arange(count), draws.integers(self.length, size=count)] = True
        inputs = np.where(places, informative, tokens)
        return Examples(torch.from_numpy(inputs), torch.from_numpy(labels))


@dataclass(frozen=True, kw_only=True)
class SyntheticTokens(DrawnOfOneSize):
    """Sequences in the form of BERT's inputs, of different lengths.

    "classification": `[CLS] words [SEP]`; the class decides which words are frequent. "pairs":
    `[CLS] one [SEP] other [SEP]`; the second text repeats the first with every word id increased by
    the class. "masked-tokens": every word follows from the previous one.

    Attributes:
        asks: the form of the sequences, and what is predicted.
        vocabulary: number of tokens; the special ones have BERT's ids, below 104.
        length: of the longest sequence.
        classes: number of classes.
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
        return masking.examples(rows)

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
            frequent = draws.integers(words // self.classes, size=count) * self.classes + label
            text = np.where(draws.random(count) < 0.5, frequent, text)
        pieces = [text] if self.asks != "pairs" else [text, (text + label) % words]
        return np.concatenate([[CLS], *(np.append(WORDS + piece, SEP) for piece in pieces)])


@dataclass(frozen=True, kw_only=True)
class SyntheticSparse(Dataset):
    """Bags of words of short texts; common words follow Zipf's law, rare ones indicate the tags.

    Every user has a favourite tag. All examples are drawn when the dataset is prepared.

    Attributes:
        split_seed: which examples belong to which part.
        examples: private and public ones together; validation and test have a quarter of it each.
        public_examples: how many of them are public.
        features: number of different words.
        tags: number of different tags.
        words: expected number of words per example.
        users: number of users; 0 for examples without user ids.
        target: "tags" predicts all tags of an example, "tag" the first.
    """

    id: ClassVar[str] = "synthetic-sparse"
    title: ClassVar[str] = "Synthetic bags of words with tags"
    licence: ClassVar[str] = "none needed: drawn by this package"
    source: ClassVar[str] = "drawn by this package"
    split: ClassVar[str] = "cut at random"
    prepared_with: ClassVar[tuple[str, ...]] = ("examples", "features", "tags", "words", "users")
    preprocessing: ClassVar[str] = "relative frequency of each word in an example; kept sparse"

    examples: Count = 1000
    public_examples: Natural = 0
    features: Count = 500
    tags: Count = 10
    words: Count = 20
    users: Natural = 20
    target: Target = "tags"

    def __post_init__(self) -> None:
        if max(self.features, self.tags) > MOST_IDS:
            raise ValueError(f"features and tags must be at most {MOST_IDS}")
        if self.public_examples >= self.examples:
            raise ValueError(f"public_examples must be below examples, {self.examples}")
        if self.features < 4 * self.tags:
            raise ValueError("features must be at least four times tags")

    @property
    def signature(self) -> Signature:
        return Signature("features", (self.features,), self.tags, TASK_OF[self.target])

    @property
    def origin(self) -> str:
        return self.prepared  # other options draw other examples

    def sizes(self) -> dict[str, int]:
        quarter = max(1, self.examples // 4)
        sizes = (self.examples - self.public_examples, quarter, quarter, self.public_examples)
        return dict(zip(PARTS, sizes, strict=True))

    def user_count(self) -> int | None:
        return self.users or None

    def prepare(self, cache: Path) -> None:
        """Draw all examples, piece by piece."""
        import numpy as np

        draws, total = np.random.default_rng(0), sum(self.sizes().values())
        kinds = {"columns": "uint16", "values": "float32", "tags": "uint16"}
        rows = {name: RaggedWriter(cache, kind) for name, kind in kinds.items()}
        users = draws.integers(max(self.users, 1), size=total).astype("int32")
        for start in range(0, total, PIECE):
            self._draw(users[start : start + PIECE], draws, rows)
        arrays = {name: writer.arrays()[1] for name, writer in rows.items()}
        arrays["starts"], arrays["tag_starts"] = (
            rows[name].arrays()[0] for name in ("columns", "tags")
        )
        arrays["users"] = users
        self.write(cache, arrays)

    def _draw(
        self, users: np.ndarray, draws: np.random.Generator, rows: dict[str, RaggedWriter]
    ) -> None:
        """Draw one example per entry of users, and append it."""
        import numpy as np

        count, common = len(users), self.features // 2
        tags = draws.integers(self.tags, size=(count, 3))
        tags[:, 0] = np.where(draws.random(count) < 0.5, users % self.tags, tags[:, 0])
        lengths = 1 + draws.poisson(self.words - 1, size=count)
        row = np.repeat(np.arange(count), lengths)
        ranks = 1 / np.arange(1, common + 1)
        column = draws.choice(common, size=len(row), p=ranks / ranks.sum())
        each = (self.features - common) // self.tags
        tag = tags[row, draws.integers(3, size=len(row))]
        indicative = common + tag * each + draws.integers(each, size=len(row))
        column = np.where(draws.random(len(row)) < 0.3, indicative, column)
        entries, counts = np.unique(row * self.features + column, return_counts=True)
        owner, word = np.divmod(entries, self.features)
        ends = np.searchsorted(owner, np.arange(1, count))
        shares = counts / lengths[owner]
        for columns, values, distinct in zip(
            np.split(word, ends), np.split(shares, ends), tags, strict=True
        ):
            rows["columns"].append(columns)
            rows["values"].append(values)
            rows["tags"].append(np.array(list(dict.fromkeys(distinct.tolist()))))

    def load(self, cache: Path) -> Splits:
        import torch

        (arrays, provenance), sizes = self.read(cache), self.sizes()
        rows = cut_rows(sum(sizes.values()), sizes, self.split_seed)

        def take(part: str) -> Examples:
            chosen = rows[part]
            starts, columns, values = (arrays[name] for name in ("starts", "columns", "values"))
            inputs = SparseRows(starts, columns, values, self.features, chosen, torch.float32)
            return Examples(inputs, tag_targets(arrays, chosen, self.target, self.tags))

        owners = torch.from_numpy(arrays["users"][rows["train"].numpy()].astype("int64"))
        return Splits.build(take, sizes, provenance, owners if self.users else None)
