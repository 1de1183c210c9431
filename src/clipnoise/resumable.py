"""State that a run carries from step to step, in the form in which a checkpoint saves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Resumable(Protocol):
    """A component of a run whose state can be saved as named tensors and restored."""

    def get_state(self) -> dict[str, torch.Tensor]:
        """Return the state."""
        ...

    def set_state(self, state: dict[str, torch.Tensor]) -> None:
        """Restore a saved state; what follows is bit for bit the same."""
        ...
