"""Prepare datasets into a folder, or list which there are."""

from __future__ import annotations

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    prepare = actions.add_parser("prepare", help="write a dataset into the cache")
    prepare.add_argument("name", help="its id, as `clipnoise data list` shows it")
    prepare.add_argument(
        "--options", default="{}", help="what decides what is prepared, as JSON: {tokenizer: …}"
    )
    listing = actions.add_parser("list", help="show every dataset and whether it is prepared")
    for action in (prepare, listing):
        action.add_argument("--cache", type=Path, default=Path("data"), help="prepared datasets")


def run(arguments: argparse.Namespace) -> int:
    import yaml

    from clipnoise.data.base import dataset_class
    from clipnoise.fields import parse

    if arguments.action == "list":
        show(arguments.cache)
        return 0
    kind = dataset_class(arguments.name)
    dataset = parse(kind, yaml.safe_load(arguments.options), file="--options")
    dataset.prepare(arguments.cache)
    print(f"{arguments.name}: prepared in {arguments.cache / dataset.prepared}")
    return 0


def show(cache: Path) -> None:
    """Print every dataset: whether it is prepared, its sizes, its licence and its source.

    Args:
        cache: folder of prepared datasets.
    """
    from clipnoise.data.base import Dataset
    from clipnoise.data.cache import MANIFEST
    from clipnoise.plugins import plugins

    for name, kind in plugins("clipnoise.data", Dataset).items():
        dataset = kind()
        present = (cache / name / MANIFEST).is_file()
        sizes = ", ".join(f"{part} {count}" for part, count in dataset.sizes().items() if count)
        print(f"{name:<14}{'present' if present else 'absent':<9}{dataset.title}: {sizes}")
        print(f"{'':<23}licence: {dataset.licence}; source: {dataset.source}")
