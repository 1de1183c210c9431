"""Audits: whether a method's real code keeps the promise that its ε rests on.

Belongs here: attacks on releases, lower bounds on ε, deliberately broken variants that the attacks
must expose, and published ε computed again. Does not: new methods, accountants, typesetting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clipnoise.audit.loops.claim import Claim

__all__ = ["Claim"]


def __getattr__(name: str) -> object:
    if name == "Claim":
        from clipnoise.audit.loops.claim import Claim

        return Claim
    raise AttributeError(f"module 'clipnoise.audit' has no attribute {name!r}")
