"""Field types with a range, and parsing of plain data into typed, checked dataclasses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from operator import eq
from typing import Annotated, Any, Literal, TypeVar, cast

from annotated_types import Ge, Gt, Le, Lt
from pydantic import Field, TypeAdapter, ValidationError

from clipnoise.errors import UserError, nearest, shorten

T = TypeVar("T")

Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Decay = Annotated[float, Ge(0), Lt(1)]
Fraction = Annotated[float, Ge(0), Le(1)]
Probability = Annotated[float, Gt(0), Lt(1)]
Count = Annotated[int, Gt(0)]
Natural = Annotated[int, Ge(0)]
Precision = Literal["float32", "bfloat16"]

PLAIN = ("str", "int", "float", "bool")
FORMS = {
    "string_type": "text",
    "dict_type dataclass_type model_attributes_type": "a mapping",
    "tuple_type list_type": "a list",
    "int_type int_parsing int_from_float": "a whole number",
    "float_type float_parsing": "a number",
    "bool_type bool_parsing": "true or false",
}

RANGES = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
NOT_GIVEN = ": required, but not given."

STRICT = {"extra": "forbid", "allow_inf_nan": False}  # as `__pydantic_config__` of a dataclass


def unhashed_at(default: object) -> Any:
    """Return what leaves an option out of plain data, and so out of hashes, at one of its values.

    Args:
        default: its value where the option changes nothing: `Annotated[str, unhashed_at("none")]`.
    """
    return Field(exclude_if=partial(eq, default))


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
        prefix = f"{file}: " if file else ""
        raise UserError(
            "\n".join(prefix + line for line in _lines(error, kind, key, values))
        ) from None


def to_plain(value: Any) -> Any:
    """Turn a dataclass into plain data (dicts, lists, numbers, strings), the inverse of `parse`."""
    return adapter(type(value)).dump_python(value, mode="json")


def _lines(error: ValidationError, kind: type[Any], key: str, values: Any) -> list[str]:
    """Return one line for each wrong value; of the alternatives of a union, the nearest ones.

    A mistyped key is one mistake, although the right one is then missing.
    """
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for problem in error.errors():
        tags = [number for number, part in enumerate(problem["loc"]) if _is_alternative(part)]
        end = tags[0] if tags else len(problem["loc"])
        groups.setdefault(problem["loc"][:end] if tags else (problem["loc"],), []).append(problem)
    lines = []
    for problems in groups.values():
        deepest = max(len(problem["loc"]) for problem in problems)
        nearest = [problem for problem in problems if len(problem["loc"]) == deepest]
        nearest = [one for one in nearest if one["type"] in RANGES] or nearest
        nearest.sort(key=lambda one: not one["type"].startswith(("union_tag", "unexpected")))
        lines.append(_explain(nearest, kind, _place(nearest[0]["loc"], key, values)))
    meant = set(re.findall("Did you mean '(.*?)'", " ".join(lines)))
    return [line for line in lines if not (line.endswith(NOT_GIVEN) and _name(line) in meant)]


def _name(line: str) -> str:
    return line.removesuffix(NOT_GIVEN).rpartition(".")[2]


def _is_alternative(part: str | int) -> bool:
    """Return whether part of a location is pydantic's name of an alternative, not a key."""
    return isinstance(part, str) and (part in PLAIN or "[" in part or part.startswith("constrain"))


def _place(location: tuple[Any, ...], key: str, values: Any) -> str:
    """Return the keys that lead to a value, without the names of alternatives and of kinds."""
    parts = [key] if key else []
    at = values
    for part in location:
        if _is_alternative(part) or _is_kind(part, at):
            continue
        parts.append(str(part)[:80])
        inside = isinstance(at, Mapping) or (isinstance(at, list | tuple) and isinstance(part, int))
        try:
            at = at[part] if inside else None
        except (KeyError, IndexError):
            at = None
    return ".".join(parts)


def _is_kind(part: str | int, values: Any) -> bool:
    """Return whether part of a location is the kind of a value there, not a key of it."""
    if isinstance(values, list | tuple):
        return isinstance(part, str)  # of the only key that it has
    inside = isinstance(values, Mapping) and part not in values
    return inside and any(isinstance(one, str) and one == part for one in values.values())


def _explain(problems: Sequence[Any], kind: type[Any], place: str) -> str:
    problem = problems[0]
    if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        names = _sibling_names(kind, problem["loc"])
        name = str(problem["loc"][-1])
        allowed = f"Allowed: {', '.join(names)}." if names else "There are no options."
        return f"{place}: unknown key.{nearest(name, names)} {allowed}"
    if problem["type"] == "union_tag_invalid":
        key, tag = problem["ctx"]["discriminator"].strip("'"), problem["ctx"]["tag"]
        names = problem["ctx"]["expected_tags"].replace("'", "").split(", ")
        return f"{place}.{key}: {tag!r}.{nearest(tag, names)} Allowed: {', '.join(names)}."
    if problem["type"] == "union_tag_not_found":
        return f"{place}: give its {problem['ctx']['discriminator']}."
    if problem["type"] in ("missing", "missing_argument"):
        return place + NOT_GIVEN
    if problem["type"] == "value_error":
        return _own_words(place, problem)
    expected = dict.fromkeys(_expected(one) for one in problems)
    return f"{place}: input should be {' or '.join(expected)}, got {shorten(problem['input'])}."


def _own_words(place: str, problem: Any) -> str:
    """Return the message of a check in the class itself; it may begin with the key of a value."""
    message = problem["msg"].removeprefix("Value error, ")
    value = problem["input"]
    one = isinstance(value, str | int | float | list | tuple)
    name, colon, rest = message.partition(": ")
    if colon and name.isidentifier():
        place, message = f"{place}.{name}" if place else name, rest
    where = f"{place}: " if place else ""
    return f"{where}{message[0].lower()}{message[1:]}{f', got {shorten(value)}' if one else ''}."


def _expected(problem: Any) -> str:
    """Return what a value should be, in the words of YAML and not of Python."""
    words = {name: form for names, form in FORMS.items() for name in names.split()}
    message: str = problem["msg"].removeprefix("Input should be ").removeprefix("String should ")
    return words.get(problem["type"], f"{message[0].lower()}{message[1:]}")


def _sibling_names(kind: type[Any], location: tuple[Any, ...]) -> list[str]:
    """List the valid field names at the last element of a location inside a dataclass."""
    schema = adapter(kind).json_schema()
    node = _resolved(schema, schema)
    for part in location[:-1]:
        if _is_alternative(part):
            continue
        options = [node, *node.get("anyOf", [])]
        kinds = (one.get("discriminator", {}).get("mapping", {}) for one in options)
        chosen = next((mapping[part] for mapping in kinds if part in mapping), None)
        inside = [one.get("properties", {}).get(part) for one in options]
        inside += [one.get("additionalProperties") for one in options]
        inside = [{"$ref": chosen}] if chosen else inside
        inside = [one.get("items") for one in options] if isinstance(part, int) else inside
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
