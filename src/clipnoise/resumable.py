"""State that a run carries from step to step, in the form in which a checkpoint saves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from clipnoise.lazy import Tensor


class Resumable(Protocol):
    """A component of a run whose state can be saved as named tensors and restored."""

    def get_state(self) -> dict[str, Tensor]:
        """Return the state."""
        ...

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Restore a saved state; what follows is bit for bit the same."""
        ...


def gather(parts: Mapping[str, Resumable]) -> dict[str, Tensor]:
    """Return the positions of several parts in one mapping, each key after its part's name."""
    return {
        f"{name}/{key}": value
        for name, part in parts.items()
        for key, value in part.get_state().items()
    }


def restore(parts: Mapping[str, Resumable], tensors: Mapping[str, Tensor]) -> None:
    """Bring several parts to the positions that `gather` returned; one without any stays."""
    for name, part in parts.items():
        prefix = f"{name}/"
        mine = {key: value for key, value in tensors.items() if key.startswith(prefix)}
        if mine:
            part.set_state({key.removeprefix(prefix): value for key, value in mine.items()})
