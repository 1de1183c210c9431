"""Datasets whose facts are data: a YAML file for each source, and a reader of this folder.

A file says what is true of a source: its title and licence, where its files come from and what
their checksums are, how many examples they hold. Below `datasets` it names the datasets that are
read from it, each with its reader and its own facts; a fact of the source holds for all of them.
Which facts there are is what the class of the reader declares as class variables.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, cast, get_args, get_origin, get_type_hints

from clipnoise import data
from clipnoise.data.base import Dataset
from clipnoise.data.packages import DebianFile, NpmFile, PackageFile
from clipnoise.data.remote import RemoteFile
from clipnoise.errors import UserError, unknown
from clipnoise.fields import parse
from clipnoise.files import inside, read_yaml

FOLDER = "datasets"  # of the YAML files, in a plug-in folder
# Class variables that are no facts, or are made of some.
CODE = {"id", "needs", "reader", "facts", "described_in", "files", "prepared_with"}
# Keys that are not class variables: the docstring; defaults of options; the address of the folder
# of the files, which are named in a list or in a list for each part.
OTHERS = ("about", "defaults", "files", "reader", "site")
KINDS = {
    "name": RemoteFile,
    "wheel": PackageFile,
    "deb": DebianFile,
    "npm": NpmFile,
}  # of files, by their key
FILES = list[str | dict[str, Any]]
# What a dataset that is made `of` another one has in common with it, unless it says otherwise.
SHARED = (
    *("classes", "files", "licence", "persons", "raw", "site", "source", "split"),
    *("test_file", "training_file", "validation_file"),
)


def described(folder: Path) -> Iterator[type[Dataset]]:
    """Yield the datasets that the YAML files of a plug-in folder describe.

    Raises:
        UserError: a file is not as described above; it names the file, the key and what is allowed.
    """
    found = []
    for path in sorted((folder / FOLDER).glob("*.yaml")):
        source = read_yaml(path)
        own = source.pop("datasets", None)
        named = parse(dict[str, dict[str, Any]], own, file=str(path), key="datasets")
        found += [_Description(path, name, {**source, **facts}) for name, facts in named.items()]
    by_id = {one.id: one for one in found}
    for one in found:
        yield one.with_shared(by_id).dataset()


@cache
def _readers() -> Mapping[str, type[Dataset]]:
    """Return the classes of this folder that read files, by what YAML files call them."""
    for found in pkgutil.iter_modules(data.__path__, f"{data.__name__}."):
        importlib.import_module(found.name)
    readers, waiting = {}, [Dataset]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if vars(kind).get("reader"):
            readers[kind.reader] = kind
    return readers


@cache
def _types(reader: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the types of the facts that a reader takes, and those of its options, by name."""
    hints = get_type_hints(reader, include_extras=True)
    facts = {
        name: get_args(hint)[0]
        for name, hint in hints.items()
        if get_origin(hint) is ClassVar and name not in CODE
    }
    return facts, {field.name: hints[field.name] for field in fields(reader)}


