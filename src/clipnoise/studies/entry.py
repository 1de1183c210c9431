"""An entry of a study: what it says of one dataset, model or method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import core_schema


@dataclass(frozen=True)
class PanelEntry:
    """A dataset, model or method of a study, written as an id or as a mapping with one.

    Attributes:
        values: the mapping: `id`, `label`, and options.
    """

    values: Mapping[str, object]

    @classmethod
    def of(cls, written: str | Mapping[str, object]) -> PanelEntry:
        """Return the entry that a study file has."""
        return cls({"id": written} if isinstance(written, str) else written)

    @property
    def written(self) -> str | Mapping[str, object]:
        """What a study file has: the id alone where nothing else is said."""
        return self.id if self.values.keys() == {"id"} else self.values

    @property
    def id(self) -> str:
        """The id; empty where none is given."""
        return str(self.values.get("id") or "")

    @property
    def label(self) -> str:
        """What the study calls it: its label, or else its id."""
        return str(self.values.get("label", self.id))

    @property
    def given(self) -> dict[str, object]:
        """Its id and options: all but the label."""
        return {name: value for name, value in self.values.items() if name != "label"}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Let pydantic read and write an entry as a study file has it."""
        return core_schema.no_info_after_validator_function(
            cls.of,
            handler.generate_schema(str | dict[str, object]),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda entry: entry.written
            ),
        )
