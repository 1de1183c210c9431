"""Options of which there are several kinds, one class each, and the kinds that users add.

As plain data, a kind is its `id`, under the key `kind`, and its options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar, Self, cast

from pydantic_core import core_schema

from clipnoise.errors import UserError, explained, nearest, shorten, unknown
from clipnoise.fields import adapter
from clipnoise.plugins import package_plugins, place_of, plugins, require_sealed

SEALED = ("default", "folder", "own", "own_kinds", "package_kinds", "read", "sealed", "written")


class OwnKind:
    """Base of a kind that a user adds to those of the package."""

    id: ClassVar[str]
    what: ClassVar[str]  # what error messages call such a class

    def __init_subclass__(cls) -> None:
        """Refuse a class that redefines what privacy rests on."""
        super().__init_subclass__()
        require_sealed(cls)

    def explained(self) -> AbstractContextManager[None]:
        """Turn whatever the user's code raises into an error that names its file and class."""
        return explained(place_of(type(self)))


class Kinds:
    """Base of an option of which there are several kinds: frozen dataclasses with an `id`.

    Attributes:
        folder: the package of which each module holds a kind or several; dotted name.
        own: the base of the kinds that users add.
        default: the kind that is meant where none is named.
        written: the keys that the plain data of every kind begin with. They hold null where a kind
            has no such option; the hashes of runs contain them. Options of other names are written
            for the kinds that have them.
    """

    id: ClassVar[str]
    folder: ClassVar[str]
    own: ClassVar[type[OwnKind]]
    default: ClassVar[str]
    written: ClassVar[tuple[str, ...]]

    @classmethod
    def package_kinds(cls) -> Mapping[str, type[Self]]:
        """Return the classes of the package by id."""
        return package_plugins(cls.folder, cls)

    @classmethod
    def own_kinds(cls) -> Mapping[str, type[Self]]:
        """Return the user's classes by id.

        Raises:
            UserError: one has the id of a kind of the package.
        """
        found = plugins(None, cls.own)
        for name in set(found) & set(cls.package_kinds()):
            place, what = place_of(found[name]), cls.own.what
            raise UserError(f"{place}: {name!r} is a {what} of the package.")
        return cast("Mapping[str, type[Self]]", found)

    @classmethod
    def read(cls, values: Any) -> Self:
        """Return the kind that plain data describe.

        Raises:
            ValueError: names the key, the value, what is allowed and the nearest valid name.
        """
        if isinstance(values, cls):
            own = issubclass(type(values), OwnKind)
            if not own and type(values) not in cls.package_kinds().values():
                name = type(values).__name__
                raise ValueError(f"input should be an {cls.own.__name__}, got {name}")
            return values
        if not isinstance(values, Mapping):
            raise ValueError("input should be a mapping")
        options = dict(values)
        name = options.pop("kind", cls.default)
        kind = cls._named(name)
        allowed = [field.name for field in fields(cast("Any", kind))]
        for key in [key for key in options if key not in allowed]:
            if key in cls.written and options[key] is None:
                del options[key]
                continue
            raise ValueError(cls._misplaced(str(key), str(name), allowed))
        return cast("Self", adapter(kind).validate_python(options))

    @classmethod
    def _named(cls, name: object) -> type[Self]:
        if not isinstance(name, str):
            raise ValueError(f"kind: input should be text, got {shorten(name)}")
        found = cls.package_kinds().get(name) or cls.own_kinds().get(name)
        if found is None:
            names = [*cls.package_kinds(), *cls.own_kinds()]
            message = str(unknown(cls.own.what, name, names, key="kind"))
            raise ValueError(message.removesuffix("."))
        return found

    @classmethod
    def _misplaced(cls, key: str, name: str, allowed: list[str]) -> str:
        """Say what is wrong with an option that a kind does not have."""
        others = [
            other
            for other, kind in cls.package_kinds().items()
            if key in {field.name for field in fields(cast("Any", kind))}
        ]
        if others:
            kinds = f"the kind{'s' if len(others) > 1 else ''} {' and '.join(others)}"
            return f"{key} belongs to {kinds}, not to {name}"
        return f"{key}: unknown key.{nearest(key, allowed)} Allowed: {', '.join(allowed)}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Let pydantic read what `kind` names, and write kinds with it."""
        if hasattr(cls, "id"):
            return core_schema.no_info_after_validator_function(
                lambda value: value,
                handler(source),
                serialization=core_schema.wrap_serializer_function_ser_schema(_with_kind),
            )
        kinds = [handler.generate_schema(kind) for kind in cls.package_kinds().values()]
        return core_schema.no_info_plain_validator_function(
            cls.read,
            json_schema_input_schema=core_schema.union_schema(kinds),
            ref=f"Any{cls.__name__}",
            serialization=core_schema.plain_serializer_function_ser_schema(_as_plain),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        """Tell editors the key `kind`, and the user's kinds."""
        form = handler(schema)
        if not hasattr(cls, "id"):
            own = [adapter(kind).json_schema() for kind in cls.own_kinds().values()]
            return {"anyOf": [*form["anyOf"], *own]}
        plain = handler.resolve_ref_schema(form)
        nulls = {name: {"type": "null"} for name in cls.written}
        plain["properties"] = {**nulls, **plain.get("properties", {}), "kind": {"const": cls.id}}
        if cls.id != cls.default:
            plain["required"] = [*plain.get("required", ()), "kind"]
        return form


def _with_kind(value: Kinds, options_of: Callable[[Kinds], dict[str, Any]]) -> dict[str, Any]:
    return {**dict.fromkeys(value.written), **options_of(value), "kind": value.id}


def _as_plain(value: Kinds) -> Any:
    return adapter(type(value)).dump_python(value, mode="json")


def as_sealed(value: Kinds, name: str) -> Callable[..., Any]:
    """Return a method of a kind as the package defines it, whatever a user's object says."""
    kind: type = type(value).own if issubclass(type(value), OwnKind) else type(value)
    return partial(getattr(kind, name), value)
