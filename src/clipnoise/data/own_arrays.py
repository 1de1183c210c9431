"""How the columns of a user's files become the arrays that an `own` dataset stores."""

from __future__ import annotations

import logging
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from clipnoise.data.columns import ColumnRule
from clipnoise.data.rows import SPARSE, RaggedWriter
from clipnoise.data.tables import DECIMAL_COMMA, Layout, read_columns
from clipnoise.data.text import Tokenizer
from clipnoise.errors import UserError, nearest
from clipnoise.lazy import np

logger = logging.getLogger(__name__)

MISSING, MOST_GROUPS = "missing", 50  # of groups of test examples
LARGEST = 1e18  # squares of larger numbers are infinite in float32, and so are their norms


def joined(inputs: Mapping[str, Any], rules: Mapping[str, ColumnRule]) -> np.ndarray:
    """Return arrays, or columns by their rules, as one array of shape (n, …)."""
    arrays = [rules[name].numbers(name, values) if name in rules
              else numbers_in(values, name)
              for name, values in inputs.items()]  # fmt: skip
    return arrays[0] if len(arrays) == 1 else np.column_stack(arrays)


def as_numbers(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return inputs as float32 of shape (n, *shape)."""
    if math.prod(values.shape[1:]) != math.prod(shape):
        raise ValueError(f"inputs of shape {values.shape[1:]}, but {shape} is declared")
    return finite("inputs", values.reshape(-1, *shape))


def as_categories(inputs: Mapping[str, Any], rules: Mapping[str, ColumnRule]) -> np.ndarray:
    """Return the ids of the columns with categories, int32 of shape (n, columns).

    The ids of a column follow those of the column before it.
    """
    first = np.cumsum([0, *(rules[name].width for name in inputs)])[:-1]
    ids = [rules[name].ids(name, values) for name, values in inputs.items()]
    joined: np.ndarray = np.column_stack(ids) + first
    return joined.astype("int32")


def as_images(
    path: Path,
    images: np.ndarray,
    shape: tuple[int, ...],
    order: Literal["first", "last"] | None,
) -> np.ndarray:
    """Return images with their channels first, as bytes or floats; `order` is that of the file."""
    channels, height, width = shape
    first, last = (channels, height, width), (height, width, channels)
    stored = last if order == "last" else first
    either = {first, last, (height, width)} if channels == 1 else set()
    if images.shape[1:] not in {stored, (math.prod(stored),), *either}:
        where = f" with channels {order}" if order else ""
        raise ValueError(f"images of shape {images.shape[1:]}, but {stored}{where} is declared")
    images = images.reshape(-1, *stored)
    images = np.moveaxis(images, -1, 1) if order == "last" else images
    if images.dtype.kind in "iu":
        require_range("the pixel", images, 256)
        return images.astype("uint8")
    if images.max(initial=0) > 1:
        logger.warning(
            "%s: pixels are floats of up to %g, and are left as they are. Whole numbers from 0 "
            "to 255 would be scaled to [0, 1].", path, images.max()
        )  # fmt: skip
    return finite("inputs", images)


def as_tokens(rows: Any, longest: int, vocabulary: int) -> np.ndarray:
    """Return token ids, int32 of shape (n, longest), padded with 0."""
    padded = np.zeros((len(rows), longest), dtype="int64")
    for number, row in enumerate(rows):
        ids = numbers_in(row, f"row {number}") if len(row) else np.zeros(0, "int64")
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or len(ids) > len(padded[number]):
            raise ValueError(f"row {number} is not a list of up to {longest} token ids")
        padded[number, : len(ids)] = ids
    require_range("the token id", padded, vocabulary)
    return padded.astype("int32")


def ids_of(
    texts: Any, longest: int, vocabulary: int, tokenizer: str | None, weights: Path
) -> Iterator[np.ndarray]:
    """Yield the token ids of each text, of its hashed words if there is no tokenizer."""
    found = words_of(texts)
    if tokenizer is None:
        for words in found:
            yield 1 + _hashed(words[:longest], vocabulary - 1)
    else:
        encoder = Tokenizer(tokenizer, weights, longest, vocabulary)
        yield from encoder.encode((text,) for text, _ in zip(texts, found, strict=True))


def as_counts(texts: Any, buckets: int, cache: Path) -> dict[str, np.ndarray]:
    """Return the hashed words of all texts, and how often each occurs, as sparse rows."""
    bags = RaggedWriter(cache, "int32", "float32")
    for words in words_of(texts):
        places, counts = np.unique(_hashed(words, buckets), return_counts=True)
        bags.append(places, counts / max(len(words), 1))
    return dict(zip(SPARSE, bags.arrays(), strict=True))


def numbered_labels(name: str, labels: Any, classes: tuple[str | int, ...]) -> np.ndarray:
    """Return labels as numbers: their places among the classes, where these are named."""
    require_labels(name, labels)
    if not classes:
        if any(isinstance(label, str) for label in labels):
            raise ValueError(
                f"{name} holds text: name its classes in the study, in the order in "
                f"which they are to be numbered: classes: [{', '.join(labels_in(labels)[:9])}]"
            )
        return numbers_in(labels, name)
    place = {str(label): number for number, label in enumerate(classes)}
    for label in labels_in(labels):
        if label not in place:
            allowed = ", ".join(place)
            raise ValueError(
                f"the label {label!r} is no class.{nearest(label, place)} classes: {allowed}"
            )
    return np.array([place[text] for text in as_labels(labels)])


def numbered_groups(path: Path, column: str, layout: Layout) -> dict[str, np.ndarray]:
    """Return the names of the groups of a file, and the number of each row's group.

    A row without a value is in a group of its own.

    Raises:
        UserError: the column holds no names and no whole numbers, or too many different ones.
    """
    (values,) = read_columns(path, (column,), layout=layout, may_lack=(column,)).values()
    rows = [MISSING if one is None or one == "" or one != one else one for one in values]
    names, numbers = np.unique(as_labels(np.array(rows, dtype=object)), return_inverse=True)
    if len(names) > MOST_GROUPS or any(isinstance(one, float) and one % 1 for one in rows):
        raise UserError(
            f"{path}: groups: {column} has {len(names):,} different values. Give a column of names "
            f"or whole numbers, at most {MOST_GROUPS} of them."
        )
    return {"group_names": names, "test_groups": numbers.astype("int64")}


def labels_in(values: Any) -> list[str]:
    """Return the different labels of a column, as text, in order."""
    kinds = np.unique(np.asarray(values))
    return as_labels(kinds)


def as_labels(values: Any) -> list[str]:
    """Return labels as text; the whole number 2 and the float 2.0 are the label 2."""
    return [str(int(one)) if _is_whole(one) else str(one) for one in np.asarray(values).tolist()]


def _is_whole(value: object) -> bool:
    return isinstance(value, float) and value.is_integer()


def require_labels(name: str, labels: Any) -> None:
    """Raise ValueError where a label is missing: it is no class of its own."""
    for row, label in enumerate(labels):
        if label is None or label == "" or label != label:
            raise ValueError(f"{name}: a missing label in row {row}")


def words_of(texts: Any) -> Iterator[list[str]]:
    """Yield the words of each text, in lower case; anything but text raises ValueError."""
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"row {number} is no text")
        yield re.findall(r"\w+(?:'\w+)?", text.lower())


def _hashed(words: list[str], count: int) -> np.ndarray:
    """Return a number from 0 to count − 1 for each word, the same everywhere."""
    return np.array([zlib.crc32(word.encode()) % count for word in words], dtype="int64")


def numbers_in(values: Any, name: str) -> np.ndarray:
    """Return the numbers of a column as an array; anything else raises ValueError."""
    try:
        numbers = np.asarray(values)
    except ValueError:
        raise ValueError(
            f"{name} holds lists of different lengths where each must have the same"
        ) from None
    if numbers.dtype.kind not in "iufb":
        first = next(iter(values), "")
        if isinstance(first, str) and DECIMAL_COMMA.fullmatch(first):
            hint = f". Where {first!r} is a number, give the layout: decimal: ','"
        elif isinstance(first, str):
            hint = ", not text: give the categories of the column, from a public list"
        else:
            hint = f", got {numbers.dtype}"
        raise ValueError(f"{name}: expected numbers{hint}")
    return numbers


def finite(name: str, values: np.ndarray) -> np.ndarray:
    """Return numbers as float32; one that is not finite, or too large, raises ValueError."""
    narrow = values.astype("float32")
    if not (np.abs(narrow) < LARGEST).all():
        raise ValueError(f"{name} must be finite and below {LARGEST:g} in size, but some are not")
    return narrow


def require_range(name: str, values: np.ndarray, count: int) -> None:
    """Raise ValueError unless whole numbers are between 0 and count − 1."""
    wrong = values[(values < 0) | (values >= count)]
    if wrong.size:
        raise ValueError(f"{name} {wrong.flat[0]}; allowed are 0 to {count - 1}")
