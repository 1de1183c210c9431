"""The user's raw files that a prepared dataset was made from, and whether they have changed since.

Pictures that a table names are not looked at: it would take as long as preparing them again.
"""

from __future__ import annotations

from pathlib import Path

from clipnoise.data.cache import MANIFEST
from clipnoise.data.own import Own
from clipnoise.data.remote import digest
from clipnoise.data.tables import FORMS
from clipnoise.errors import UserError
from clipnoise.files import read_json

PARTS = ("train", "test", "validation")


def raw_digests(dataset: Own, cache: Path) -> dict[str, str]:
    """Return the SHA-256 of each raw file of a dataset, by name.

    A file that is not there, or has not been written since it was prepared, counts as it was then.
    """
    made = cache / dataset.prepared / MANIFEST
    noted = _noted(made)
    at = made.stat().st_mtime_ns if noted else 0
    for path in _present(dataset, cache):
        if path.name not in noted or path.stat().st_mtime_ns > at:
            noted[path.name] = digest(path, "sha256")
    return noted


def verify_raw(dataset: Own, cache: Path) -> dict[str, str]:
    """Return the SHA-256 of each raw file that is there and was prepared, by path.

    Raises:
        UserError: a file is another one than was prepared.
    """
    noted, found = _noted(cache / dataset.prepared / MANIFEST), {}
    for path in _present(dataset, cache):
        if path.name in noted:
            found[str(path)] = digest(path, "sha256")
            if found[str(path)] != noted[path.name]:
                raise UserError(
                    f"{path}: has changed since it was prepared. Run: clipnoise data prepare "
                    f"{dataset.invocation} --cache {cache}"
                )
    return found


def _noted(manifest: Path) -> dict[str, str]:
    """Return the SHA-256 of raw files as a manifest has them; nothing where there is none."""
    try:
        return {name: raw["sha256"] for name, raw in read_json(manifest)["raw files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _present(dataset: Own, cache: Path) -> list[Path]:
    folder = cache / "raw" / dataset.name
    paths = (folder / f"{part}{form}" for part in PARTS for form in FORMS)
    return [path for path in paths if path.is_file()]
