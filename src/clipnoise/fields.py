"""Field types with a range, and parsing of plain data into typed, checked dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, cast

from annotated_types import Ge, Gt, Le, Lt
from pydantic import TypeAdapter, ValidationError

from clipnoise.errors import UserError, nearest

T = TypeVar("T")

Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Decay = Annotated[float, Ge(0), Lt(1)]
Fraction = Annotated[float, Ge(0), Le(1)]
Probability = Annotated[float, Gt(0), Lt(1)]
Count = Annotated[int, Gt(0)]
Natural = Annotated[int, Ge(0)]
Precision = Literal["float32", "bfloat16"]

STRICT = {"extra": "forbid", "allow_inf_nan": False}  # as `__pydantic_config__` of a dataclass


def adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """Return the validator of a type, built once per process."""
    return _adapter(cast("Any", kind))  # mypy does not count generic classes as hashable


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def parse(kind: type[T], values: Any, *, file: str | None = None, key: str = "") -> T:
    """Build a dataclass from plain data, checking names, types and ranges.

    Args:
        kind: the dataclass.
        values: a mapping as read from YAML or JSON.
        file: that it was read from, for error messages.
        key: of the mapping in that file, for error messages.

    Raises:
        UserError: names the file, the key, the value, what is allowed and the nearest valid name.
    """
    try:
        return cast("T", adapter(kind).validate_python(values))
    except ValidationError as error:
        lines = [_explain(problem, kind, key) for problem in error.errors()]
        prefix = f"{file}: " if file else ""
        raise UserError("\n".join(prefix + line for line in lines)) from None


def to_plain(value: Any) -> Any:
    """Turn a dataclass into plain data (dicts, lists, numbers, strings), the inverse of `parse`."""
    return adapter(type(value)).dump_python(value, mode="json")


def _explain(problem: Any, kind: type[Any], key: str) -> str:
    place = ".".join([key, *map(str, problem["loc"])] if key else map(str, problem["loc"]))
    if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        names = _sibling_names(kind, problem["loc"])
        name = str(problem["loc"][-1])
        return f"{place}: unknown key.{nearest(name, names)} Allowed: {', '.join(names)}."
    if problem["type"] == "union_tag_invalid":
        key, tag = problem["ctx"]["discriminator"].strip("'"), problem["ctx"]["tag"]
        names = problem["ctx"]["expected_tags"].replace("'", "").split(", ")
        return f"{place}.{key}: {tag!r}.{nearest(tag, names)} Allowed: {', '.join(names)}."
    if problem["type"] == "union_tag_not_found":
        return f"{place}: give its {problem['ctx']['discriminator']}."
    if problem["type"] in ("missing", "missing_argument"):
        return f"{place}: required, but not given."
    message = problem["msg"].removeprefix("Value error, ")
    return f"{place}: {message[0].lower()}{message[1:]}, got {_shorten(problem['input'])}."


def _sibling_names(kind: type[Any], location: tuple[Any, ...]) -> list[str]:
    """List the valid field names at the last element of a location inside a dataclass."""
    schema = adapter(kind).json_schema()
    node = _resolved(schema, schema)
    for part in location[:-1]:
        chosen = node.get("discriminator", {}).get("mapping", {}).get(part)
        inside = [node.get("properties", {}).get(part), node.get("additionalProperties")]
        inside = [{"$ref": chosen}] if chosen else inside
        inside = [node.get("items")] if isinstance(part, int) else inside
        nested = (schema for schema in inside if isinstance(schema, Mapping))
        node = _resolved(schema, next(nested, node))
    return sorted(node.get("properties", {}))


def _resolved(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a reference, which may be one of several alternatives, such as null."""
    for option in [node, *node.get("anyOf", [])]:
        if "$ref" in option:
            target: Mapping[str, Any] = schema["$defs"][option["$ref"].rsplit("/", 1)[-1]]
            return target
    return node


def _shorten(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "…"
