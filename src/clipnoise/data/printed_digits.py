"""Digits printed in many typefaces: public images that look like handwritten digits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clipnoise.data.base import Dataset, Examples, Splits
from clipnoise.data.cache import read_arrays, read_manifest, write_arrays
from clipnoise.data.fetch import facts
from clipnoise.data.signature import Signature
from clipnoise.seeds import generator

if TYPE_CHECKING:
    import numpy as np

EXAMPLES, TEST, VALIDATION = 1200, 100, 100
FACES = ("Sans", "Sans-Bold", "Sans-Oblique", "SansMono", "Serif", "Serif-Bold", "Serif-Italic")
CANVAS, SIDE = 64, 8  # pixels: drawn large, then averaged down


@dataclass(frozen=True, kw_only=True)
class PrintedDigits(Dataset):
    """1,200 grey 8×8 images of digits in the DejaVu typefaces, turned, shifted and blurred.

    Out-of-distribution public data for the handwritten digits: nobody's handwriting is in it.

    Attributes:
        split_seed: which examples are for validation, test and training.
    """

    id: ClassVar[str] = "printed-digits"
    title: ClassVar[str] = "Printed digits (8×8)"
    licence: ClassVar[str] = "Bitstream Vera and public domain (the DejaVu typefaces)"
    source: ClassVar[str] = "drawn by this package in the typefaces that matplotlib carries"
    split: ClassVar[str] = "drawn at random: 1,000 to train on, 100 to validate, 100 to test"
    preprocessing: ClassVar[str] = "ink between 0 and 1"

    @property
    def signature(self) -> Signature:
        return Signature("image", (1, SIDE, SIDE), 10)

    def sizes(self) -> dict[str, int]:
        train = EXAMPLES - TEST - VALIDATION
        return {"train": train, "validation": VALIDATION, "test": TEST, "public": 0}

    def prepare(self, cache: Path) -> None:
        import matplotlib
        import numpy as np
        import PIL

        draws = np.random.default_rng(0)
        targets = np.arange(EXAMPLES) % 10
        inputs = np.stack([_drawn(int(digit), draws) for digit in targets])[:, None]
        versions = {"matplotlib": matplotlib.__version__, "pillow": PIL.__version__}
        arrays = {"inputs": inputs, "targets": targets}
        write_arrays(cache / self.id, arrays, {**facts(cache, self), "versions": versions})

    def load(self, cache: Path) -> Splits:
        import torch

        arrays = read_arrays(cache / self.id, self.id)
        order = torch.randperm(EXAMPLES, generator=generator("split", self.split_seed))
        parts = torch.split(order, [TEST, VALIDATION, EXAMPLES - TEST - VALIDATION])

        def take(rows: torch.Tensor) -> Examples:
            inputs, targets = (arrays[name][rows.numpy()] for name in ("inputs", "targets"))
            return Examples(torch.from_numpy(inputs), torch.from_numpy(targets))

        test, validation, train = map(take, parts)
        provenance = read_manifest(cache / self.id, self.id).provenance()
        return Splits(train, validation, test, None, provenance)


def _drawn(digit: int, draws: np.random.Generator) -> np.ndarray:
    """Draw a digit in some typeface, size, angle and place; ink of shape (8, 8)."""
    import numpy as np
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    face = Path(get_data_path()) / "fonts" / "ttf" / f"DejaVu{draws.choice(FACES)}.ttf"
    font = ImageFont.truetype(str(face), int(draws.integers(60, 80)))
    image = Image.new("L", (CANVAS, CANVAS))
    middle = tuple(CANVAS / 2 + draws.normal(0, 2, size=2))
    ImageDraw.Draw(image).text(middle, str(digit), fill=255, font=font, anchor="mm")
    turned = image.rotate(draws.normal(0, 8), Image.Resampling.BILINEAR)
    soft = turned.filter(ImageFilter.GaussianBlur(2.0))
    cells = np.asarray(soft, dtype="float32").reshape(SIDE, CANVAS // SIDE, SIDE, CANVAS // SIDE)
    ink: np.ndarray = cells.mean(axis=(1, 3)) / 255
    return ink
