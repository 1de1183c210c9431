"""Tell what this machine has, and what to do about what it lacks.

Reads the folders from config.yaml when there is one. Changes nothing, and exits with 0 whatever it
finds: a missing part matters only to those who need it.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, default=Path("config.yaml"), help="where the folders are named"
    )
    parser.add_argument(
        "--weights", type=Path, default=Path("weights"), help="folder of pretrained weights"
    )


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.files import read_yaml
    from clipnoise.run.doctor import examine
    from clipnoise.studies.config import parse_config

    values = read_yaml(arguments.config) if arguments.config.exists() else {}
    config = parse_config(values, file=str(arguments.config))
    for finding in examine(Path(config.results), Path(config.cache), arguments.weights):
        mark = "ok" if finding.present else "--"
        print(f"{mark}  {finding.name:<18}{finding.detail}", flush=True)
        if not finding.present and finding.advice:
            print(f"    {'':<18}→ {finding.advice}", flush=True)
    return 0
