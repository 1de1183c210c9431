"""Texts with a label, in Parquet files as on the Hugging Face hub: what their datasets share."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from clipnoise.data.base import Examples, Splits
from clipnoise.data.readers import check_label, parquet_rows
from clipnoise.data.remote import RemoteFile
from clipnoise.data.rows import RaggedRows, RaggedWriter
from clipnoise.data.signature import Signature
from clipnoise.data.splits import Partitioned
from clipnoise.data.text import TOKENIZERS, Tokenising, Tokenizer, TokenizerName
from clipnoise.fields import Count

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from clipnoise.data.rows import Rows

Parts = Mapping[str, tuple[str, ...]]
Encode: TypeAlias = "Callable[[Iterable[Sequence[str]]], Iterator[np.ndarray]]"

NO_LABEL = -1


def one_file_each(folder: str, **names: str) -> Parts:
    """Return the file of each part where the hub keeps it in one piece."""
    return {part: (f"{folder}/{name}-00000-of-00001",) for part, name in names.items()}


def hub_files(repository: str, parts: Parts) -> tuple[RemoteFile, ...]:
    """Return the Parquet files of a dataset on the Hugging Face hub."""
    page = f"https://huggingface.co/datasets/{repository}/resolve/main"
    names = [f"{name}.parquet" for files in parts.values() for name in files]
    return tuple(RemoteFile(name, f"{page}/{name}") for name in names)


@dataclass(frozen=True, kw_only=True)
class LabelledTexts(Partitioned):
    """Base of the datasets whose raw files are texts with a label.

    Attributes:
        columns: of the text: one for a sentence, two for a pair.
        classes: number of labels.
        parts: the files of each part of the source, without `.parquet`.
        drops_unlabelled: whether rows with the label −1 are left out; elsewhere they are an error.
    """

    columns: ClassVar[tuple[str, ...]]
    classes: ClassVar[int]
    parts: ClassVar[Parts]
    drops_unlabelled: ClassVar[bool] = False
    manual: ClassVar[str] = "no licence to accept; the Parquet files of the Hugging Face hub."

    def labelled(self, folder: Path, part: str, labels: array[int]) -> Iterator[Sequence[str]]:
        """Yield the texts of a part; the label of each is appended as it is yielded.

        Args:
            folder: of the raw files.
            part: one of `parts`.
            labels: receives the labels.

        Raises:
            UserError: a file is damaged, lacks a column, or holds an invalid label.
        """
        for name in self.parts[part]:
            path = folder / f"{name}.parquet"
            for *text, label in parquet_rows(path, (*self.columns, "label")):
                if label == NO_LABEL and self.drops_unlabelled:
                    continue
                labels.append(check_label(path, label, self.classes))
                yield text

    def cut_texts(
        self, cache: Path, inputs: Callable[[dict[str, np.ndarray], str, Tensor], Rows]
    ) -> Splits:
        """Cut what is prepared into the parts.

        Args:
            cache: the folder of prepared datasets.
            inputs: makes inputs from all arrays, the part of the source, and the chosen rows of it.

        Raises:
            UserError: it is not prepared, or holds fewer examples than requested.
        """

        def take(arrays: dict[str, np.ndarray], file: str, chosen: Tensor) -> Examples:
            import torch

            labels = torch.from_numpy(arrays[f"{file}_labels"][chosen.numpy()].astype("int64"))
            return Examples(inputs(arrays, file, chosen), labels)

        return self.cut(cache, take)


@dataclass(frozen=True, kw_only=True)
class Sequences(LabelledTexts, Tokenising):
    """Base of texts as token ids, kept as ragged rows.

    Attributes:
        length: the most tokens of an example, special tokens included.
    """

    length: Count = 128

    def encoder(self, cache: Path, weights: Path) -> Encode:
        """Return the function that turns texts into token ids.

        Args:
            cache: the folder of prepared datasets, and of raw files.
            weights: the folder of pretrained weights, and of their tokenizers.

        Raises:
            UserError: a file that it needs is missing or damaged.
        """
        raise NotImplementedError

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        import numpy as np

        folder = self.raw_files(cache).require()
        encode = self.encoder(cache, weights or cache.parent / "weights")
        arrays: dict[str, np.ndarray] = {}
        for part in self.parts:
            ids, labels = RaggedWriter(cache, "uint16"), array("b")
            for row in encode(self.labelled(folder, part, labels)):
                ids.append(row)
            arrays[f"{part}_starts"], arrays[f"{part}_ids"] = ids.arrays()
            arrays[f"{part}_labels"] = np.array(labels)
        self.write(cache, arrays)

    def load(self, cache: Path) -> Splits:
        def tokens(arrays: dict[str, np.ndarray], part: str, chosen: Tensor) -> RaggedRows:
            starts, ids = arrays[f"{part}_starts"], arrays[f"{part}_ids"]
            return RaggedRows(starts, ids, chosen, self.length)

        return self.cut_texts(cache, tokens)


@dataclass(frozen=True, kw_only=True)
class TokenisedTexts(Sequences):
    """Base of texts for a pretrained model; of a pair the longer text is truncated.

    Attributes:
        tokenizer: the model whose tokenizer is used, from the weights folder.
    """

    preprocessing: ClassVar[str] = (
        "tokenised with the special tokens of the model, as [CLS] one [SEP] other [SEP] or "
        "[CLS] text [SEP]; 0 is padding"
    )
    prepared_with: ClassVar[tuple[str, ...]] = ("tokenizer", "length")

    tokenizer: TokenizerName = "bert-base"

    @property
    def signature(self) -> Signature:
        vocabulary = TOKENIZERS[self.tokenizer].vocabulary
        return Signature("tokens", (self.length,), self.classes, vocabulary=vocabulary)

    def encoder(self, cache: Path, weights: Path) -> Encode:
        return Tokenizer(self.tokenizer, weights, self.length).encode
