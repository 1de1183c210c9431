"""What an item of a study's report says: which panels it shows, and as which kind.

A kind is one class in one file of `clipnoise.report.kinds`, or of a user's places. Its fields are
the options that a study file gives it; `clipnoise.report.items` says how it is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from pydantic_core import core_schema

from clipnoise.errors import UserError
from clipnoise.fields import STRICT
from clipnoise.plugins import plugins
from clipnoise.studies.moved import ITEM_KEYS, ITEM_KINDS, refuse_moved

FOLDER = "clipnoise.report.kinds"
Values = Sequence[Mapping[str, object]]


@dataclass(frozen=True, kw_only=True)
class ReportItem:
    """One table or figure of a report. Subclasses with a `kind` are the kinds that there are.

    In a study file, titles and captions may hold `{panel}`, the title of the panel, and `{AXIS}`,
    the title of the option that a panel has on an axis. In a `Study` they are filled in, and
    `panels` are the full names of all panels that it shows.

    Attributes:
        panels: one or several, all by default; one with axes gives an item for each option.
        together: shows the panels in one table or figure.
        only: the option that is shown, by axis: `{accountant: pld}`; of other axes all are.
        kind: see below.
        title: by default that of the kind, and the panel's name.
        caption: what the reader should see.
    """

    __pydantic_config__: ClassVar = STRICT

    id: ClassVar[str]  # the kind; set for each class that has one
    needs: ClassVar[tuple[str, ...]] = ()
    heading: ClassVar[str] = ""  # of items that have no title; empty takes the kind

    panels: str | tuple[str, ...] = ()
    together: bool = False
    only: dict[str, str] = field(default_factory=dict)
    kind: str = ""
    title: str = ""
    caption: str = ""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Let pydantic read an item as the class of its `kind`."""
        if cls is not ReportItem:
            return handler(source)
        choices = {name: handler.generate_schema(kind) for name, kind in item_kinds().items()}
        union = core_schema.tagged_union_schema(choices, discriminator="kind")
        check = partial(refuse_moved, keys=ITEM_KEYS, kinds=ITEM_KINDS)
        return core_schema.no_info_before_validator_function(check, union)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):
            cls.id = vars(cls)["kind"]

    @property
    def compared(self) -> Mapping[str, Mapping[str, str]]:
        """Which further panels each of its panels is compared with: option → axis → label."""
        return {}

    def check(self, methods: Values, training: Values, file: str, key: str) -> None:
        """Refuse panels that lack what it shows.

        Args:
            methods: the entries of all methods of the panels.
            training: the section `training` of each panel.
            file, key: of the item, for error messages.

        Raises:
            UserError: names what is missing.
        """

    @property
    def named(self) -> tuple[str, ...]:
        """The panels that it names; none means all."""
        return (self.panels,) if isinstance(self.panels, str) else self.panels

    @property
    def panel(self) -> str:
        """The first of its panels, under whose name it shows them all."""
        return self.named[0]

    @property
    def file(self) -> str:
        """The file of a table, without its ending; nothing of a figure, whose file is a number."""
        return ""

    @property
    def published(self) -> str:
        """The published table that it shows, by name or path, or nothing."""
        return ""


def item_kinds() -> Mapping[str, type[ReportItem]]:
    """Return the classes of tables and figures by kind, those of the user's among them.

    Raises:
        UserError: a class of the user's has no kind.
    """
    found = plugins(FOLDER, ReportItem)
    for kind in found.values():
        if not isinstance(vars(kind).get("kind"), str):
            place = f"{inspect.getfile(kind)}: class {kind.__name__}"
            raise UserError(f'{place}: it needs kind: Literal["{kind.id}"] = "{kind.id}".')
    return found
