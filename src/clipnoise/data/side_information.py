"""Side information: how large each coordinate of a gradient is known to be without private data.

A source is a class with options and a name, its `source`. A new one joins `SideInformation` below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from clipnoise.data.base import Dataset, TokenCounts
from clipnoise.data.remote import digest
from clipnoise.errors import UserError
from clipnoise.fields import STRICT
from clipnoise.lazy import np


@dataclass(frozen=True)
class PublicView:
    """What a source may look at: nothing of it is private.

    Attributes:
        dataset: the private dataset, for what it has counted in public text; None in a loop of
            one's own.
        cache: the folder of prepared datasets.
        gradient_sizes: returns the root mean square of the public examples' gradients at the
            initial parameters, shape (d,); only where the run has public examples.
    """

    dataset: Dataset | None
    cache: Path
    gradient_sizes: Callable[[], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class SideInformationSource:
    """Base of every source of A, the vector by which AdaDPS divides gradients.

    Attributes:
        needs_public_examples: whether the run must have public examples.
    """

    __pydantic_config__: ClassVar = STRICT
    needs_public_examples: ClassVar[bool] = False

    def check(self, dataset: Dataset | None) -> None:
        """Raise UserError where a private dataset cannot give it, before any data are read.

        Args:
            dataset: the private one; None in a loop of one's own.
        """

    def sizes(self, view: PublicView) -> np.ndarray:
        """Return A per feature or token, shape (features,), or per coordinate, shape (d,).

        Raises:
            UserError: a file is missing or damaged.
        """
        raise NotImplementedError

    def origin(self, dataset: Dataset | None) -> str:
        """Return what was counted or measured, and where, in words."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Counted(SideInformationSource):
    """Base of the sources that count tokens in public text, never in the private training file."""

    what: ClassVar[str]

    def check(self, dataset: Dataset | None) -> None:
        if dataset is None:
            raise UserError(
                "method.side_information.source: tokens are counted in public text, and for these "
                "examples there is none. Choose the source file or public-gradients."
            )
        if dataset.counted_in() is None:
            reason = dataset.caveat() or "it knows no public text in which its features occur"
            raise UserError(
                f"method.side_information.source: tokens are counted in public text, and for "
                f"{dataset.id} there is none: {reason}. Choose another option of the dataset, or "
                "the source file or public-gradients."
            )

    def sizes(self, view: PublicView) -> np.ndarray:
        assert view.dataset is not None  # checked before
        sizes = self.of(view.dataset.token_counts(view.cache))
        relative: np.ndarray = sizes / sizes.max()
        return relative

    def of(self, counts: TokenCounts) -> np.ndarray:
        """Return A up to a factor, positive, shape (features,)."""
        raise NotImplementedError

    def origin(self, dataset: Dataset | None) -> str:
        assert dataset is not None  # checked before
        return f"{self.what}, counted in {dataset.counted_in()}"


@dataclass(frozen=True, kw_only=True)
class TokenFrequency(Counted):
    """A is proportional to how often a token occurs, and 1 for the most frequent one.

    Source: AdaDPS, section 4 (option 2) and section 6.1.2.
    """

    what = "token frequencies relative to the largest"
    source: Literal["token-frequency"] = "token-frequency"

    def of(self, counts: TokenCounts) -> np.ndarray:
        return _at_least_the_smallest(counts.occurrences)


@dataclass(frozen=True, kw_only=True)
class TfIdf(Counted):
    """A is inversely proportional to a token's TF-IDF, and 1 for the token with the smallest one.

    The TF-IDF of a token in a collection is how often it occurs, times the logarithm of texts per
    text with the token. Section 6.1.2 and the caption of Table 4 say "inversely proportional", and
    the released code multiplies gradients by it (imdb/trainers/dp-sgd.py); section 4 says
    "proportional", which would be the opposite.

    Source: AdaDPS, section 6.1.2 and Table 4.
    """

    what = "inverse TF-IDF relative to the largest"
    source: Literal["tf-idf"] = "tf-idf"

    def of(self, counts: TokenCounts) -> np.ndarray:
        idf = np.log(counts.texts / np.maximum(counts.texts_with, 1))
        inverse: np.ndarray = 1 / _at_least_the_smallest(counts.occurrences * idf)
        return inverse


@dataclass(frozen=True, kw_only=True)
class VectorFile(SideInformationSource):
    """A is read from a NumPy file, one number per feature (or token), or one per coordinate.

    Attributes:
        path: of a .npy file; its numbers must be finite, and none may be negative.
        sha256: of the file: a run's identity covers its content. Whoever names the file vouches
            that nothing in it was computed from private examples.
    """

    source: Literal["file"]
    path: str
    sha256: str

    def sizes(self, view: PublicView) -> np.ndarray:
        path = Path(self.path)
        try:
            found = digest(path, "sha256")
            values = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{path}: not an array of side information ({error}).") from None
        if found != self.sha256:
            raise UserError(
                f"{path}: its SHA-256 is {found}, but method.side_information.sha256 is "
                f"{self.sha256}."
            )
        if values.ndim != 1 or values.dtype.kind not in "iuf":
            raise UserError(f"{path}: expected numbers of shape (features,) or (d,).")
        if not (np.isfinite(values) & (values >= 0)).all():
            raise UserError(f"{path}: every number must be finite, and none may be negative.")
        numbers: np.ndarray = values.astype("float64")
        return numbers

    def origin(self, dataset: Dataset | None) -> str:
        return f"the file {self.path}"


@dataclass(frozen=True, kw_only=True)
class PublicGradients(SideInformationSource):
    """A is the root mean square of public examples' gradients at the initial parameters.

    It is not in the paper, whose Option 2 has no public data. It depends on labels, too.
    """

    needs_public_examples = True
    source: Literal["public-gradients"]

    def sizes(self, view: PublicView) -> np.ndarray:
        return view.gradient_sizes()

    def origin(self, dataset: Dataset | None) -> str:
        return "root mean square of the public examples' gradients at the initial parameters"


SideInformation = Annotated[
    TokenFrequency | TfIdf | VectorFile | PublicGradients, Field(discriminator="source")
]
FREQUENCY = TokenFrequency()


def _at_least_the_smallest(scores: np.ndarray) -> np.ndarray:
    """Return scores in which those of 0 are as small as the smallest of the others."""
    seen = scores[scores > 0]
    least: np.ndarray = np.maximum(scores.astype("float64"), seen.min() if seen.size else 1.0)
    return least
