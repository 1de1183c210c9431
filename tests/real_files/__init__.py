"""Small files in the exact on-disk format of the real sources, and the options that fit them.

Each module is one family of datasets. It says RAW, how to write the raw files of a dataset into a
cache, with the same bytes each time, and OPTIONS, the sizes that such files have. A dataset that
needs no files is in neither.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clipnoise.data.base import Dataset
from clipnoise.fields import parse, to_plain
from clipnoise.plugins import plugins

DATASETS = plugins("clipnoise.data", Dataset)
RAW: dict[str, Callable[[Path], None]] = {}
OPTIONS: dict[str, dict[str, Any]] = {}
PUBLIC = 5

for _found in pkgutil.iter_modules(__path__):
    _module = importlib.import_module(f"{__name__}.{_found.name}")
    RAW.update(_module.RAW)
    OPTIONS.update(_module.OPTIONS)


def small(name: str, **options: Any) -> Dataset:
    """Build a dataset as small as its files here."""
    return parse(DATASETS[name], {**OPTIONS.get(name, {}), **options})


def small_with_public(name: str) -> Dataset:
    """Build the same with public examples, where the dataset offers them."""
    offered = "public_examples" in to_plain(small(name))
    return small(name, public_examples=PUBLIC) if offered else small(name)


def write_raw(cache: Path, name: str) -> Dataset:
    """Write the raw files of a dataset into a cache, say that they are wanted, and build it."""
    RAW.get(name, lambda cache: None)(cache)
    dataset = small(name)
    dataset.raw_files(cache).accept()
    return dataset


def prepare(cache: Path, name: str) -> Dataset:
    """Write the raw files of a dataset and prepare it."""
    dataset = write_raw(cache, name)
    dataset.prepare(cache)
    return dataset
