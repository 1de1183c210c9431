"""Final accuracy against one or two hyper-parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import StringConstraints

from clipnoise.errors import UserError, unknown
from clipnoise.methods.base import methods
from clipnoise.report.figures import heat_map, momentum, sweeps
from clipnoise.report.items import FigureItem, ItemData
from clipnoise.studies.items import Values

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Name = Annotated[str, StringConstraints(min_length=1)]
MOMENTUM = ("beta", "history")  # of per-sample momentum


@dataclass(frozen=True, kw_only=True)
class Sweep(FigureItem):
    """Final accuracy against one hyper-parameter, or against two in a heat map.

    Attributes:
        over: this hyper-parameter; or two that are swept together, `[ACROSS, DOWN]`, of which a
            square marks the best.
        rho: adds the noise reduction ρ of per-sample momentum, over `beta` or `history`.
    """

    kind: Literal["sweep"] = "sweep"
    deviation: ClassVar = "± {}"
    over: Name | tuple[Name, Name]
    rho: bool = False

    def __post_init__(self) -> None:
        if self.rho and self.over not in MOMENTUM:
            raise ValueError(f"over: `rho` needs one of {', '.join(MOMENTUM)}")

    def check(self, methods: Values, training: Values, file: str, key: str) -> None:
        """Refuse panels of which no method has the hyper-parameters."""
        known = [options_of(method) for method in methods]
        for name in (self.over,) if isinstance(self.over, str) else self.over:
            if not any(name in options for options in known):
                place = f"{key}.over"
                raise unknown("hyper-parameter", name, set().union(*known), file=file, key=place)
        if self.rho and not any(options.issuperset(MOMENTUM) for options in known):
            raise UserError(f"{file}: {key}: no method of these panels has beta and history.")

    def spread(self, data: ItemData) -> str:
        """Return what bars are; a heat map has none."""
        return super().spread(data) if isinstance(self.over, str) else ""

    def draw(self, data: ItemData) -> Figure:
        """Draw one subplot per dataset, model and method, a line per budget; or a heat map each.

        Where other hyper-parameters are swept, too, each of their settings has a line, or a heat
        map, of its own.
        """
        if not isinstance(self.over, str):
            return heat_map.draw(data.runs, self.over, data.metric)
        runs = sweeps.swept(data.runs, self.over)
        beside = partial(momentum.draw_reduction, runs=runs, over=self.over) if self.rho else None
        return sweeps.draw(runs, self.over, data.metric, beside)


def options_of(method: Mapping[str, Any]) -> set[str]:
    """Return the hyper-parameters that an entry of a method has, those that it tunes included."""
    kind, tune = methods().get(str(method.get("id"))), method.get("tune")
    own = {field.name for field in fields(kind)} if kind else set()
    tried = [tune.get(name) for name in ("grid", "ranges")] if isinstance(tune, Mapping) else []
    return own.union(*(one for one in tried if isinstance(one, Mapping)))
