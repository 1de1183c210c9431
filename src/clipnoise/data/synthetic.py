"""Synthetic datasets of any size, drawn from known distributions.

Mixtures of normals, images, texts, and bags of words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from clipnoise.data.base import PARTS, Dataset, Examples, FourSizes, Splits, TokenCounts, cut_rows
from clipnoise.data.images import (
    Augmentation,
    ImageTask,
    Scaled,
    check_targets,
    examples,
    image_signature,
    with_views,
)
from clipnoise.data.rows import SPARSE, RaggedRows, RaggedWriter, SparseRows
from clipnoise.data.signature import Signature
from clipnoise.data.stackoverflow import TASK_OF, Target, with_tags
from clipnoise.data.text import MOST_IDS, Masking
from clipnoise.fields import Count, Fraction, Natural
from clipnoise.lazy import nn, np, torch
from clipnoise.privacy.units import User
from clipnoise.seeds import derive, generator

CELLS = 4  # squares per side of a pattern
INK, NOISE = 160, 96  # upper bounds of pattern and noise; together they fill a byte
IMAGES_AT_ONCE = 1024
COUNTED = 1000  # texts that are drawn only to count tokens in them
MORE_TEXTS = f"{COUNTED:,} further texts, drawn for that alone"


@dataclass(frozen=True, kw_only=True)
class Drawn(Dataset):
    """Base of datasets that are drawn when loaded; the cache holds only a manifest.

    Attributes:
        split_seed: another seed draws other examples.
    """

    licence = "none needed: drawn by this package"
    source = "drawn by this package"
    split = "each part drawn separately"
    preprocessing = "none: drawn when loading, from the fields of the run spec"

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        self.write(cache, {})

    def parts(self) -> Callable[[str], Examples]:
        """Return a function that draws a part; it is called in the order of `Splits.build`."""
        raise NotImplementedError

    def load(self, cache: Path) -> Splits:
        return Splits.build(self.parts(), self.sizes(), self.read(cache)[1])


@dataclass(frozen=True, kw_only=True)
class DrawnOfOneSize(Drawn):
    """Base of drawn datasets with one option for all sizes.

    Attributes:
        examples: number of private examples; validation and test have a quarter of it each.
        public_examples: number of examples drawn besides the private ones.
    """

    examples: Count = 1000
    public_examples: Natural = 0

    def sizes(self) -> dict[str, int]:
        quarter = max(1, self.examples // 4)
        sizes = (self.examples, quarter, quarter, self.public_examples)
        return dict(zip(PARTS, sizes, strict=True))

    def draw(self, part: str, count: int, draws: np.random.Generator) -> Examples:
        """Draw so many examples of one of `PARTS` from a stream."""
        raise NotImplementedError

    def parts(self) -> Callable[[str], Examples]:
        sizes, draws = self.sizes(), np.random.default_rng(derive("split", self.split_seed))
        return lambda part: self.draw(part, sizes[part], draws)


@dataclass(frozen=True, kw_only=True)
class Synthetic(DrawnOfOneSize):
    """Points around one centre per class, with unit normal noise in every feature.

    Attributes:
        split_seed: another seed draws other centres and other points.
        features: number of features.
        classes: number of centres.
        separation: expected distance of a centre from the origin.
    """

    id = "synthetic"
    title = "Synthetic mixture of normals"

    features: Count = 20
    classes: Count = 4
    separation: float = 3.0

    @property
    def signature(self) -> Signature:
        return Signature("features", (self.features,), self.classes)

    def parts(self) -> Callable[[str], Examples]:
        sizes, stream = self.sizes(), generator("split", self.split_seed)
        centres = torch.randn(self.classes, self.features, generator=stream)
        centres *= self.separation / self.features**0.5

        def draw(part: str) -> Examples:
            targets = torch.randint(self.classes, (sizes[part],), generator=stream)
            noise = torch.randn(sizes[part], self.features, generator=stream)
            return Examples(centres[targets] + noise, targets)

        return draw


@dataclass(frozen=True, kw_only=True)
class SyntheticImages(Drawn, FourSizes):
    """A pattern of 4×4 grey or coloured squares per class, under uniform noise in every pixel.

    Attributes:
        split_seed: another seed draws other patterns and other images.
        shape: (channels, height, width).
        classes: number of patterns.
        task: whether to predict the class of an image or the image itself.
        augmentation: as of CIFAR-10, for which these images stand in.
    """

    id = "synthetic-images"
    title = "Synthetic images"
    preprocessing = "bytes divided by 255; drawn when loading, from the run spec"

    validation_examples: Count = 200
    shape: tuple[Count, Count, Count] = (1, 28, 28)
    classes: Count = 10
    task: ImageTask = "classification"
    augmentation: Augmentation = "none"

    def __post_init__(self) -> None:
        check_targets(self.task, self.augmentation)

    @property
    def signature(self) -> Signature:
        return image_signature(self.shape, self.classes, self.task)

    def load(self, cache: Path) -> Splits:
        return with_views(super().load(cache), self.augmentation)

    def parts(self) -> Callable[[str], Examples]:
        sizes = self.sizes()
        images, labels = (drawn.numpy() for drawn in self._drawn())
        cut = torch.split(torch.arange(len(labels)), list(sizes.values()))
        rows = dict(zip(sizes, cut, strict=True))
        return lambda part: examples(images, labels, rows[part], self.task, Scaled())

    def _drawn(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw images, uint8 (n, channels, height, width), and labels, int64 (n,), of all parts."""
        stream = generator("split", self.split_seed)
        channels, height, width = self.shape
        cells = torch.rand(self.classes, channels, CELLS, CELLS, generator=stream)
        patterns = (nn.functional.interpolate(cells, (height, width)) * INK).to(torch.uint8)
        labels = torch.randint(self.classes, (sum(self.sizes().values()),), generator=stream)
        images = torch.empty(len(labels), *self.shape, dtype=torch.uint8)
        pieces = zip(
            torch.split(images, IMAGES_AT_ONCE), torch.split(labels, IMAGES_AT_ONCE), strict=True
        )
        for some, chosen in pieces:
            some.random_(NOISE, generator=stream).add_(patterns[chosen])
        return images, labels


