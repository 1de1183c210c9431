"""What a run remembers from one step to the next, in the form in which a checkpoint keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Resumable(Protocol):
    """A part of a run whose position can be saved as named tensors and gone back to."""

    def get_state(self) -> dict[str, torch.Tensor]:
        """Return the position."""
        ...

    def set_state(self, state: dict[str, torch.Tensor]) -> None:
        """Go to a saved position; what follows is the same bit for bit."""
        ...
