"""clipnoise: a benchmark suite for differentially private optimizers.

Importing the package loads nothing heavy: torch and others are imported where they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clipnoise.run.replay import replay

__all__ = ["replay"]


def __getattr__(name: str) -> Any:
    if name == "replay":
        from clipnoise.run.replay import replay

        return replay
    raise AttributeError(f"module 'clipnoise' has no attribute {name!r}")