CLS, SEP, MASK, WORDS = 101, 102, 103, 104  # BERT's special tokens, and the first other token
ROWS_AT_ONCE = 4096


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

    id = "synthetic-zipf"
    title = "Synthetic texts with informative rare words"

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

    def counted_in(self) -> str:
        return MORE_TEXTS

    def token_counts(self, cache: Path) -> TokenCounts:
        draws = np.random.default_rng(derive("split", self.split_seed, 1))
        tokens = self.draw("public", COUNTED, draws).dense().inputs.numpy()
        rows = np.arange(COUNTED)[:, None] * self.vocabulary + tokens
        return _counts(rows.ravel(), COUNTED, self.vocabulary)


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

    id = "synthetic-tokens"
    title = "Synthetic sequences of tokens"

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
        users: number of users who own the private examples; 0 for examples without user ids. The
            examples of other parts belong to others with the same favourite tags.
        target: "tags" predicts all tags of an example, "tag" the first.
    """

    id = "synthetic-sparse"
    title = "Synthetic bags of words with tags"
    licence = "none needed: drawn by this package"
    source = "drawn by this package"
    split = "cut at random"
    prepared_with = ("examples", "features", "tags", "words", "users")
    preprocessing = "relative frequency of each word in an example; kept sparse"

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

    def user_unit(self) -> User | None:
        return User(count=self.users) if self.users else None

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        """Draw all examples, piece by piece."""
        draws, total = np.random.default_rng(0), sum(self.sizes().values())
        bags, tags = RaggedWriter(cache, "uint16", "float32"), RaggedWriter(cache, "uint16")
        users = draws.integers(max(self.users, 1), size=total).astype("int32")
        for start in range(0, total, ROWS_AT_ONCE):
            self._draw(users[start : start + ROWS_AT_ONCE], draws, bags, tags)
        starts, columns, values = bags.arrays()
        tag_starts, kept = tags.arrays()
        arrays = {
            "columns": columns,
            "values": values,
            "tags": kept,
            "starts": starts,
            "tag_starts": tag_starts,
            "users": users,
        }
        others = draws.integers(max(self.users, 1), size=COUNTED)
        entries, _, _ = self._words(others, draws)
        self.write(cache, arrays | _counts(entries, COUNTED, self.features).arrays())

    def counted_in(self) -> str:
        return MORE_TEXTS

    def _words(
        self, users: np.ndarray, draws: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw one example per entry of users.

        Returns:
            For each word of each example, its example times `features` plus the word; the number of
            words of each example; and its three tags, int64 of shape (users, 3).
        """
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
        return row * self.features + column, lengths, tags

    def _draw(
        self, users: np.ndarray, draws: np.random.Generator, bags: RaggedWriter, tags: RaggedWriter
    ) -> None:
        """Draw one example per entry of users, and append it."""
        drawn, lengths, tagged = self._words(users, draws)
        entries, counts = np.unique(drawn, return_counts=True)
        owner, word = np.divmod(entries, self.features)
        ends = np.searchsorted(owner, np.arange(1, len(users)))
        shares = counts / lengths[owner]
        for columns, values, distinct in zip(
            np.split(word, ends), np.split(shares, ends), tagged, strict=True
        ):
            bags.append(columns, values)
            tags.append(np.array(list(dict.fromkeys(distinct.tolist()))))

    def load(self, cache: Path) -> Splits:
        (arrays, provenance), sizes = self.read(cache), self.sizes()
        rows = cut_rows(sum(sizes.values()), sizes, self.split_seed)

        starts, columns, values = (arrays[name] for name in SPARSE)

        def take(part: str) -> Examples:
            inputs = SparseRows(starts, columns, values, self.features, rows[part])
            return with_tags(inputs, arrays, self.target, self.tags)

        owners = torch.from_numpy(arrays["users"][rows["train"].numpy()].astype("int64"))
        return Splits.build(take, sizes, provenance, owners if self.users else None)


def _counts(entries: np.ndarray, texts: int, size: int) -> TokenCounts:
    """Count tokens of `size` kinds; an entry is the text of a token times `size` plus the token."""
    texts_with = np.bincount(np.unique(entries) % size, minlength=size)
    return TokenCounts(np.bincount(entries % size, minlength=size), texts_with, texts)
