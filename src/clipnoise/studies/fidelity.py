"""Fidelity: every artefact of a paper, and each place where paper, released code and suite differ.

One file for each paper, `fidelity.yaml` beside its published numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from clipnoise.errors import unknown
from clipnoise.fields import STRICT, parse
from clipnoise.files import read_yaml

FIDELITY_FILE = "fidelity.yaml"
SILENT, NOT_RELEASED = "silent", "not released"

Numbers = Literal["compared", "claim", "drawn", "not compared", "ours"]


@dataclass(frozen=True, kw_only=True)
class OpenSetting:
    """A setting that the paper leaves open, or in which paper, code and suite differ.

    Attributes:
        setting: what it is called.
        text: what the paper says, and where.
        code: what the authors' code does, and in which file; empty where it is silent.
        here: what runs here.
        why: the reason.
        reports: the artefacts of this suite whose reports show it; empty for all of the paper's.
    """

    __pydantic_config__: ClassVar = STRICT

    setting: str
    text: str
    code: str = ""
    here: str
    why: str
    reports: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """A numbered table or figure, or a number or claim of the text.

    Attributes:
        title: what it shows, in words.
        numbers: what becomes of its numbers here: `compared`, checked as a `claim`, `drawn`
            because none are printed, or `not compared`; `ours` is not in the paper.
        reports: the studies and reproductions of the paper that show it; None takes the one that
            has its name.
        note: a remark; says why printed numbers are not compared.
    """

    __pydantic_config__: ClassVar = STRICT

    title: str
    numbers: Numbers
    reports: tuple[str, ...] | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.numbers == "not compared" and not self.note:
            raise ValueError("numbers that are not compared need a `note` that says why")


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """What a reader must know to compare the reports of a paper with the paper.

    Attributes:
        title: of the paper.
        source: authors, year and venue.
        code: where the authors released their code; empty where they did not.
        artefacts: by key, such as `table1`, in the paper's order.
        settings: by key.
    """

    __pydantic_config__: ClassVar = STRICT

    title: str
    source: str
    code: str = ""
    artefacts: dict[str, Artefact]
    settings: dict[str, OpenSetting] = field(default_factory=dict)

    def reports_of(self, key: str) -> tuple[str, ...]:
        """Return the studies and reproductions that show an artefact."""
        named = self.artefacts[key].reports
        return (key,) if named is None else named

    @property
    def reports(self) -> tuple[str, ...]:
        """Every study and reproduction that shows something of the paper, once each."""
        return tuple(dict.fromkeys(name for key in self.artefacts for name in self.reports_of(key)))

    def rows(self, report: str = "") -> list[dict[str, str]]:
        """Return the settings that the report of a study or reproduction shows; all without one."""
        silent = SILENT if self.code else NOT_RELEASED
        return [
            {
                **{"setting": one.setting, "text": one.text, "code": one.code or silent},
                **{"here": one.here, "why": one.why},
            }
            for one in self.settings.values()
            if not report or not one.reports or report in one.reports
        ]


def read_fidelity(path: Path) -> Fidelity:
    """Read the file of a paper.

    Raises:
        UserError: names file, key, value, what is allowed and the nearest valid name.
    """
    found = parse(Fidelity, read_yaml(path), file=str(path))
    for key, one in found.settings.items():
        for name in one.reports:
            if name not in found.reports:
                where = f"settings.{key}.reports"
                raise unknown("report", name, found.reports, file=str(path), key=where)
    return found


def fidelity_files(published: Path, artefacts: Iterable[str] = ("*/*",)) -> Mapping[str, Path]:
    """Return the files of the papers that some artefacts belong to, by paper.

    Args:
        published: the folder of published numbers.
        artefacts: names, `<paper>/<artefact>`; by default those of every paper.
    """
    papers = {name.rpartition("/")[0] for name in artefacts} - {""}
    paths = [one for paper in papers for one in published.glob(f"{paper}/{FIDELITY_FILE}")]
    return {path.parent.name: path for path in sorted(paths)}


def open_settings(name: str, published: Path) -> list[dict[str, str]]:
    """Return what the report of `<paper>/<artefact>` says at its end; empty without a paper."""
    files = fidelity_files(published, [name]).values()
    return [row for path in files for row in read_fidelity(path).rows(name.rpartition("/")[2])]
