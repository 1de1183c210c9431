"""The user's pictures: a column of a table names their files, and each becomes one array."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from clipnoise.data.remote import digest
from clipnoise.errors import UserError, reason
from clipnoise.files import csv_text, inside, write_atomically
from clipnoise.lazy import np

MODES = {1: "L", 3: "RGB"}  # by the number of channels, as pillow calls them
DEEP = ("I", "F")  # more than 8 bits for each channel, with or without an order of bytes
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
FILE, CLASS = "file", "class"  # the columns of a list of pictures


def name_files(values: object) -> bool:
    """Return whether a column holds names of files, not pixels."""
    return isinstance(values, list) and bool(values) and isinstance(values[0], str)


def read_pictures(folder: Path, names: Sequence[str], shape: tuple[int, ...]) -> np.ndarray:
    """Read pictures, each by itself: turned as its file says, in grey or colour, and resized.

    Args:
        folder: to which the names of the files are relative.
        names: of n files.
        shape: of an example: (1 or 3, height, width). Proportions are not kept.

    Returns:
        Bytes of shape (n, *shape).

    Raises:
        ValueError: a file is missing, damaged or no picture; the message names it.
    """
    from PIL import Image, ImageOps

    channels, height, width = shape
    if channels not in MODES:
        raise ValueError(f"pictures have 1 channel (grey) or 3 (colour), got shape {shape}")
    pixels = np.zeros((len(names), height, width, channels), dtype="uint8")
    for row, name in enumerate(names):
        path = inside(folder, str(name), key=f"row {row}")
        try:
            with Image.open(path) as opened:
                if opened.mode.partition(";")[0] in DEEP:
                    raise ValueError(f"its mode is {opened.mode}; save it with 8 bits a channel")
                picture = ImageOps.exif_transpose(opened).convert(MODES[channels])
            resized = picture.resize((width, height), Image.Resampling.BILINEAR)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"the picture {path} in row {row} cannot be read: {reason(error)}"
                             ) from None  # fmt: skip
        pixels[row] = np.asarray(resized).reshape(height, width, channels)
    return np.moveaxis(pixels, -1, 1)


def digest_of_pictures(folder: Path, names: Sequence[str]) -> str:
    """Return the SHA-256 over the digests of pictures, in order."""
    each = "".join(digest(inside(folder, name, key=name), "sha256") for name in names)
    return hashlib.sha256(each.encode()).hexdigest()


def list_pictures(folder: Path, file: Path) -> Path:
    """Write the pictures in a folder, which has a folder for each class, as a table.

    Args:
        folder: somewhere below that of the table.
        file: the table: a .csv file with the columns `file`, relative to its folder, and `class`.

    Returns:
        The table.

    Raises:
        UserError: there is no picture, or there is a table already.
    """
    if file.exists():
        raise UserError(f"{file}: is there already; describe it instead, or delete it.")
    rows = [
        {FILE: path.relative_to(file.parent).as_posix(), CLASS: path.relative_to(folder).parts[0]}
        for path in sorted(folder.glob("*/**/*"))
        if path.is_file() and path.suffix.lower() in ENDINGS
    ]
    if not rows:
        raise UserError(
            f"{folder}: no pictures in folders named by their classes, with names that end in "
            f"{', '.join(ENDINGS)}."
        )
    write_atomically(file, csv_text((FILE, CLASS), rows))
    return file
