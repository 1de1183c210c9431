"""What becomes of the columns of a table, by names and numbers that are known without the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from clipnoise.errors import nearest
from clipnoise.fields import STRICT
from clipnoise.lazy import np


@dataclass(frozen=True, kw_only=True)
class ColumnRule:
    """How a column becomes numbers. Nothing of it may be computed from private rows.

    Attributes:
        categories: the values that occur: one number for each, 1 for the value of the row and 0 for
            the others.
        range: of the values, which is mapped to 0 … 1; values beyond it are set to its ends.
        missing: stands for a missing value, and a further number is 1 where it does; for
            categories, 0: a missing value is none of them. None refuses missing values.
    """

    __pydantic_config__: ClassVar = STRICT

    categories: tuple[str | int, ...] = ()
    range: tuple[float, float] | None = None
    missing: float | None = None

    def __post_init__(self) -> None:
        if self.categories and self.range is not None:
            raise ValueError("a column has categories or a range, not both")
        if len(set(map(str, self.categories))) < len(self.categories):
            raise ValueError("categories must differ")
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ValueError(f"range must ascend, got {list(self.range)}")
        if self.categories and self.missing not in (None, 0):
            raise ValueError(f"missing must be 0 for categories, got {self.missing:g}")

    @property
    def width(self) -> int:
        """How many numbers a value becomes, or how many ids there are for it."""
        return max(1, len(self.categories)) + (self.missing is not None)

    def numbers(self, name: str, values: Any) -> np.ndarray:
        """Return the numbers of a column, shape (n, width), as floats.

        Args:
            name: of the column, for error messages.
            values: one for each row; None, nan or an empty text is missing.

        Raises:
            ValueError: a value is missing or no category, or no number, where it must be.
        """
        lacks = self._lacks(name, values)
        filled = self._encoded(name, values, lacks)
        return filled if self.missing is None else np.column_stack([filled, lacks])

    def _lacks(self, name: str, values: Any) -> np.ndarray:
        """Return whether each value is missing; one that must not be raises ValueError."""
        lacks = np.array([_is_missing(value) for value in values], dtype=bool)
        if lacks.any() and self.missing is None:
            raise ValueError(f"{name}: a missing value in row {int(lacks.argmax())}")
        return lacks

    def ids(self, name: str, values: Any) -> np.ndarray:
        """Return the place of each value among the categories, int64 of shape (n,).

        A missing value has the place after the last. Arguments and errors are those of `numbers`.
        """
        lacks = self._lacks(name, values)
        return self._places(name, values, lacks)

    def _places(self, name: str, values: Any, lacks: np.ndarray) -> np.ndarray:
        place = {str(category): number for number, category in enumerate(self.categories)}
        places = np.full(len(lacks), len(place), dtype="int64")
        for row in np.flatnonzero(~lacks):
            value = str(values[row])
            if value not in place:
                allowed = ", ".join(place)
                raise ValueError(
                    f"{name}: {value!r} in row {row} is no category."
                    f"{nearest(value, place)} Allowed: {allowed}"
                )
            places[row] = place[value]
        return places

    def _encoded(self, name: str, values: Any, lacks: np.ndarray) -> np.ndarray:
        if self.categories:
            places = self._places(name, values, lacks)
            return np.eye(len(self.categories) + 1)[places, :-1]
        try:
            kept = [self.missing if lack else float(value)
                    for value, lack in zip(values, lacks, strict=True)]  # fmt: skip
        except (TypeError, ValueError):
            raise ValueError(f"{name}: expected numbers") from None
        numbers = np.array(kept, dtype="float64")
        if self.range is not None:
            low, high = self.range
            numbers = (numbers.clip(low, high) - low) / (high - low)
        return numbers[:, None]

    def __str__(self) -> str:
        """Describe the rule in words, for the provenance of a dataset."""
        return self.words()

    def words(self, each: str = "number") -> str:
        """Describe the rule in words; each category becomes a number, or has an id."""
        words = [f"one {each} for each of {', '.join(map(str, self.categories))}"]
        words = words if self.categories else []
        if self.range is not None:
            words.append(f"[{self.range[0]:g}, {self.range[1]:g}] mapped to [0, 1]")
        if self.missing is not None:
            words.append(f"a missing value is {self.missing:g}, with an indicator")
        return "; ".join(words) or "as it is"


def may_lack(rules: Mapping[str, ColumnRule]) -> list[str]:
    """Return the columns of which values may be missing."""
    return [name for name, rule in rules.items() if rule.missing is not None]


def _is_missing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))
