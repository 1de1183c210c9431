"""The cache of prepared datasets: arrays, with a manifest that describes them."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from clipnoise.errors import UserError
from clipnoise.fields import adapter
from clipnoise.files import write_json, writing
from clipnoise.lazy import np

MANIFEST = "manifest.json"


def write_arrays(folder: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write arrays as .npy files, then the manifest; they appear once all are written.

    The same arrays and facts give the same bytes. Memory-mapped arrays are written in pieces.

    Args:
        folder: the dataset's folder in the cache; created if missing.
        arrays: by name; the file is `<name>.npy`.
        facts: what else the manifest records: source, licence, preprocessing, versions, …

    Raises:
        UserError: the folder cannot be written; it stays as it was.
    """
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as staged:
            staging = Path(staged)
            files = {}
            for name, array in arrays.items():
                path = staging / f"{name}.npy"
                np.save(path, array, allow_pickle=False)
                files[path.name] = asdict(ArrayFile(_sha256(path), array.shape, str(array.dtype)))
            write_json(staging / MANIFEST, {**facts, "files": files})
            folder.mkdir(exist_ok=True)
            for name in (*files, MANIFEST):
                (staging / name).replace(folder / name)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class ArrayFile:
    """The entry of one array's file in a manifest."""

    sha256: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Manifest:
    """What the manifest of a dataset must contain; it may contain more."""

    source: str
    licence: str
    files: dict[str, ArrayFile]

    def digests(self) -> dict[str, str]:
        """Return the digest of each prepared file, as a result file records it."""
        return {f"sha256 of {name}": file.sha256 for name, file in self.files.items()}

    def provenance(self) -> dict[str, str]:
        """Return what a result file should record about its data."""
        return {"source": self.source, "licence": self.licence, **self.digests()}


def read_manifest(folder: Path, dataset: str) -> Manifest:
    """Read the manifest in the folder of a dataset.

    Raises:
        UserError: it is missing or is not a manifest; the message says how to prepare the dataset,
            given its id or its `invocation`.
    """
    path = folder / MANIFEST
    try:
        return cast("Manifest", adapter(Manifest).validate_json(path.read_bytes()))
    except FileNotFoundError:
        raise _unusable(path, dataset, "does not exist") from None
    except OSError as error:
        raise _unusable(path, dataset, f"cannot be read ({error.strerror})") from None
    except ValidationError:
        raise _unusable(path, dataset, "is not a manifest") from None


def read_arrays(folder: Path, dataset: str) -> dict[str, np.ndarray]:
    """Open the arrays in the folder of a dataset, after checking them against its manifest.

    Returns:
        Memory-mapped, read-only arrays by name.

    Raises:
        UserError: a file is missing or differs from what was prepared; as for `read_manifest`.
    """
    arrays = {}
    for name, file in read_manifest(folder, dataset).files.items():
        path = folder / name
        try:
            if _sha256(path) != file.sha256:
                raise _unusable(path, dataset, "is not what was prepared (truncated or changed)")
            arrays[path.stem] = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise _unusable(path, dataset, "does not exist") from None
        except (OSError, ValueError) as error:
            raise _unusable(path, dataset, f"cannot be read ({error})") from None
    return arrays


def _unusable(path: Path, dataset: str, problem: str) -> UserError:
    return UserError(
        f"{path} {problem}: the dataset {dataset.split()[0]!r} is not prepared here. "
        f"Run: clipnoise data prepare {dataset} --cache {path.parent.parent}"
    )
