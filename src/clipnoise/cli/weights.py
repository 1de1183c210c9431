"""Fetch, verify or list the pretrained weights and tokenizers that models start from."""

from __future__ import annotations

import argparse
from pathlib import Path

ACTIONS = {
    "fetch": "download a model's weights; says how to get them by hand where that fails",
    "verify": "compare weights that are there with their checksums",
    "accept": "take the files as they are from now on: a mirror or a version of your own",
}


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    parsers = {name: actions.add_parser(name, help=text) for name, text in ACTIONS.items()}
    for action in parsers.values():
        action.add_argument("name", help="the model's id, as `clipnoise weights list` shows it")
    listing = actions.add_parser("list", help="show all weights and whether they are there")
    for action in (*parsers.values(), listing):
        action.add_argument(
            "--weights", type=Path, default=Path("weights"), help="folder of pretrained weights"
        )


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.cli._downloads import fetch
    from clipnoise.models.pretrained import weight_files

    if arguments.action == "list":
        show(arguments.weights)
        return 0
    files = weight_files(arguments.weights, arguments.name)
    if arguments.action == "fetch":
        print(f"{arguments.name}: fetched into {fetch(files)}")
    elif arguments.action == "accept":
        files.accept()
        print(f"{arguments.name}: the files in {files.folder} are accepted as they are")
    else:
        for name, found in files.verify().items():
            print(f"{name}: sha256 {found.sha256}, checked against {found.checked}")
    return 0


def show(weights: Path) -> None:
    """Print all weights: whether they are there, whose they are, their licence and source.

    Args:
        weights: folder of pretrained weights.
    """
    from clipnoise.models.base import model_class
    from clipnoise.models.pretrained import pretrained_weights, weight_files

    for name, source in pretrained_weights().items():
        missing = weight_files(weights, name).missing()
        state = f"absent: {', '.join(missing)}" if missing else "present"
        print(f"{name:<14}{state}")
        print(f"{'':<14}{model_class(name).title}, licence {source.licence}, {source.source}")
