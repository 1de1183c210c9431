"""Stack Overflow: which tags belong to a sentence of a question or an answer? By user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from clipnoise.data.base import Examples, Splits
from clipnoise.data.cache import read_arrays, read_manifest, write_arrays
from clipnoise.data.fetch import RemoteFile, facts, require_raw
from clipnoise.data.partition import Partitioned
from clipnoise.data.ragged import Ragged
from clipnoise.data.rows import Rows, SparseRows
from clipnoise.data.signature import Signature
from clipnoise.data.tffile import Database, Sentence, opened, read_counts
from clipnoise.errors import UserError
from clipnoise.fields import Count, Natural
from clipnoise.seeds import generator

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

ADDRESS = "https://storage.googleapis.com/tff-datasets-public"
DATABASE = "stackoverflow.sqlite.lzma"
WORDS, TAGS = "stackoverflow.word_count", "stackoverflow.tag_count"
HELD_OUT = 1000  # users in whose sentences words and tags are counted
MOST = 2**16


@dataclass(frozen=True, kw_only=True)
class StackOverflow(Partitioned):
    """Sentences of Stack Overflow users as bags of words, with the tags of their question.

    The first users by their id; of each the first 80% of the sentences to train, the rest to test.

    Attributes:
        split_seed: which training sentences are private, for validation or public.
        users: how many users there are.
        words: how many words are kept, the most frequent first.
        tags: how many tags are kept, the most frequent first.
        target: "tag" asks for one class, the most frequent of the sentence's tags; a sentence with
            none of the tags counts as having the most frequent one. So do AdaDPS and its code.
            "tags" asks for all of them.
        counted: where words and tags are counted. "held-out": in the sentences of 1,000 of the
            users that the source holds out; none of them is a user here, and they are public.
            "published": the source's own counts over all its training users, as AdaDPS takes them;
            the private users are among these, no noise covers that, and ε is nominal.
        public_users: so many of the first users are public, and the public examples are theirs; 0
            takes public examples from everybody. It needs train_examples, because how many
            sentences the other users have is not known beforehand.

    Source: AdaDPS, section 6 and released code, after TensorFlow Federated's tag prediction.
    """

    id: ClassVar[str] = "stackoverflow"
    title: ClassVar[str] = "Stack Overflow tags"
    licence: ClassVar[str] = "CC BY-SA 3.0"
    source: ClassVar[str] = (
        "Stack Overflow data hosted by Kaggle, as TensorFlow Federated gives it out (SQLite)"
    )
    split: ClassVar[str] = "by user, the first 80% and the rest; validation and public of the first"
    preprocessing: ClassVar[str] = (
        "the share of each word among the words of sentence and title; kept sparse"
    )
    manual: ClassVar[str] = (
        "no licence to accept. The file is large: unpacked it needs several times its size on the "
        "cache's disk while it is prepared. The HDF5 files of older releases are not read: no "
        "library of this environment does."
    )
    files: ClassVar[tuple[RemoteFile, ...]] = (
        RemoteFile(DATABASE, f"{ADDRESS}/{DATABASE}"),
        RemoteFile(
            f"{WORDS}.tar.bz2",
            f"{ADDRESS}/{WORDS}.tar.bz2",
            sha256="1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c",
        ),
        RemoteFile(
            f"{TAGS}.tar.bz2",
            f"{ADDRESS}/{TAGS}.tar.bz2",
            sha256="6fe281cec490d9384a290d560072438e7e2b377bbb823876ce7bd6f82696772d",
        ),
    )
    training_file: ClassVar[int] = 246_092
    test_file: ClassVar[int] = 61_523  # as many as that leaves at least, at one in five

    users: Count = 400
    words: Count = 10_000
    tags: Count = 500
    target: Literal["tag", "tags"] = "tag"
    counted: Literal["held-out", "published"] = "held-out"
    public_users: Natural = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.words, self.tags) > MOST:
            raise ValueError(f"words and tags must be at most {MOST}")
        if self.public_users >= self.users:
            raise ValueError(f"public_users must be below users, {self.users}")
        if self.public_users and not (self.train_examples and self.public_examples):
            raise ValueError("public_users needs train_examples and public_examples")

    @property
    def signature(self) -> Signature:
        task: Literal["classification", "multi-label"]
        task = "classification" if self.target == "tag" else "multi-label"
        meaning = f"words and tags of Stack Overflow, {self.counted} counts"
        return Signature("features", (self.words,), self.tags, task, meaning=meaning)

    @property
    def prepared(self) -> str:
        return f"{self.id}@" + "-".join(str(value) for value in self.preparation().values())

    def preparation(self) -> dict[str, Any]:
        return {
            "users": self.users,
            "words": self.words,
            "tags": self.tags,
            "counted": self.counted,
        }

    def user_count(self) -> int:
        return self.users - self.public_users

    def caveat(self) -> str | None:
        if self.counted == "held-out":
            return None
        return "words and tags were counted over the private users too, which no noise covers"

    def prepare(self, cache: Path) -> None:
        """Write words and tags of every sentence, user by user, sparse."""
        import numpy as np

        folder = require_raw(cache, self)
        names = ("words", "values", "tags")
        kinds = ("uint16", "float32", "uint16")
        with opened(folder / DATABASE, cache) as database:
            word, tag = self._vocabularies(folder, database)
            rows = [Ragged(cache, kind) for kind in kinds]
            owners, tests = [], []
            for user, name in enumerate(self._names(database)):
                sentences = list(database.sentences("train", name))
                owners += [user] * len(sentences)
                tests += [place >= len(sentences) * 4 // 5 for place in range(len(sentences))]
                for sentence in sentences:
                    for ragged, row in zip(rows, _encoded(sentence, word, tag), strict=True):
                        ragged.append(row)
        parts = dict(zip(names, (ragged.arrays() for ragged in rows), strict=True))
        arrays = {name: values for name, (_, values) in parts.items()}
        arrays["word_starts"], arrays["tag_starts"] = parts["words"][0], parts["tags"][0]
        arrays["users"], arrays["test"] = np.array(owners, "int32"), np.array(tests, "bool")
        write_arrays(cache / self.prepared, arrays, facts(cache, self))

    def _names(self, database: Database) -> list[str]:
        names = database.users("train")
        self.require(self.users, len(names), "list of users in the training")
        return names[: self.users]

    def _vocabularies(
        self, folder: Path, database: Database
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Return the place of each word and of each tag, the most frequent first."""
        words: Counter[str] = Counter()
        tags: Counter[str] = Counter()
        if self.counted == "published":
            words.update(read_counts(folder / f"{WORDS}.tar.bz2"))
            tags.update(read_counts(folder / f"{TAGS}.tar.bz2"))
        else:
            for name in database.users("heldout")[:HELD_OUT]:
                for sentence in database.sentences("heldout", name):
                    words.update(sentence.words)
                    tags.update(sentence.tags)
        return self._kept("words", words, self.words), self._kept("tags", tags, self.tags)

    def _kept(self, kind: str, counts: Mapping[str, int], size: int) -> dict[str, int]:
        """Return the place of the most frequent ones; ties are in alphabetical order."""
        if len(counts) < size:
            raise UserError(
                f"dataset.{kind}: {size} are asked for, but the {self.counted} counts of "
                f"{self.id} have only {len(counts)}."
            )
        order = sorted(counts, key=lambda one: (-counts[one], one))
        return {one: place for place, one in enumerate(order[:size])}

    def load(self, cache: Path) -> Splits:
        import torch

        folder = cache / self.prepared
        arrays = read_arrays(folder, self.invocation)
        chosen = self._chosen(torch.from_numpy(arrays["users"].copy()), arrays["test"])

        def take(part: str) -> Examples:
            rows = chosen[part]
            starts, words, values = (arrays[name] for name in ("word_starts", "words", "values"))
            inputs = SparseRows(starts, words, values, self.words, rows, torch.float32)
            return Examples(inputs, self._targets(arrays, rows))

        owners = torch.from_numpy(arrays["users"][chosen["train"].numpy()].astype("int64"))
        provenance = read_manifest(folder, self.invocation).provenance()
        return Splits.taken(take, self.sizes(), provenance, owners - self.public_users)

    def _chosen(self, users: Tensor, test: np.ndarray) -> dict[str, Tensor]:
        """Return which sentences each part has, int64 of shape (size,)."""
        import torch

        tests = torch.from_numpy(test.copy())
        training = (~tests).nonzero().squeeze(1)
        public = training[users[training] < self.public_users]
        private = training[users[training] >= self.public_users]
        last = tests.nonzero().squeeze(1)
        sizes, draws = self.sizes(), generator("split", self.split_seed)
        aside = 0 if self.public_users else sizes["public"]
        self.require(sizes["train"] + sizes["validation"] + aside, len(private), "training")
        self.require(sizes["test"], len(last), "test")
        order = private[torch.randperm(len(private), generator=draws)]
        reserve = public[torch.randperm(len(public), generator=draws)]
        reserve = reserve if self.public_users else order.flip(0)
        self.require(sizes["public"], len(reserve), "public users'")
        fixed = torch.randperm(len(last), generator=generator("split", 0))
        return {
            "train": order[sizes["validation"] :][: sizes["train"]],
            "validation": order[: sizes["validation"]],
            "test": last[fixed[: sizes["test"]]],
            "public": reserve[: sizes["public"]],
        }

    def _targets(self, arrays: dict[str, np.ndarray], rows: Tensor) -> Tensor | Rows:
        import numpy as np
        import torch

        starts, tags = arrays["tag_starts"], arrays["tags"]
        if self.target == "tags":
            ones = np.broadcast_to(np.uint8(1), tags.shape)
            return SparseRows(starts, tags, ones, self.tags, rows, torch.float32)
        begins, ends = starts[rows.numpy()], starts[rows.numpy() + 1]
        padded = np.append(tags, 0)  # where the last sentence has no tag
        first = np.where(begins < ends, padded[begins], 0)
        return torch.from_numpy(first.astype("int64"))


def _encoded(
    sentence: Sentence, word: Mapping[str, int], tag: Mapping[str, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the places of a sentence's words, their shares, and the places of its tags."""
    import numpy as np

    known = [word[one] for one in sentence.words if one in word]
    places, counts = np.unique(np.array(known, "int64"), return_counts=True)
    tags = np.unique(np.array([tag[one] for one in sentence.tags if one in tag], "int64"))
    return places, counts / max(len(sentence.words), 1), tags
