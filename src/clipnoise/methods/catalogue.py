"""What there is to know about each method, for `clipnoise methods` and the documentation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from itertools import groupby
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from clipnoise.core.clip_rules import ClipRule
from clipnoise.core.method import Method, OracleMethod
from clipnoise.core.schedule import own_names
from clipnoise.fields import to_plain
from clipnoise.methods.base import example, methods


@dataclass(frozen=True)
class Entry:
    """One method as a reader sees it, or a variant of one whose option changes what is released.

    Attributes:
        id: its name in studies.
        option: the option that makes the variant, as in a study; empty for the method itself.
        family: the file or folder it lives in.
        privacy: "private" or "non-private".
        adjacency: what a neighbouring dataset is; "–" where nothing is protected.
        sensitivity: of each released value before noise, in C and B.
        passes: gradients of a drawn example per step, at the default settings.
        needs: what a run must provide besides private examples.
        source: paper, algorithm, equation.
        summary: the first line of its docstring.
        text: the rest of its docstring, without the source.
        hyperparameters: names with their defaults; None for those that must be given.
        may_change: those that may follow a schedule.
    """

    id: str
    option: str
    family: str
    privacy: str
    adjacency: str
    sensitivity: str
    passes: int
    needs: str
    source: str
    summary: str
    text: str
    hyperparameters: dict[str, Any]
    may_change: tuple[str, ...]

    @property
    def name(self) -> str:
        """The id, with the option that makes the variant."""
        return f"{self.id}, {self.option}" if self.option else self.id

    @property
    def protection(self) -> tuple[str, str, str]:
        """What is protected, and how: privacy, adjacency and sensitivity."""
        return self.privacy, self.adjacency, self.sensitivity


def catalogue() -> list[Entry]:
    """Return every registered method, by family, then id, each with its variants after it."""
    entries = []
    for kind in sorted(methods().values(), key=lambda kind: (kind.family(), kind.id)):
        plain = _entry(example(kind), "")
        variants = (
            _entry(example(kind, **{name: value}), f"{name}: {value}".lower())
            for name, value in _choices(kind)
        )
        entries += [plain, *(one for one in variants if one.protection != plain.protection)]
    return entries


def _choices(kind: type[Method]) -> Iterator[tuple[str, Any]]:
    """Yield each value of the options that are a choice from a few."""
    hints = get_type_hints(kind)
    for option in fields(kind):
        hint = hints[option.name]
        values = get_args(hint) if get_origin(hint) is Literal else ()
        for value in (False, True) if hint is bool else values:
            yield option.name, value


def _entry(method: Method, option: str) -> Entry:
    kind, query = type(method), method.query
    summary, *text = _paragraphs(kind)
    return Entry(
        id=method.id,
        option=option,
        family=method.family(),
        privacy="private" if method.private else "non-private",
        adjacency=query.adjacency if method.private else "–",
        sensitivity=" and ".join(query.formulas) if method.private else "–",
        passes=method.passes(),
        needs=_needs(kind),
        source=method.source(),
        summary=summary,
        text="\n\n".join(text),
        hyperparameters={
            field.name: None if field.default is MISSING else _plain(field.default)
            for field in fields(kind)
        },
        may_change=own_names(kind, kind.may_change),
    )


def _paragraphs(kind: type) -> list[str]:
    """Return what the docstring of a class says before its source, each paragraph in a line."""
    text = (kind.__doc__ or "").partition("Source:")[0].strip()
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def _plain(default: Any) -> Any:
    """Return a default as a study writes it."""
    if not is_dataclass(default):
        return default
    return {name: value for name, value in to_plain(default).items() if value is not None}


def _needs(kind: type[Method]) -> str:
    """Return what a run must provide, read off the class as the training loop does."""
    wants = {
        "public gradients": kind.uses_public_gradient,
        "side information": kind.uses_side_information,
        "clean gradients": issubclass(kind, OracleMethod) and kind.reads_gradient(),
        "a public warm start": kind.warms_up(),
        "past iterates": kind.iterates is not Method.iterates,
        f"a network like {kind.made_for}": kind.made_for is not None,
    }
    return ", ".join(name for name, wanted in wants.items() if wanted) or "–"


HEAD = """# Methods

Generated by `clipnoise methods --markdown docs/methods.md`; edit the docstrings instead.

C is the clip norm, B = q·n the expected batch size, σ the noise multiplier, z standard normal
noise, ⊙ an elementwise product. g̃ = (Σ clip(g_i) + σCz)/B is the released gradient, ĝ a public one,
Φ = (σC/B)² the variance of the noise. Sensitivity is the largest change that one example can cause
in a released value before noise. Passes count the gradients of a drawn example per step, at the
default settings; public gradients are one more pass, over public examples.

A hyper-parameter that may follow a schedule takes `{kind: cosine, peak: 0.1, warmup: 0.1}` in the
place of a number: see [schedules](studies.md#schedules).

`adadps-side`, `adas-side`, `adadps-fed` and `adas-fed` divide gradients by A + γ, and
`side_information` says where A comes from. `summary.json` records what was counted, and a digest
of A. Its `source` is one of these; both counts are refused for data without public text:

- `token-frequency`, unless told otherwise: how often a token occurs in public text, 1 for the most
  frequent one.
- `tf-idf`: the inverse of its TF-IDF, 1 for the smallest one.
- `file`: a `.npy` file, `{source: file, path: …, sha256: …}`, with a number per feature, token or
  parameter.
- `public-gradients`: the root mean square of the gradients of public examples before training.

`clip_rule` says how g_i is clipped; the sensitivity is the same under every rule. With `per: layer`
each of the L layers is clipped by itself, to C/√L. Its `kind` is one of these, `hard` unless told
otherwise; γ is its `gamma`:
"""
COLUMNS = ("privacy", "adjacency", "sensitivity", "passes", "needs")


def method_page() -> str:
    """Return the documentation page as Markdown: a table per family, then each method."""
    rules = ClipRule.package_kinds().items()
    parts = [HEAD, "\n".join(f"- `{name}`: {_paragraphs(rule)[0]}" for name, rule in rules) + "\n"]
    for family, members in groupby(catalogue(), key=lambda entry: entry.family):
        entries = list(members)
        lines = [f"| method | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
        for entry in entries:
            cells = " | ".join(str(getattr(entry, column)) for column in COLUMNS)
            option = f", `{entry.option}`" if entry.option else ""
            lines.append(f"| [{entry.id}](#{entry.id}){option} | {cells} |")
        parts += [f"## {family.capitalize()}\n", "\n".join(lines) + "\n"]
        parts += [_section(entry) for entry in entries if not entry.option]
    return "\n".join(parts)


def _section(entry: Entry) -> str:
    settings = ", ".join(_setting(*item) for item in entry.hyperparameters.items())
    changing = ", ".join(f"`{name}`" for name in entry.may_change)
    lines = [
        f"### {entry.id}",
        f"{entry.summary} {entry.text}".strip() + "\n",
        f"- Hyper-parameters: {settings}.",
        *([f"- May follow a schedule: {changing}."] if changing else []),
        f"- Source: {entry.source}",
    ]
    return "\n".join(lines) + "\n"


def one_line(value: Any) -> str:
    """Return a value as a study writes it on one line: `{kind: hard, per: example}`."""
    text = yaml.safe_dump(to_plain(value), default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("...\n").strip()


def _setting(name: str, default: Any) -> str:
    if default is None:
        return f"`{name}`"
    return f"`{name}` = {one_line(default)}"
