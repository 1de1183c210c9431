"""Write the JSON Schemas of config.yaml, study files, scale files and run specs.

An editor that supports JSON Schema completes and checks the YAML files with them.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="folder for the schemas")


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.files import write_atomically
    from clipnoise.studies.schema import schema_text, schemas

    for name, schema in schemas().items():
        path = arguments.out / name
        write_atomically(path, schema_text(schema))
        print(path)
    return 0
