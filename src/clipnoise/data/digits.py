"""Small images of digits without a download: handwritten, of users, and printed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from clipnoise.data.base import PARTS, Dataset, Examples, Splits, cut_rows
from clipnoise.data.signature import Signature
from clipnoise.fields import Count, Natural
from clipnoise.lazy import Tensor, np, torch
from clipnoise.privacy.units import User
from clipnoise.seeds import generator

EXAMPLES, TEST, VALIDATION = 1797, 360, 137
OTHERS = EXAMPLES - TEST - VALIDATION  # private and public ones
SHARDS = 2  # per user
PRINTED, PRINTED_TEST, PRINTED_VALIDATION = 1200, 100, 100
FACES = ("Sans", "Sans-Bold", "Sans-Oblique", "SansMono", "Serif", "Serif-Bold", "Serif-Italic")
CANVAS, SIDE = 64, 8  # pixels: drawn large, then averaged down


@dataclass(frozen=True, kw_only=True)
class SmallImages(Dataset):
    """Base of 8×8 images of digits that are kept as "inputs" and "targets" in one file."""

    @property
    def signature(self) -> Signature:
        return Signature("image", (1, SIDE, SIDE), 10)

    def rows(self) -> dict[str, Tensor]:
        """Return the rows of each part, int64 of shape (size,)."""
        raise NotImplementedError

    def load(self, cache: Path) -> Splits:
        arrays, provenance = self.read(cache)
        rows = self.rows()

        def take(part: str) -> Examples:
            inputs, targets = (arrays[name][rows[part].numpy()] for name in ("inputs", "targets"))
            return Examples(torch.from_numpy(inputs), torch.from_numpy(targets))

        return Splits.build(take, self.sizes(), provenance)


@dataclass(frozen=True, kw_only=True)
class Digits(SmallImages):
    """1,797 grey 8×8 images of handwritten digits, scaled to [0, 1].

    Which examples are private follows from positions and seeds alone, never from images or labels:
    the split is random, not stratified. The test set is the same for every split seed, so that
    nothing tuned under one seed has seen the test set of another.

    Attributes:
        split_seed: which examples are for validation, training and public use.
        public_examples: examples taken from the training part and treated as public.
    """

    id = "digits"
    title = "Handwritten digits (8×8)"
    licence = "CC BY 4.0"
    source = (
        "E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning "
        "Repository, 1998, doi:10.24432/C50P49; its test file, as scikit-learn carries it"
    )
    split = "a fixed test set of 360, 137 to validate, the rest private or public"
    preprocessing = "pixel values 0 to 16 divided by 16"

    public_examples: Natural = 0

    def __post_init__(self) -> None:
        if self.public_examples >= OTHERS:
            raise ValueError(f"public_examples must be below {OTHERS}")

    def sizes(self) -> dict[str, int]:
        sizes = (OTHERS - self.public_examples, VALIDATION, TEST, self.public_examples)
        return dict(zip(PARTS, sizes, strict=True))

    def rows(self) -> dict[str, Tensor]:
        return cut_rows(EXAMPLES, self.sizes(), self.split_seed, ("validation", "train", "public"))

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        """Write all images and labels: the options of the split apply when loading."""
        import sklearn
        from sklearn.datasets import load_digits

        bunch = load_digits()
        inputs = (bunch.images / 16).astype("float32").reshape(-1, *self.signature.shape)
        if len(inputs) != EXAMPLES:
            raise RuntimeError(f"scikit-learn carries {len(inputs)} digits, expected {EXAMPLES}")
        arrays = {"inputs": inputs, "targets": bunch.target.astype("int64")}
        self.write(cache, arrays, versions={"scikit-learn": sklearn.__version__})


@dataclass(frozen=True, kw_only=True)
class DigitsUsers(Digits):
    """The digits, with the private examples dealt to N users, most with two digits each.

    The examples are sorted by digit and cut into 2N shards of equal size (within one); every user
    receives two shards, drawn by the split seed. This stands in for a natural partition: who owns
    which example is a fact about the data, not the output of a mechanism.

    Attributes:
        users: N.

    Source: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", section 3 (the pathological non-IID partition).
    """

    id = "digits-users"
    title = "Handwritten digits (8×8) of users with two digits each"

    users: Count = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if SHARDS * self.users > self.sizes()["train"]:
            raise ValueError(f"users must be at most {self.sizes()['train'] // SHARDS}")

    @property
    def origin(self) -> str:
        return Digits.id

    def user_unit(self) -> User:
        return User(count=self.users)

    def load(self, cache: Path) -> Splits:
        splits = super().load(cache)
        targets = splits.train.dense().targets
        by_digit = targets.argsort(stable=True)
        order = torch.randperm(SHARDS * self.users, generator=generator("split", self.split_seed))
        shards = torch.tensor_split(by_digit, SHARDS * self.users)
        users = torch.empty_like(targets)
        for shard, user in zip(shards, order % self.users, strict=True):
            users[shard] = user
        return replace(splits, users=users)


@dataclass(frozen=True, kw_only=True)
class PrintedDigits(SmallImages):
    """1,200 grey 8×8 images of digits in the DejaVu typefaces, rotated, shifted and blurred.

    Out-of-distribution public data for the handwritten digits: they contain no handwriting.

    Attributes:
        split_seed: which examples are for validation, test and training.
    """

    id = "printed-digits"
    title = "Printed digits (8×8)"
    licence = "Bitstream Vera and public domain (the DejaVu typefaces)"
    source = "drawn by this package in the typefaces that matplotlib carries"
    split = "drawn at random: 1,000 to train on, 100 to validate, 100 to test"
    preprocessing = "ink between 0 and 1"

    def sizes(self) -> dict[str, int]:
        train = PRINTED - PRINTED_TEST - PRINTED_VALIDATION
        return dict(zip(PARTS, (train, PRINTED_VALIDATION, PRINTED_TEST, 0), strict=True))

    def rows(self) -> dict[str, Tensor]:
        sizes, order = self.sizes(), ("test", "validation", "train")
        shuffled = torch.randperm(PRINTED, generator=generator("split", self.split_seed))
        parts = torch.split(shuffled, [sizes[part] for part in order])
        return dict(zip(order, parts, strict=True))

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        import matplotlib
        import PIL

        draws = np.random.default_rng(0)
        targets = np.arange(PRINTED) % 10
        inputs = np.stack([_printed(int(digit), draws) for digit in targets])[:, None]
        versions = {"matplotlib": matplotlib.__version__, "pillow": PIL.__version__}
        self.write(cache, {"inputs": inputs, "targets": targets}, versions=versions)


def _printed(digit: int, draws: np.random.Generator) -> np.ndarray:
    """Draw a digit with a random typeface, size, angle and position; ink of shape (8, 8)."""
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    face = Path(get_data_path()) / "fonts" / "ttf" / f"DejaVu{draws.choice(FACES)}.ttf"
    font = ImageFont.truetype(str(face), int(draws.integers(60, 80)))
    image = Image.new("L", (CANVAS, CANVAS))
    middle = tuple(CANVAS / 2 + draws.normal(0, 2, size=2))
    ImageDraw.Draw(image).text(middle, str(digit), fill=255, font=font, anchor="mm")
    rotated = image.rotate(draws.normal(0, 8), Image.Resampling.BILINEAR)
    soft = rotated.filter(ImageFilter.GaussianBlur(2.0))
    cells = np.asarray(soft, dtype="float32").reshape(SIDE, CANVAS // SIDE, SIDE, CANVAS // SIDE)
    ink: np.ndarray = cells.mean(axis=(1, 3)) / 255
    return ink
