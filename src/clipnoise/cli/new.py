"""Files of a user's own: a study, a method, a model or a dataset to start from."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal

from clipnoise.cli import options
from clipnoise.errors import UserError, shorten
from clipnoise.files import write_atomically
from clipnoise.plugins import ID, LONGEST_ID, VARIABLE, own_folder, package_plugins

TEMPLATES = Path(__file__).parent / "new_files"
ADVICE = {
    "study": "List {file} under studies in config.yaml, or: clipnoise status {file}",
    "method": "In a study: - {{id: {name}, learning_rate: 0.1, clip_norm: 1}}",
    "model": "In a study: models: [{name}]",
    "dataset": "In a study: datasets: [{name}]",
}


def _ids(kind: str) -> Collection[str]:
    """Return the names of a kind that are taken: those of the package, and of studies here."""
    from clipnoise.data.base import Dataset
    from clipnoise.methods.base import Method
    from clipnoise.models.base import Model
    from clipnoise.studies.study import names_below

    if kind == "study":
        return names_below(options.STUDIES)
    packages: dict[str, tuple[str, type[Any]]] = {
        "method": ("clipnoise.methods", Method),
        "model": ("clipnoise.models", Model),
        "dataset": ("clipnoise.data", Dataset),
    }
    return package_plugins(*packages[kind]).keys()


@options.command()
def new(
    kind: Annotated[Literal["study", "method", "model", "dataset"], options.ARGUMENT],
    name: Annotated[str, options.ARGUMENT],
) -> None:
    """Write a working KIND called NAME, and its test, into the user's folder.

    KIND is study, method, model or dataset. The folder is the first of `plugins` in config.yaml.
    """
    if not ID.fullmatch(name) or len(name) > LONGEST_ID:
        allowed = f"lower-case letters, digits and single -, {LONGEST_ID} at most"
        raise UserError(f"NAME: {shorten(name)} must consist of {allowed}.")
    folder = own_folder()
    if folder is None:
        missing = "" if Path("config.yaml").is_file() else "there is no config.yaml here, and "
        raise UserError(
            f"{missing}no folder of plug-ins is named: add a line such as plugins: plugins to "
            f"config.yaml, or set {VARIABLE}."
        )
    folder = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    if name in _ids(kind):
        raise UserError(f"NAME: there is a {kind} {name!r} already. Choose another name.")
    module, title = name.replace("-", "_"), "".join(map(str.capitalize, name.split("-")))
    title = title if title[0].isalpha() else f"Own{title}"
    source = f"{kind}.yaml" if kind == "study" else f"{kind}.py"
    target = folder / (f"{name}.yaml" if kind == "study" else f"{module}.py")
    copies = {source: target, f"test_{kind}.py": folder / f"test_{module}.py"}
    for path in copies.values():
        if path.exists():
            raise UserError(f"{path}: is there already.")
    copies["conftest.py"] = folder / "conftest.py"
    for template, path in copies.items():
        text = (TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
        text = text.replace("new-plugin", name).replace("NewPlugin", title)
        if not path.exists():
            write_atomically(path, text)
            print(path)
    print(f"Test it: pytest {folder / f'test_{module}.py'}")
    print(ADVICE[kind].format(file=target, name=name))