@dataclass(frozen=True)
class _Description:
    """What a file says of one dataset.

    Attributes:
        path: the file.
        id: of the dataset.
        facts: its own, and those of its source.
    """

    path: Path
    id: str
    facts: Mapping[str, Any]

    def with_shared(self, others: Mapping[str, _Description]) -> _Description:
        """Return it with what it has in common with the dataset that it is made of, if any."""
        if "of" not in self.facts:
            return self
        name = self._fact(str, "of")
        if name not in others:
            raise self._unknown("dataset", name, others, "of")
        shared = {key: value for key, value in others[name].facts.items() if key in SHARED}
        return replace(self, facts={"raw": name, **shared, **self.facts})

    def dataset(self) -> type[Dataset]:
        """Return the class of the dataset: its reader, with its facts."""
        reader = _readers().get(name := self._fact(str, "reader"))
        if reader is None:
            raise self._unknown("reader", name, _readers(), "reader")
        facts, options = _types(cast("Any", reader))
        for name in self.facts:
            if name not in {*facts, *OTHERS}:
                raise self._unknown("fact", name, {*facts, *OTHERS})
        given = {name: self._fact(facts[name], name) for name in facts if name in self.facts}
        given = self._files(facts["pieces"]) | given
        for name in facts:
            if name not in given and not hasattr(reader, name):
                raise UserError(f"{self._place(name)}: required, but not given.")
        return self._class(reader, given, options)

    def _class(
        self, reader: type[Dataset], given: Mapping[str, Any], options: Mapping[str, Any]
    ) -> type[Dataset]:
        """Make the class; facts that the reader refuses raise UserError."""
        inside(Path(), given.get("raw", ""), key=self._place("raw"))
        defaults = self._defaults(options)
        members = {
            "__doc__": self._fact(str, "about"),
            "__module__": reader.__module__,
            "__annotations__": {name: options[name] for name in defaults},
            "id": self.id,
            "described_in": self.path,
            "facts": {name: value for name, value in self.facts.items() if name != "about"},
        }
        name = "".join(map(str.capitalize, self.id.split("-")))
        plain: type[Dataset] = type(name, (reader,), {**members, **given, **defaults})
        kind = dataclass(frozen=True, kw_only=True)(plain)
        try:
            kind()
        except ValueError as error:
            raise UserError(f"{self._place()}: {error}.") from None
        return kind

    def _defaults(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults of options that differ from those of the reader."""
        given = self._parsed(dict[str, Any], self.facts.get("defaults", {}), "defaults")
        for name in given:
            if name not in options:
                raise self._unknown("option", name, options, "defaults")
        return {
            name: self._parsed(options[name], value, "defaults", name)
            for name, value in given.items()
        }

    def _files(self, pieces: Any) -> dict[str, Any]:
        """Return the files, the names of those of each part, and how to get them by hand.

        Args:
            pieces: the type of the names of each part.
        """
        listed = self.facts.get("files", [])
        by_part = listed if isinstance(listed, dict) else {"": listed}
        files = {
            part: tuple(map(self._file, self._parsed(FILES, names, "files", str(part))))
            for part, names in by_part.items()
        }
        found: dict[str, Any] = {"files": tuple(file for some in files.values() for file in some)}
        if isinstance(listed, dict):
            named = {part: [file.name for file in some] for part, some in files.items()}
            found["pieces"] = self._parsed(pieces, named, "files")
        packed = [file for file in found["files"] if isinstance(file, PackageFile | NpmFile)]
        if packed:
            found["manual"] = " ".join(file.manual for file in packed)
        return found

    def _file(self, entry: str | Mapping[str, Any]) -> RemoteFile:
        """Return a file; one without an address is below the `site`, unless an index has it."""
        facts: dict[str, Any] = {"name": entry} if isinstance(entry, str) else dict(entry)
        key = next((key for key in KINDS if key in facts), "name")
        facts["name"] = facts.pop(key, None)
        if key in ("name", "deb") and "site" in self.facts and "address" not in facts:
            facts["address"] = f"{self._fact(str, 'site')}/{facts['name']}"
        file: RemoteFile = self._parsed(KINDS[key], facts, "files")
        inside(Path(), file.name, key=self._place("files"))
        return file

    def _fact(self, kind: Any, name: str) -> Any:
        """Return a fact as its type; one that is not given is none of any type."""
        return self._parsed(kind, self.facts.get(name), name)

    def _parsed(self, kind: Any, value: Any, *key: str) -> Any:
        return parse(kind, value, file=str(self.path), key=self._key(*key))

    def _unknown(self, kind: str, name: str, allowed: Any, *key: str) -> UserError:
        return unknown(kind, name, allowed, file=str(self.path), key=self._key(*key))

    def _key(self, *names: str) -> str:
        return ".".join(filter(None, ["datasets", self.id, *names]))

    def _place(self, *names: str) -> str:
        return f"{self.path}: {self._key(*names)}"
