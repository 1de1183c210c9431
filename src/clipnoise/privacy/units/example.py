"""Examples as units."""

from __future__ import annotations

from clipnoise.privacy.units.base import Unit


class Example(Unit):
    """One example: its gradient is clipped."""

    name = "example"
