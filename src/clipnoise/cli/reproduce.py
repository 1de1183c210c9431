"""Run an exact experiment of a paper and compare it with the published numbers.

Writes raw data and comparison.csv (quantity, published, measured, difference) into a folder.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from clipnoise.cli._options import add_scale


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", help="e.g. adadps/fig3")
    parser.add_argument(
        "--settings", type=Path, required=True, help="YAML file with the settings of the experiment"
    )
    parser.add_argument(
        "--published", type=Path, required=True, help="CSV file with the published numbers"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the CSV files")
    add_scale(parser)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")


def run(arguments: argparse.Namespace) -> int:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(arguments.threads)
    import yaml

    from clipnoise.files import write_atomically, write_json
    from clipnoise.papers.base import load, read_published, write
    from clipnoise.run.provenance import Provenance
    from clipnoise.studies.scale import read_scale

    provenance, scale = Provenance("cpu"), read_scale(arguments.scale)
    changes = scale.reproductions.get(arguments.experiment, {})
    experiment = load(arguments.experiment, arguments.settings, changes)
    published = read_published(arguments.published)
    write(experiment.run(), published, arguments.out)
    settings = arguments.settings.read_text()
    if changes:
        settings = f"# Replaced below\n{yaml.safe_dump(changes, sort_keys=False)}\n{settings}"
    write_atomically(arguments.out / "settings.yaml", settings)
    facts = {
        "seconds": provenance.seconds,
        "threads": arguments.threads,
        "watermark": scale.watermark if changes else "",
    }
    write_json(arguments.out / "run.json", {**provenance.as_mapping(), **facts})
    print(f"{arguments.out}: {arguments.experiment}")
    return 0
