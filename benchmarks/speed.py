"""Measure how fast clipped sums are, and write speed.csv, speed.svg and speed.md.

Run it from the repository: `make benchmark`, or `python benchmarks/speed.py --help`.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

import pandas as pd
import torch
from measure import as_mappings, measure, quiet
from networks import CASES
from page import write_page


def main() -> int:
    """Measure, then write."""
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    arguments.output.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, case in CASES.items():
        if arguments.only and not any(part in name for part in arguments.only):
            continue
        print(name, file=sys.stderr, flush=True)
        with quiet():
            rows += measure(
                name,
                case,
                batch=arguments.batch,
                repetitions=arguments.repetitions,
                device=device,
            )
        table = pd.DataFrame(as_mappings(rows))
        table.to_csv(arguments.output / "speed.csv", index=False)
        write_page(table, arguments.output, machine(arguments, device))
    print(arguments.output / "speed.md")
    return 0


def parse() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--batch", type=int, default=64, help="examples in a batch")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="*", help="networks whose names hold one of these")
    return parser.parse_args()


def machine(arguments: argparse.Namespace, device: str) -> str:
    """Say what was measured on."""
    where = torch.cuda.get_device_name() if device == "cuda" else cpu_name()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"Measured on {where}, {arguments.threads} threads, torch {torch.__version__}, batch "
        f"{arguments.batch}, {arguments.repetitions} repetitions; load averages at the end: {load}."
    )


def cpu_name() -> str:
    """Return the processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    sys.exit(main())
