"""ogbn-arxiv, from the archive of the Open Graph Benchmark."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clipnoise.data.base import Examples, Splits
from clipnoise.data.cache import read_arrays, read_manifest, write_arrays
from clipnoise.data.fetch import RemoteFile, facts, require_raw
from clipnoise.data.graphs import examples
from clipnoise.data.partition import Partitioned
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.fields import Count, Natural

if TYPE_CHECKING:
    import numpy as np

FEATURES, CLASSES = 128, 40
SPLITS = {"train": "train", "validation": "valid", "test": "test"}


@dataclass(frozen=True, kw_only=True)
class OgbnArxiv(Partitioned):
    """169,343 papers of computer science on arXiv, with the citations among them, in 40 subjects.

    Citations count both ways. Training, validation and test papers form graphs of their own, as in
    Daigavane et al. 2021 (ogbn-arxiv-disjoint), and so do the public ones.

    Attributes:
        split_seed: which training papers are private or public, and which edges are kept.
        degree: K, the bound on in- and out-degrees.
    """

    id: ClassVar[str] = "ogbn-arxiv"
    title: ClassVar[str] = "ogbn-arxiv"
    licence: ClassVar[str] = "ODC-BY 1.0"
    source: ClassVar[str] = (
        "W. Hu et al., Open Graph Benchmark: datasets for machine learning on graphs, NeurIPS "
        "2020; citations and texts from the Microsoft Academic Graph"
    )
    split: ClassVar[str] = "published, by year: up to 2017, 2018, from 2019; public from the first"
    preprocessing: ClassVar[str] = (
        "citations both ways, within a split only; in- and out-degrees bounded by K; features as "
        "published (means of word vectors)"
    )
    manual: ClassVar[str] = "no licence to accept; the archive as it is, not unpacked."
    files: ClassVar[tuple[RemoteFile, ...]] = (
        RemoteFile("arxiv.zip", "https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"),
    )
    training_file: ClassVar[int] = 90_941
    validation_file: ClassVar[int] = 29_799
    test_file: ClassVar[int] = 48_603

    validation_examples: Natural = 29_799
    degree: Count = 7

    @property
    def signature(self) -> Signature:
        return Signature("nodes", (1 + self.degree, FEATURES + 1), CLASSES)

    def degree_bound(self) -> int:
        return self.degree

    def prepare(self, cache: Path) -> None:
        """Write the whole graph, whatever the split and the degree: they apply when loading."""
        path = require_raw(cache, self) / self.files[0].name
        try:
            with zipfile.ZipFile(path) as archive:
                arrays = _graph(path, archive)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise UserError(f"{path}: truncated or damaged ({error}).") from None
        write_arrays(cache / self.prepared, arrays, facts(cache, self))

    def load(self, cache: Path) -> Splits:
        import torch

        arrays = read_arrays(cache / self.prepared, self.id)
        members = {part: torch.from_numpy(arrays[part].astype("int64")) for part in SPLITS}
        rows = self.positions({part: len(nodes) for part, nodes in members.items()})

        def take(part: str) -> Examples:
            file = "train" if part == "public" else part
            return examples(
                arrays["features"],
                arrays["labels"],
                arrays["edges"],
                members[file][rows[part]],
                degree=self.degree,
                seed=self.split_seed if file == "train" else 0,
            )

        provenance = read_manifest(cache / self.prepared, self.id).provenance()
        return Splits.taken(take, self.sizes(), provenance)


def _graph(path: Path, archive: zipfile.ZipFile) -> dict[str, np.ndarray]:
    """Read the archive and check that its parts fit together.

    Raises:
        UserError: a part is missing, is no table of numbers, or does not fit; names it.
    """
    import numpy as np

    features = _table(path, archive, "raw/node-feat", "float32", FEATURES)
    count = len(features)
    labels = _table(path, archive, "raw/node-label", "int64", 1, below=CLASSES)[:, 0]
    edges = _table(path, archive, "raw/edge", "int64", 2, below=count)
    nodes = {
        part: _table(path, archive, f"split/time/{name}", "int64", 1, below=count)[:, 0]
        for part, name in SPLITS.items()
    }
    if len(labels) != count:
        raise UserError(f"{path}: node-label has {len(labels)} rows, node-feat {count}.")
    if not np.isfinite(features).all():
        raise UserError(f"{path}: node-feat holds a number that is not finite.")
    everyone = np.concatenate(list(nodes.values()))
    if len(np.unique(everyone)) != len(everyone):
        raise UserError(f"{path}: a node is twice in the files of split/time.")
    whole = {"edges": edges, **nodes}
    return {
        "features": features,
        "labels": labels.astype("uint8"),
        **{name: values.astype("int32") for name, values in whole.items()},
    }


def _table(
    path: Path,
    archive: zipfile.ZipFile,
    name: str,
    dtype: str,
    columns: int,
    below: int | None = None,
) -> np.ndarray:
    """Read one of the compressed CSV files, without a head, of the archive.

    Args:
        path: of the archive, for messages.
        archive: the archive.
        name: of the file, below its folder, without endings.
        dtype: of its numbers.
        columns: that it must have.
        below: what its numbers, from 0, must be below; None allows any.
    """
    import pandas as pd

    member = f"arxiv/{name}.csv.gz"
    try:
        with archive.open(member) as stream:
            table = pd.read_csv(stream, header=None, compression="gzip", dtype=dtype)
    except KeyError:
        raise UserError(f"{path}: holds no {member}.") from None
    except (ValueError, pd.errors.ParserError) as error:
        raise UserError(f"{path}: {member} is no table of {dtype} ({error}).") from None
    values: np.ndarray = table.to_numpy()
    if values.shape[1] != columns:
        raise UserError(f"{path}: {member} has {values.shape[1]} columns, expected {columns}.")
    if below is not None and len(values) and not 0 <= values.min() <= values.max() < below:
        wrong = values.min() if values.min() < 0 else values.max()
        raise UserError(f"{path}: {member} holds {wrong}; allowed are 0 to {below - 1}.")
    return values
