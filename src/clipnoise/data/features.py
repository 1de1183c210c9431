"""Features of a dataset by a frozen encoder: computed once, when they are prepared."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from clipnoise.data.base import Dataset, Partitioned, dataset_class
from clipnoise.data.images import Images
from clipnoise.data.labelled import LabelledTexts
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError, unknown
from clipnoise.lazy import nn, np, torch
from clipnoise.models.encoders import ENCODERS, Encode, Encoder
from clipnoise.models.pretrained import weight_files

BATCH = 32  # examples encoded at once


@dataclass(frozen=True, kw_only=True)
class Features(Partitioned):
    """Base of the features of another dataset's examples, divided by their Euclidean norm.

    Its files, its licence and the sizes of its parts are those of the other dataset.

    Attributes:
        of: the id of the other dataset, of images or texts.
        encoder: the id of the encoder.
        classes: number of labels.
    """

    reader = "features"
    of: ClassVar[str]
    encoder: ClassVar[str]
    classes: ClassVar[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder not in ENCODERS:
            raise ValueError(str(unknown("encoder", self.encoder, ENCODERS)).removesuffix("."))

    @property
    def pretrained(self) -> Encoder:
        """The encoder."""
        return ENCODERS[self.encoder]

    @property
    def encoded(self) -> Dataset:
        """The other dataset."""
        return dataset_class(self.of)()

    @property
    def origin(self) -> str:
        return self.encoded.origin

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.encoded.class_names

    @property
    def preprocessing(self) -> str:  # type: ignore[override]
        network = self.pretrained
        return (
            f"each example by itself encoded by {network.title}, pretrained on "
            f"{network.pretrained_on}; then divided by its Euclidean norm"
        )

    @property
    def signature(self) -> Signature:
        meaning = f"features by {self.encoder}"
        return Signature("features", (self.pretrained.width,), self.classes, meaning=meaning)

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        folder, network = self.raw_files(cache).require(), self.pretrained
        files = weight_files(weights or cache.parent / "weights", network.id)
        checked = files.verify()
        encode, dataset = network.load(files.folder), self.encoded
        arrays = {}
        for part, examples, labels in _examples(dataset, folder, network.takes):
            arrays[f"{part}_inputs"] = _encoded(encode, examples, f"{self.id}, {part}")
            arrays[f"{part}_labels"] = labels.astype("uint8")
        if isinstance(dataset, LabelledTexts):
            arrays |= dataset.owners(folder)
        facts = {
            "name": network.title,
            "pretrained on": network.pretrained_on,
            "source": network.weights.source,
            "licence": network.weights.licence,
            "files": {
                name: {"sha256": file.sha256, "checked against": file.checked}
                for name, file in checked.items()
            },
        }
        self.write(cache, arrays, encoder=facts)


def _examples(
    dataset: Dataset, folder: Path, wanted: str
) -> Iterator[tuple[str, Sequence[Any], np.ndarray]]:
    """Yield each part of a dataset with its images or texts, and their labels.

    Raises:
        UserError: a raw file is damaged, or the examples are not what the encoder takes.
    """
    if wanted == "images" and isinstance(dataset, Images):
        for part, (images, labels) in dataset.checked_images(folder).items():
            yield part, list(images), labels
    elif wanted == "texts" and isinstance(dataset, LabelledTexts):
        for part in dataset.labelled_parts:
            numbers = array("b")
            texts = [" ".join(text) for text in dataset.labelled(folder, part, numbers)]
            yield part, texts, np.array(numbers)
    else:
        raise UserError(f"of: {dataset.id}: the encoder takes {wanted}, which it does not hold.")


def _encoded(encode: Encode, examples: Sequence[Any], title: str) -> np.ndarray:
    """Return the features of some examples, float32 of shape (n, width), and show how far it is."""
    from rich.console import Console
    from rich.progress import track

    order = np.argsort([len(one) for one in examples], kind="stable")  # texts of a length together
    batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    found: list[np.ndarray] = []
    with torch.no_grad():
        for batch in track(batches, title, console=Console(stderr=True)):
            features = encode([examples[place] for place in batch])
            found.append(nn.functional.normalize(features, dim=1).numpy())
    rows = np.concatenate(found)
    return rows[np.argsort(order)]
