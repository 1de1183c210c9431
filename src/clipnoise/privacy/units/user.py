"""Users as units."""

from __future__ import annotations

from clipnoise.privacy.units.base import Unit


class User(Unit):
    """A person with all of their examples: one vector for all of them is clipped.

    They are accounted as examples are: only what the query declares differs.
    """

    name = "user"
    # Not "zero-out": an example that leaves its place empty turns the vector of its user around.
    declarable = ("add-remove-user", "replace")
