"""Audits: whether a method's real code keeps the promise that its ε rests on.

Belongs here: attacks on releases, tests of what is claimed, deliberately broken variants that the
attacks must expose, and published ε computed again. Does not: new methods, accountants,
typesetting.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clipnoise.audit.loops.adapters.jax_privacy import from_jax_privacy
    from clipnoise.audit.loops.adapters.opacus import from_opacus
    from clipnoise.audit.loops.adapters.private import from_private
    from clipnoise.audit.loops.adapters.pytorch import from_pytorch
    from clipnoise.audit.loops.claim import Claim

__all__ = ["Claim", "from_jax_privacy", "from_opacus", "from_private", "from_pytorch"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'clipnoise.audit' has no attribute {name!r}")
    module = "claim" if name == "Claim" else name.replace("from_", "adapters.")
    return getattr(import_module(f"clipnoise.audit.loops.{module}"), name)
