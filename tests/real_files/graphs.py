"""The archive of ogbn-arxiv with few nodes, in its real layout."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, CLASSES = 128, 40
SIZES = {"train": 120, "valid": 30, "test": 40}


def table(values: np.ndarray) -> bytes:
    """Return numbers as a compressed CSV file without a head."""
    rows = values.reshape(len(values), -1).tolist()
    text = "".join(",".join(map(repr, row)) + "\n" for row in rows)
    return gzip.compress(text.encode(), mtime=0)


def members() -> dict[str, bytes]:
    """Return the files of the archive by name."""
    draws = np.random.default_rng(0)
    count = sum(SIZES.values())
    labels = np.arange(count) % CLASSES
    features = draws.normal(size=(CLASSES, FEATURES))[labels] + draws.normal(size=(count, FEATURES))
    order = draws.permutation(count)
    parts = dict(zip(SIZES, np.split(order, np.cumsum(list(SIZES.values()))[:-1]), strict=True))
    years = np.empty(count, dtype=int)
    for part, year in zip(SIZES, (2015, 2018, 2019), strict=True):
        years[parts[part]] = year
    cited = (count * draws.random(7 * count) ** 2).astype(int)
    edges = np.stack([np.repeat(np.arange(count), 7), cited], axis=1)
    numbers = {
        "raw/edge": edges,
        "raw/node-feat": features.round(6),
        "raw/node-label": labels,
        "raw/node_year": years,
        "raw/num-node-list": np.array([count]),
        "raw/num-edge-list": np.array([len(edges)]),
        **{f"split/time/{part}": np.sort(nodes) for part, nodes in parts.items()},
    }
    return {f"arxiv/{name}.csv.gz": table(values) for name, values in numbers.items()}


def write(cache: Path, files: Mapping[str, bytes] | None = None) -> None:
    """Write the archive."""
    path = cache / "raw" / "ogbn-arxiv" / "arxiv.zip"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (members() if files is None else files).items():
            archive.writestr(zipfile.ZipInfo(name), content)


RAW: dict[str, Callable[[Path], None]] = {"ogbn-arxiv": write}
OPTIONS: dict[str, dict[str, Any]] = {
    "ogbn-arxiv": {
        "train_examples": 100,
        "validation_examples": 25,
        "test_examples": 30,
        "degree": 3,
    },
    "synthetic-graph": {
        "train_examples": 60,
        "validation_examples": 20,
        "test_examples": 20,
        "features": 6,
        "classes": 4,
        "degree": 3,
    },
}
