"""Write the JSON Schemas of config.yaml, study files and run specs.

Editors that know JSON Schema complete and check the YAML files with them.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("workflow/schemas"), help="folder")


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.files import write_atomically
    from clipnoise.studies.schema import schema_text, schemas

    for name, schema in schemas().items():
        path = arguments.out / f"{name}.json"
        write_atomically(path, schema_text(schema))
        print(path)
    return 0
