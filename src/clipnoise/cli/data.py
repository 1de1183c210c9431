"""Fetch, verify and prepare datasets, or list which there are."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clipnoise.data.base import Dataset

ACTIONS = {
    "fetch": "download a dataset's raw files; says how to get them by hand where that fails",
    "verify": "compare raw files with their checksums, and what is prepared with its manifest",
    "prepare": "write a dataset into the cache, from its raw files",
}


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    parsers = {name: actions.add_parser(name, help=text) for name, text in ACTIONS.items()}
    for action in parsers.values():
        action.add_argument("name", help="its id, as `clipnoise data list` shows it")
    for name in ("verify", "prepare"):
        parsers[name].add_argument(
            "--options",
            default="{}",
            help="what decides what is prepared, as JSON or YAML: {tokenizer: …}",
        )
    parsers["prepare"].add_argument(
        "--unverified",
        action="store_true",
        help="take the raw files as they are, and from now on: a mirror or a version of your own",
    )
    parsers["prepare"].add_argument(
        "--weights", type=Path, default=Path("weights"), help="pretrained weights: of tokenizers"
    )
    listing = actions.add_parser("list", help="show every dataset and what of it is there")
    listing.add_argument("--markdown", type=Path, help="write the documentation page to this file")
    for action in (*parsers.values(), listing):
        action.add_argument("--cache", type=Path, default=Path("data"), help="prepared datasets")


def run(arguments: argparse.Namespace) -> int:
    import yaml

    from clipnoise.data.base import dataset_class
    from clipnoise.fields import parse

    if arguments.action == "list":
        _list(arguments.cache, arguments.markdown)
        return 0
    options = yaml.safe_load(getattr(arguments, "options", "{}"))
    dataset = parse(dataset_class(arguments.name), options, file="--options")
    if arguments.action == "fetch":
        _fetch(arguments.cache, dataset)
    elif arguments.action == "verify":
        _verify(arguments.cache, dataset)
    else:
        _prepare(arguments.cache, dataset, arguments.weights, arguments.unverified)
    return 0


def _list(cache: Path, page: Path | None) -> None:
    from clipnoise.data.page import dataset_page
    from clipnoise.files import write_atomically

    if page is None:
        show(cache)
        return
    write_atomically(page, dataset_page())
    print(page)


def show(cache: Path) -> None:
    """Print every dataset: what of it is there, its sizes, its licence and its source.

    Args:
        cache: folder of prepared datasets.
    """
    from clipnoise.data.base import Dataset
    from clipnoise.plugins import plugins

    known = plugins("clipnoise.data", Dataset)
    width = max(map(len, known)) + 2
    for name, kind in known.items():
        dataset = kind()
        sizes = ", ".join(f"{part} {count:,}" for part, count in dataset.sizes().items() if count)
        print(f"{name:<{width}}{_state(cache, dataset):<22}{dataset.title}: {sizes}")
        print(f"{'':<{width + 22}}licence: {dataset.licence}; source: {dataset.source}")


def _state(cache: Path, dataset: Dataset) -> str:
    """Say what of a dataset is there: prepared in some form, or its raw files at least."""
    from clipnoise.data.cache import MANIFEST

    forms = [cache / dataset.prepared, *cache.glob(f"{dataset.id}@*")]
    if any((folder / MANIFEST).is_file() for folder in forms):
        return "present"
    if not dataset.files:
        return "absent"
    return "absent" if dataset.raw_files(cache).missing() else "absent, raw files here"


def _fetch(cache: Path, dataset: Dataset) -> None:
    from clipnoise.cli._downloads import fetch

    if not dataset.files:
        print(f"{dataset.id}: nothing to fetch. {dataset.manual}".rstrip())
        return
    print(f"{dataset.id}: fetched into {fetch(dataset.raw_files(cache))}")


def _verify(cache: Path, dataset: Dataset) -> None:
    from clipnoise.data.cache import MANIFEST, read_arrays

    for name, raw in dataset.raw_files(cache).verify().items():
        print(f"{name}: sha256 {raw.sha256}, checked against {raw.checked}")
    folder = cache / dataset.prepared
    if (folder / MANIFEST).is_file():
        for name in read_arrays(folder, dataset.id):
            print(f"{folder / name}.npy: as it was prepared")


def _prepare(cache: Path, dataset: Dataset, weights: Path, unverified: bool) -> None:
    from clipnoise.data.text import Tokenising

    if unverified:
        dataset.raw_files(cache).accept()
    elif dataset.files:
        dataset.raw_files(cache).verify()
    if isinstance(dataset, Tokenising):
        dataset.prepare(cache, weights)
    else:
        dataset.prepare(cache)
    print(f"{dataset.id}: prepared in {cache / dataset.prepared}")
