"""Handwritten digits that come with scikit-learn: real data without a download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from clipnoise.data.base import Dataset, Examples, Splits
from clipnoise.data.cache import read_arrays, read_manifest, write_arrays
from clipnoise.data.fetch import facts
from clipnoise.data.partition import cut_rows
from clipnoise.data.signature import Signature
from clipnoise.fields import Natural

EXAMPLES, TEST, VALIDATION = 1797, 360, 137
DEVELOPMENT = EXAMPLES - TEST  # validation, train and public


@dataclass(frozen=True, kw_only=True)
class Digits(Dataset):
    """1,797 grey 8×8 images of handwritten digits, scaled to [0, 1].

    Who is private follows from positions and seeds alone, never from images or labels: a plain
    random split, not a stratified one. The test set is the same for every split seed, so that
    nothing tuned under one seed has seen the test set of another.

    Attributes:
        split_seed: which examples are for validation, training and public use.
        public_examples: examples taken from the training part and treated as public.
    """

    id: ClassVar[str] = "digits"
    title: ClassVar[str] = "Handwritten digits (8×8)"
    licence: ClassVar[str] = "CC BY 4.0"
    source: ClassVar[str] = (
        "E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning "
        "Repository, 1998, doi:10.24432/C50P49; its test file, as scikit-learn carries it"
    )
    split: ClassVar[str] = "a fixed test set of 360, 137 to validate, the rest private or public"
    preprocessing: ClassVar[str] = "pixel values 0 to 16 divided by 16"

    public_examples: Natural = 0

    def __post_init__(self) -> None:
        if self.public_examples >= DEVELOPMENT - VALIDATION:
            raise ValueError(f"public_examples must be below {DEVELOPMENT - VALIDATION}")

    @property
    def signature(self) -> Signature:
        return Signature("image", (1, 8, 8), 10)

    def sizes(self) -> dict[str, int]:
        return {
            "train": DEVELOPMENT - VALIDATION - self.public_examples,
            "validation": VALIDATION,
            "test": TEST,
            "public": self.public_examples,
        }

    def prepare(self, cache: Path) -> None:
        """Write all images and labels, whatever the split: its options apply when loading."""
        import sklearn
        from sklearn.datasets import load_digits

        bunch = load_digits()
        inputs = (bunch.images / 16).astype("float32").reshape(-1, *self.signature.shape)
        if len(inputs) != EXAMPLES:
            raise RuntimeError(f"scikit-learn carries {len(inputs)} digits, expected {EXAMPLES}")
        arrays = {"inputs": inputs, "targets": bunch.target.astype("int64")}
        versions = {"scikit-learn": sklearn.__version__}
        write_arrays(cache / self.id, arrays, {**facts(cache, self), "versions": versions})

    def load(self, cache: Path) -> Splits:
        import torch

        arrays, sizes = read_arrays(cache / self.id, self.id), self.sizes()
        rows = cut_rows(EXAMPLES, sizes, self.split_seed, ("validation", "train", "public"))

        def take(part: str) -> Examples:
            chosen = rows[part].numpy()
            inputs, targets = (arrays[name][chosen] for name in ("inputs", "targets"))
            return Examples(torch.from_numpy(inputs), torch.from_numpy(targets))

        return Splits.taken(take, sizes, read_manifest(cache / self.id, self.id).provenance())
