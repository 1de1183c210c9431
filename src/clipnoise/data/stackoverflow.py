"""Stack Overflow: predict the tags of a sentence of a question or an answer; by user."""

from __future__ import annotations

import json
import lzma
import sqlite3
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import copyfileobj
from typing import Any, Literal

from clipnoise.data.base import Examples, Partitioned, Splits, TokenCounts
from clipnoise.data.rows import RaggedWriter, SparseRows
from clipnoise.data.signature import Signature, TaskName
from clipnoise.data.text import MOST_IDS, most_frequent, ranks_and_counts
from clipnoise.errors import UserError
from clipnoise.fields import Count, Natural
from clipnoise.lazy import Tensor, np, torch
from clipnoise.privacy.units import Example, Unit, User
from clipnoise.seeds import generator

DATABASE = "stackoverflow.sqlite.lzma"
WORDS, TAGS = "stackoverflow.word_count", "stackoverflow.tag_count"
HELD_OUT = 1000  # users in whose sentences words and tags are counted

Target = Literal["tag", "tags"]
Part = Literal["train", "heldout"]
TASK_OF: dict[Target, TaskName] = {"tag": "classification", "tags": "multi-label"}


@dataclass(frozen=True, kw_only=True)
class StackOverflow(Partitioned):
    """Sentences of Stack Overflow users as bags of words, with the tags of their question.

    It takes the first users by id. The first 80% of each user's sentences are for training, the
    rest for testing.

    Attributes:
        split_seed: which training sentences are private, for validation or public.
        users: number of users.
        words: size of the vocabulary, the most frequent words first.
        tags: how many tags are kept, the most frequent first.
        target: "tag": one class, the most frequent of the sentence's tags; a sentence with none of
            the kept tags counts as having the most frequent one, as in AdaDPS and its code.
            "tags": all of the sentence's tags.
        counted: where words and tags are counted. "held-out": in the sentences of 1,000 users whom
            the source holds out; they are not among the users here and are public. "published": the
            source's own counts over all its training users, as in AdaDPS; these include the private
            users, which no noise covers, and ε is nominal.
        public_users: this many of the first users are public, and own the public examples; 0 takes
            public examples from all users, which is refused where users are protected. It needs
            train_examples, as the number of the other users' sentences is not known beforehand.
        validation_users: the same for validation examples; these users come after the public ones.

    Source: AdaDPS, section 6 and released code, after TensorFlow Federated's tag prediction.
    """

    reader = "stackoverflow"
    prepared_with = ("users", "words", "tags", "counted")

    users: Count = 400
    words: Count = 10_000
    tags: Count = 500
    target: Target = "tag"
    counted: Literal["held-out", "published"] = "held-out"
    public_users: Natural = 0
    validation_users: Natural = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.words, self.tags) > MOST_IDS:
            raise ValueError(f"words and tags must be at most {MOST_IDS}")
        if self._private_users < 1:
            raise ValueError(f"public_users + validation_users must be below users, {self.users}")
        if self.public_users and not (self.train_examples and self.public_examples):
            raise ValueError("public_users needs train_examples and public_examples")
        if self.validation_users and not (self.train_examples and self.validation_examples):
            raise ValueError("validation_users needs train_examples and validation_examples")

    @property
    def signature(self) -> Signature:
        meaning = f"words and tags of Stack Overflow, {self.counted} counts"
        return Signature("features", (self.words,), self.tags, TASK_OF[self.target], None, meaning)

    @property
    def _private_users(self) -> int:
        return self.users - self.public_users - self.validation_users

    def unit(self) -> Unit:
        return Example(count=self.sizes()["train"], stays=True)

    def user_unit(self) -> User:
        sizes, shared = self.sizes(), {"test": ""}
        if sizes["validation"] and not self.validation_users:
            shared["validation"] = (
                "validation_users: 4 (with train_examples), or validation_examples: 0"
            )
        if sizes["public"] and not self.public_users:
            shared["public"] = "public_users: 4 (with train_examples), or public_examples: 0"
        return User(count=self._private_users, stays=True, shared=shared)

    def caveat(self) -> str | None:
        if self.counted == "held-out":
            return None
        return "words and tags were counted over the private users too, which no noise covers"

    def counted_in(self) -> str | None:
        if self.counted != "held-out":
            return None
        return f"the sentences of {HELD_OUT:,} users whom the source holds out"

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        """Write words and tags of every sentence, sparse, one user after the other."""
        folder = self.raw_files(cache).require()
        with open_database(folder / DATABASE, cache) as database:
            word, tag, counts = self._vocabularies(folder, database)
            bags, tags = RaggedWriter(cache, "uint16", "float32"), RaggedWriter(cache, "uint16")
            owners, tests = [], []
            for user, name in enumerate(self._names(database)):
                sentences = list(database.sentences("train", name))
                owners += [user] * len(sentences)
                tests += [index >= len(sentences) * 4 // 5 for index in range(len(sentences))]
                for spoken, tagged in sentences:
                    ranks, occurrences = ranks_and_counts(spoken, word)
                    bags.append(ranks, occurrences / max(len(spoken), 1))
                    tags.append(ranks_and_counts(tagged, tag)[0])
        word_starts, words, values = bags.arrays()
        tag_starts, kept = tags.arrays()
        arrays = {
            "words": words,
            "values": values,
            "tags": kept,
            "word_starts": word_starts,
            "tag_starts": tag_starts,
            "users": np.array(owners, "int32"),
            "test": np.array(tests, "bool"),
        }
        self.write(cache, arrays | counts)

    @property
    def _first_private(self) -> int:
        return self.public_users + self.validation_users

    def _names(self, database: Database) -> list[str]:
        names = database.users("train")
        self.require(self.users, len(names), "list of users in the training")
        return names[: self.users]

    def _vocabularies(
        self, folder: Path, database: Database
    ) -> tuple[dict[str, int], dict[str, int], dict[str, np.ndarray]]:
        """Return the rank of each word and of each tag, the most frequent first, and the counts of
        the words where no private user was counted.
        """
        words, sentences_with, tags = Counter[str](), Counter[str](), Counter[str]()
        sentences = 0
        if self.counted == "published":
            words.update(read_counts(folder / f"{WORDS}.tar.bz2"))
            tags.update(read_counts(folder / f"{TAGS}.tar.bz2"))
        else:
            for name in database.users("heldout")[:HELD_OUT]:
                for spoken, tagged in database.sentences("heldout", name):
                    words.update(spoken)
                    sentences_with.update(set(spoken))
                    tags.update(tagged)
                    sentences += 1
        word, tag = self._kept("words", words, self.words), self._kept("tags", tags, self.tags)
        if self.counted == "published":
            return word, tag, {}
        occurrences = np.array([words[one] for one in word])
        texts_with = np.array([sentences_with[one] for one in word])
        return word, tag, TokenCounts(occurrences, texts_with, sentences).arrays()

    def _kept(self, kind: str, counts: Mapping[str, int], size: int) -> dict[str, int]:
        """Return the rank of the most frequent entries; too few raise UserError."""
        if len(counts) < size:
            raise UserError(
                f"dataset.{kind}: {size} are asked for, but the {self.counted} counts of "
                f"{self.id} have only {len(counts)}."
            )
        return most_frequent(counts, size)

    def load(self, cache: Path) -> Splits:
        arrays, provenance = self.read(cache)
        chosen = self._chosen(torch.from_numpy(arrays["users"].copy()), arrays["test"])

        starts, words, values = (arrays[name] for name in ("word_starts", "words", "values"))

        def take(part: str) -> Examples:
            inputs = SparseRows(starts, words, values, self.words, chosen[part])
            return with_tags(inputs, arrays, self.target, self.tags)

        owners = torch.from_numpy(arrays["users"][chosen["train"].numpy()].astype("int64"))
        return Splits.build(take, self.sizes(), provenance, owners - self._first_private)

    def _chosen(self, users: Tensor, test: np.ndarray) -> dict[str, Tensor]:
        """Return the sentences of each part, int64 of shape (size,)."""
        tests = torch.from_numpy(test.copy())
        training, last = (~tests).nonzero().squeeze(1), tests.nonzero().squeeze(1)
        sizes, draws = self.sizes(), generator("split", self.split_seed)

        def shuffled(first: int, end: int) -> Tensor:
            """Return the training sentences of some users in random order."""
            own = training[(users[training] >= first) & (users[training] < end)]
            return own[torch.randperm(len(own), generator=draws)]

        order = shuffled(self._first_private, self.users)
        reserve = shuffled(0, self.public_users) if self.public_users else order.flip(0)
        held = shuffled(self.public_users, self._first_private) if self.validation_users else order
        before = 0 if self.validation_users else sizes["validation"]
        shared = 0 if self.public_users else sizes["public"]
        self.require(sizes["train"] + before + shared, len(order), "training")
        self.require(sizes["test"], len(last), "test")
        self.require(sizes["public"], len(reserve), "public users'")
        self.require(sizes["validation"], len(held), "validation users'")
        fixed = torch.randperm(len(last), generator=generator("split", 0))
        return {
            "train": order[before:][: sizes["train"]],
            "validation": held[: sizes["validation"]],
            "test": last[fixed[: sizes["test"]]],
            "public": reserve[: sizes["public"]],
        }


def with_tags(
    inputs: SparseRows, arrays: Mapping[str, np.ndarray], target: Target, tags: int
) -> Examples:
    """Return examples with their first tag as their class, which is 0 without one, or all tags.

    Args:
        inputs: of the examples.
        arrays: "tags" of all examples, and where those of each example begin, "tag_starts".
        target: "tag" or "tags".
        tags: the number of different tags.
    """
    starts, values, rows = arrays["tag_starts"], arrays["tags"], inputs.chosen
    if target == "tags":
        ones = np.broadcast_to(np.uint8(1), values.shape)
        return Examples(inputs, SparseRows(starts, values, ones, tags, rows))
    begins, ends = starts[rows.numpy()], starts[rows.numpy() + 1]
    padded = np.append(values, 0)  # the last example may have no tag
    first = np.where(begins < ends, padded[begins], 0)
    return Examples(inputs, torch.from_numpy(first.astype("int64")))


@dataclass(frozen=True)
class Database:
    """An open database of users and their examples; `path` is for messages."""

    path: Path
    connection: sqlite3.Connection

    def users(self, part: Part) -> list[str]:
        """Return the ids of the users of a part, in the order of TensorFlow Federated."""
        rows = self.connection.execute(
            "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ?", (part,)
        )
        names = sorted(name for (name,) in rows)
        if not names:
            raise UserError(f"{self.path}: no split {part!r} in it.")
        return names

    def sentences(self, part: Part, user: str) -> Iterator[tuple[list[str], list[str]]]:
        """Yield the sentences of a user in their order: words and tags of each.

        The words are those of the sentence and of its question's title, the tags the question's.

        Raises:
            UserError: one is not a tf.train.Example with tokens, title and tags.
        """
        rows = self.connection.execute(
            "SELECT serialized_example_proto FROM examples "
            "WHERE client_id = ? AND split_name = ? ORDER BY rowid",
            (user, part),
        )
        for (serialised,) in rows:
            try:
                texts = texts_of(serialised)
                yield f"{texts['tokens']} {texts['title']}".split(), texts["tags"].split("|")
            except (KeyError, ValueError) as error:
                raise UserError(
                    f"{self.path}: an example of user {user} in the split {part!r} is damaged or "
                    f"lacks a feature ({error})."
                ) from None


@contextmanager
def open_database(path: Path, folder: Path) -> Iterator[Database]:
    """Open a database that LZMA compresses, unpacked into a temporary file in a folder.

    Raises:
        UserError: it is truncated or damaged, or the disk is full.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacked.") as place:
        plain = Path(place) / "database"
        try:
            with lzma.open(path) as packed, plain.open("wb") as stream:
                copyfileobj(packed, stream, 1 << 20)
        except (lzma.LZMAError, EOFError) as error:
            raise UserError(f"{path}: truncated or damaged ({error}).") from None
        except OSError as error:
            raise UserError(
                f"{path}: cannot be unpacked into {folder}: {error.strerror}."
            ) from None
        connection = sqlite3.connect(f"{plain.resolve().as_uri()}?mode=ro", uri=True)
        try:
            yield Database(path, connection)
        except sqlite3.DatabaseError as error:
            raise UserError(f"{path}: not a database of TensorFlow Federated ({error}).") from None
        finally:
            connection.close()


def read_counts(path: Path) -> dict[str, int]:
    """Read counts of words ("word count" in each line) or of tags (JSON).

    Raises:
        UserError: the file is damaged.
    """
    name = path.name.removesuffix(".tar.bz2")
    try:
        with tarfile.open(path) as archive:
            member = archive.extractfile(name)
            assert member is not None
            content = member.read().decode()
        if content.lstrip().startswith("{"):
            return {tag: int(count) for tag, count in json.loads(content).items()}
        pairs = (line.split() for line in content.splitlines())
        return {word: int(count) for word, count in pairs}
    except (tarfile.TarError, OSError, EOFError, KeyError, ValueError) as error:
        raise UserError(f"{path}: truncated or damaged ({error}).") from None


def texts_of(serialised: bytes) -> dict[str, str]:
    """Return the text features of a serialised tf.train.Example.

    Raises:
        ValueError: it is not such a message.
    """
    from google.protobuf.message import DecodeError

    try:
        example = _message()()
        example.ParseFromString(serialised)
        return {
            feature.key: feature.value.bytes_list.value[0].decode()
            for feature in example.features.feature
            if feature.value.bytes_list.value
        }
    except DecodeError as error:
        raise ValueError(str(error)) from None


@cache
def _message() -> Any:
    """Return the message class of tf.train.Example, defined here so that TensorFlow is not needed.

    Only the fields that are read have names.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(SCHEMA, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("clipnoise.Example"))


SCHEMA = """
name: "example.proto" package: "clipnoise"
message_type { name: "BytesList" field {
    name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "Feature" field {
    name: "bytes_list" number: 1 type_name: ".clipnoise.BytesList" label: LABEL_OPTIONAL } }
message_type { name: "Entry" field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type_name: ".clipnoise.Feature" label: LABEL_OPTIONAL } }
message_type { name: "Features" field {
    name: "feature" number: 1 type_name: ".clipnoise.Entry" label: LABEL_REPEATED } }
message_type { name: "Example" field {
    name: "features" number: 1 type_name: ".clipnoise.Features" label: LABEL_OPTIONAL } }
"""
