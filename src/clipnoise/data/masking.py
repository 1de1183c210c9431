"""Masked tokens: which are asked about is drawn once, from a seed, and is the same ever after."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clipnoise.data.rows import RaggedRows, Rows
from clipnoise.data.tasks import NOT_ASKED
from clipnoise.seeds import derive

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

ASKED, HIDDEN, REPLACED = 0.15, 0.8, 0.1  # shares: of tokens asked; of these hidden, replaced


@dataclass(frozen=True)
class Masking:
    """What is asked: a share of the tokens that are parts of text.

    Of the asked tokens 80% are hidden by the mask, 10% replaced by any other token, 10% left.
    Numbers follow from the seed, the row and the place, so nothing is stored, and an example is
    asked about the same tokens in every epoch.

    Attributes:
        seed: the split seed.
        mask: the token id of the mask.
        first, end: token ids from `first` up to `end` are parts of text.

    Source: Devlin et al. 2019, BERT, section 3.1.
    """

    seed: int
    mask: int
    first: int
    end: int

    def asked(self, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return what is asked about.

        Args:
            rows: the number of each example, int64 of shape (b,).
            tokens: int64 of shape (b, width).

        Returns:
            The true token where one is asked about, elsewhere −100; int64 of shape (b, width).
        """
        import numpy as np

        text = (tokens >= self.first) & (tokens < self.end)
        chosen = text & (self._uniform(rows, tokens.shape[1], 0) < ASKED)
        return np.where(chosen, tokens, NOT_ASKED)

    def shown(self, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return the tokens that a model sees; arguments and shape as for `asked`."""
        import numpy as np

        width = tokens.shape[1]
        asked = self.asked(rows, tokens) != NOT_ASKED
        way, other = self._uniform(rows, width, 1), self._uniform(rows, width, 2)
        others = self.first + (other * (self.end - self.first)).astype("int64")
        changed = np.where(way < HIDDEN, self.mask, others)
        return np.where(asked & (way < HIDDEN + REPLACED), changed, tokens)

    def _uniform(self, rows: np.ndarray, width: int, stream: int) -> np.ndarray:
        """Return numbers in [0, 1), one for each place of each row, float64 of (b, width).

        SplitMix64 at a counter: Steele, Lea, Flood 2014, Fast splittable pseudorandom generators.
        """
        import numpy as np

        key = np.uint64(derive("split", self.seed))
        places = np.arange(width, dtype="uint64") * np.uint64(3) + np.uint64(stream)
        mixed = _mixed(rows.astype("uint64")[:, None] + key)
        return (_mixed(mixed + places) >> np.uint64(11)) / 2.0**53


@dataclass(frozen=True)
class MaskedRows(Rows):
    """Ragged rows of tokens with some of them masked, or what is asked about them.

    Attributes:
        rows: the tokens.
        masking: what is asked.
        targets: whether these are the answers, and not the tokens that a model sees.
    """

    rows: RaggedRows
    masking: Masking
    targets: bool
    device: str = "cpu"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        import torch

        positions = self.rows.positions(chosen)
        draw = self.masking.asked if self.targets else self.masking.shown
        return torch.from_numpy(draw(positions, self.rows.padded(positions))).to(self.device)

    def to(self, device: str) -> MaskedRows:
        return replace(self, device=device)


def _mixed(values: np.ndarray) -> np.ndarray:
    import numpy as np

    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
