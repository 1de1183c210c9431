"""The keys of a study file, printed from the classes that read it."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from clipnoise.cli import options
from clipnoise.cli.options import Markdown
from clipnoise.errors import UserError
from clipnoise.fields import to_plain
from clipnoise.files import write_atomically
from clipnoise.methods.catalogue import one_line
from clipnoise.privacy.budget import Privacy
from clipnoise.run.procedure import Training
from clipnoise.studies.entry import PanelEntry
from clipnoise.studies.file import Panel, PaperClaim, StudyFile
from clipnoise.studies.items import ReportItem, item_kinds
from clipnoise.studies.tuning import Tune

MEANING = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {8}.*)*)", re.MULTILINE)
SECTIONS = {
    "study": (StudyFile,),
    "panel": (Panel,),
    "training": (Training,),
    "privacy": (Privacy,),
    "search": (Tune,),
    "item": (ReportItem,),
    "claim": (PaperClaim,),
}
OF_RUNS = {(Privacy, "epsilon")}  # what a run spec may say and a study may not
ITEMS = "kinds"  # the section of the kinds of items
BLOCK = re.compile(r"(<!-- keys of (\S+) -->\n)(?:\|.*\n)*")
NAMES = {
    str: "text",
    bool: "boolean",
    int: "integer",
    float: "number",
    PanelEntry: "text or mapping",
}
BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def documented(kind: type) -> tuple[str, str]:
    """Return a class's docstring on one line, and its list of attributes as it stands."""
    text, _, attributes = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:")
    return " ".join(text.split()), attributes


def meanings(kind: type, above: type = object) -> dict[str, str]:
    """Return what the docstrings of a class and of its bases say of each option, after a colon.

    Args:
        kind: the class.
        above: a base that is left out, with its own bases.
    """
    found: dict[str, str] = {}
    for base in reversed([one for one in kind.__mro__ if not issubclass(above, one)]):
        for names, text in MEANING.findall(documented(base)[1]):
            found |= {name: ": " + " ".join(text.split()) for name in names.split(", ")}
    return found


@options.command()
def report_items(markdown: Markdown = None) -> None:
    """List the kinds of tables and figures that a report can have, and their options.

    With --markdown, renew the tables of keys in a page of the documentation instead.
    """
    if markdown is not None:
        page, number = BLOCK.subn(
            lambda block: f"{block[1]}{key_table(block[2])}", markdown.read_text(encoding="utf-8")
        )
        if not number:
            raise UserError(f"{markdown}: has no <!-- keys of … --> to write below.")
        write_atomically(markdown, page)
        print(markdown)
        return
    for identifier, kind in item_kinds().items():
        print(f"{identifier:<24}{documented(kind)[0]}")
        for name, meaning in meanings(kind, ReportItem).items():
            print(f"{'':<24}{name}{meaning}")


def key_table(section: str) -> str:
    """Return what a section of the page lists, as a Markdown table: keys, or kinds of items."""
    if section == ITEMS:
        return kind_table(item_kinds())
    lines = ["| key | type | default | meaning |", "|---|---|---|---|", *_keys(section)]
    return "\n".join([*lines, ""])


def kind_table(kinds: Mapping[str, type]) -> str:
    """Return the kinds of something, each with its options, as a Markdown table."""
    return "\n".join(["| kind | meaning and options |", "|---|---|", *_kinds(kinds), ""])


def _keys(section: str) -> Iterator[str]:
    """Yield a line for each key that the classes of a section read.

    Keys that are documented together, and alike in type and default, share a line.
    """
    lines: dict[tuple[str, ...], list[str]] = {}
    for kind in SECTIONS[section]:
        said, types = meanings(kind), get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            if (kind, field.name) in OF_RUNS:
                continue
            meaning = said[field.name].removeprefix(": ").rstrip(".")
            cells = (type_words(types[field.name]), _default(field), meaning)
            names = lines.setdefault(cells, [])
            if f"`{field.name}`" not in names:
                names.append(f"`{field.name}`")
    for rest, names in lines.items():
        yield "| " + " | ".join([", ".join(names), *rest]).replace("|  |", "| |") + " |"


def _kinds(kinds: Mapping[str, type]) -> Iterator[str]:
    """Yield a line for each kind of something, with its own options."""
    for identifier, kind in kinds.items():
        said, types = meanings(kind, ReportItem), get_type_hints(kind, include_extras=True)
        names = [field.name for field in fields(kind) if field.name in said]
        own = [f"`{name}` ({type_words(types[name])}){said[name]}" for name in names]
        text = documented(kind)[0].partition(" Source:")[0]
        yield f"| `{identifier}` | {' '.join([text, *own])} |"


def type_words(kind: Any) -> str:
    """Return what a value of a type looks like in YAML, with its bounds or the values allowed."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        said = type_words(parts[0])
        limits = [
            (sign, getattr(one, name))
            for one in parts[1:]
            for name, sign in BOUNDS.items()
            if getattr(one, name, None) is not None
        ]
        bounds = " and ".join(f"{sign} {limit:g}" for sign, limit in limits)
        return f"{said} {bounds}".rstrip()
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in parts)
    if origin in (Union, types.UnionType):
        words = dict.fromkeys(type_words(one) for one in parts if one is not type(None))
        one, *others = words
        return f"one or more of {one}" if others == [f"list of {one}"] else " or ".join(words)
    if origin is tuple:
        first, _, bound = type_words(parts[0]).partition(" ")
        many = {"text": "texts", "integer": "integers", "number": "numbers", "mapping": "mappings"}
        return f"{many.get(first, 'list of ' + first)} {bound}".strip()
    return NAMES.get(kind, "mapping")


def _default(field: Field[Any]) -> str:
    """Return the default of a key as YAML; nothing where it is empty."""
    value = field.default
    if field.default_factory is not MISSING:
        value = field.default_factory()
    elif value is MISSING:
        return "required"
    plain = to_plain(value)
    if plain in (None, "", [], {}) or value == Panel():
        return ""
    return f"`{plain['kind'] if isinstance(plain, dict) else one_line(plain)}`"
