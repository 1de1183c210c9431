"""What every unit is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from clipnoise.errors import UserError

if TYPE_CHECKING:
    from clipnoise.core.query import Adjacency, Query
    from clipnoise.privacy.microbatches import MicroBatches


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What is drawn, clipped and protected as a whole.

    Attributes:
        name: the word for one.
        declarable: the adjacencies that a query may declare, the first where one is added or
            removed.
        count: n, the number of private ones; public.
        stays: whether without one its place must stay empty, because removing it would choose
            others instead: their number, which is not public, decides how the data are cut.
        shared: the other parts of the data that hold examples of private units, each with the
            option that avoids it, in words.
    """

    name: ClassVar[str]
    declarable: ClassVar[tuple[Adjacency, ...]] = ("add-remove", "replace", "zero-out")

    count: int
    stays: bool = False
    shared: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def affected_examples(self) -> int:
        """How many per-example gradients one unit can change."""
        return 1

    def adjacency(self, declared: Adjacency) -> Adjacency:
        """Return the relation between neighbouring datasets, from that of the query."""
        return declared

    def sensitivity_factor(self, query: Query, microbatches: MicroBatches) -> float:
        """Return how far one unit moves the clipped sum, relative to what the query declares."""
        return microbatches.sensitivity_factor(query)

    def check(self, query: Query, microbatches: MicroBatches) -> None:
        """Refuse a release that no analysis covers for these units.

        Raises:
            UserError: names what does not fit.
        """
        if query.adjacency not in self.declarable:
            raise UserError(
                f"method.id: its query declares {query.adjacency!r}, and what the method clips is "
                f"protected under {self.declarable[0]!r}."
            )
