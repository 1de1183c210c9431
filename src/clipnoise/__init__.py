"""clipnoise: a benchmark suite for differentially private optimizers.

Importing the package loads nothing heavy: torch and others are imported where they are needed.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # each job of a workflow would wait for typing to be imported
if TYPE_CHECKING:
    from clipnoise.run.private import private
    from clipnoise.run.replay import replay

__all__ = ["private", "replay"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module(f"clipnoise.run.{name}"), name)
    raise AttributeError(f"module 'clipnoise' has no attribute {name!r}")
