"""E-mails: what is read of them, and that no sender is in two parts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from real_files import DATASETS, prepare, small
from real_files.packages import mail, write_mails

from clipnoise.data.mails import Mail, Mails, mails_in
from clipnoise.data.packages import NpmFile
from clipnoise.data.remote import digest
from clipnoise.errors import UserError

NAMES = ("spamassassin", "spamassassin-words")


def read(cache: Path, *every: dict[str, Any]) -> tuple[Mail, ...]:
    """Write some e-mails and read them again."""
    write_mails(cache, every)
    kind = DATASETS["spamassassin"]
    (name,) = (file.name for file in kind.files if isinstance(file, NpmFile))
    package = cache / "raw" / kind.raw / name
    return mails_in(package, digest(package, "sha256"), kind.pieces["train"])


def written(sender: str, body: str, **headers: str) -> dict[str, Any]:
    lines = {"From": sender, "Subject": "a subject", **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\n" for name, value in lines.items())
    return {"text": f"{head}\n{body}"}


def test_an_e_mail_is_what_its_sender_wrote(tmp_path: Path) -> None:
    plain = written("A <A@b.org>", "hello\n> quoted\n | too\nthere\n")
    coded = written("b@b.org", "w=C3=A4re", Content_Transfer_Encoding="quoted-printable",
                    Content_Type="text/plain; charset=utf-8")  # fmt: skip
    html = written("c@b.org", "<p\n>kept</p>", Content_Type="text/html")
    parts = "--x\nContent-Type: text/plain\n\nsaid\n--x\nContent-Type: image/png\n\nbytes\n--x--\n"
    several = written("d@b.org", parts, Content_Type="multipart/mixed; boundary=x")
    found = read(tmp_path, plain, coded, html, several)
    assert [one.sender for one in found] == ["a@b.org", "b@b.org", "c@b.org", "d@b.org"]
    assert found[0].text.split() == ["hello", "there"]
    assert [one.text.strip() for one in found[1:]] == ["wäre", "<p\n>kept</p>", "said"]


def test_what_has_no_sender_no_words_or_an_earlier_one_s_words_is_left_out(
    tmp_path: Path,
) -> None:
    first = written("a@b.org", "Some words.")
    again = written("b@b.org", "<b>some</b> WORDS")
    found = read(tmp_path, first, again, written("", "others"), written("c@b.org", "> …\n..."))
    assert [one.sender for one in found] == ["a@b.org"]


@pytest.mark.parametrize("name", NAMES)
def test_no_sender_is_in_two_parts(name: str, tmp_path: Path) -> None:
    dataset = prepare(tmp_path, name)
    assert isinstance(dataset, Mails)
    folder = tmp_path / "raw" / dataset.raw
    parts = ("train", "validation", "test")
    senders = [{mail.sender for mail in dataset._mails(folder, part)} for part in parts]
    assert all(senders)
    assert all(not one & other for one, other in itertools.combinations(senders, 2))


def test_the_part_of_a_sender_depends_on_no_other_e_mail(tmp_path: Path) -> None:
    parts = {one.sender: one.part for one in read(tmp_path / "all", *map(mail, range(60)))}
    (alone,) = read(tmp_path / "one", mail(7))
    assert alone.part == parts[alone.sender]


def test_the_examples_of_a_sender_are_those_of_one_user(tmp_path: Path) -> None:
    dataset = prepare(tmp_path, "spamassassin")
    assert isinstance(dataset, Mails)
    mails = list(dataset._mails(tmp_path / "raw" / dataset.raw, "train"))
    users = dataset.read(tmp_path)[0]["train_users"]
    pairs = {(one.sender, int(user)) for one, user in zip(mails, users, strict=True)}
    senders = {one.sender for one in mails}
    assert len(pairs) == len(senders) == users.max() + 1
    loaded = small("spamassassin").load(tmp_path).users
    assert loaded is not None
    assert len(loaded) == small("spamassassin").sizes()["train"]


def test_neither_headers_nor_the_folder_are_in_the_features(tmp_path: Path) -> None:
    one = prepare(tmp_path / "a", "spamassassin").read(tmp_path / "a")[0]["train_values"]
    changed = [{"text": mail(n)["text"].replace("Subject: class", "Subject: film actor river")}
               for n in range(300)]  # fmt: skip
    write_mails(tmp_path / "b", changed)
    dataset = small("spamassassin")
    dataset.raw_files(tmp_path / "b").accept()
    dataset.prepare(tmp_path / "b")
    assert (dataset.read(tmp_path / "b")[0]["train_values"] == one).all()


@pytest.mark.parametrize("content", [{"text": 3}, {"words": "a"}, []])
def test_a_package_that_is_not_the_corpus_is_named(content: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"stdlib.*tgz: not the corpus as it was published"):
        read(tmp_path, content)
