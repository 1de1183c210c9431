"""The global random streams of Python and NumPy, from which nothing that trains may draw."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from clipnoise.errors import UserError


def _positions() -> tuple[object, ...]:
    kind, numbers, *rest = np.random.get_state(legacy=True)
    return (random.getstate(), kind, np.asarray(numbers).tobytes(), *rest)


@dataclass(frozen=True)
class GlobalStreams:
    """Where both streams were when this was made.

    A network that draws from them draws once for all examples that are computed together, and
    which these are depends on who else is in the batch. torch's own stream is checked before
    training, and its dropout draws for each example by itself.
    """

    before: tuple[object, ...] = field(default_factory=_positions)

    def require_unchanged(self) -> None:
        """Refuse to go on if anything has been drawn since.

        Raises:
            UserError: says what to draw from instead.
        """
        if _positions() != self.before:
            raise UserError(
                "model: it, its loss or the method drew random numbers from the global stream of "
                "Python or NumPy during training, so what one example adds would depend on the "
                "others in its batch. Nothing of this run may be published. In a network, use "
                "torch.rand or torch.nn.functional.dropout, whose numbers are drawn for each "
                "example by itself here; with models of transformers, set layerdrop to 0."
            )
