"""Measure the speed of clipped sums, and write speed.csv, curves.csv, figures and speed.md.

Run it from the repository: `make benchmark`, or `python benchmarks/speed.py --help`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from measure import Measurement, as_mappings, measure, quiet
from networks import CASES, SERIES
from page import write_page
from ways import PLAIN, WAYS, WITHOUT_MECHANISMS

from clipnoise.run.memory import keep_freed_memory
from clipnoise.run.provenance import hardware
from clipnoise.run.setup import exact_arithmetic, named_device


def main() -> int:
    """Measure all networks and write the results."""
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()  # as every training job does; all ways benefit alike
    device = named_device(arguments.device)
    if device == "cuda" and not torch.cuda.is_available():
        print("--device: cuda: torch finds no GPU here.", file=sys.stderr)
        return 2
    exact_arithmetic(device)  # as every training job
    arguments.output.mkdir(parents=True, exist_ok=True)
    repeat = partial(measure, repetitions=arguments.repetitions, device=device)
    chosen = partial(wanted, only=arguments.only)
    networks: list[Measurement] = []
    series: list[pd.DataFrame] = []
    with quiet():
        for name in filter(chosen, CASES):
            print(name, file=sys.stderr, flush=True)
            ways = WAYS if CASES[name].mechanisms else WITHOUT_MECHANISMS
            networks += repeat(name, CASES[name], batch=arguments.batch, ways=ways)
        for name in filter(chosen, SERIES):
            print(f"{name}, by {SERIES[name].over}", file=sys.stderr, flush=True)
            series += [
                pd.DataFrame(as_mappings(repeat(name, case, batch=batch, ways=PLAIN))).assign(
                    over=SERIES[name].over, size=size
                )
                for size, (case, batch) in SERIES[name].cases.items()
            ]
    table, curves = pd.DataFrame(as_mappings(networks)), pd.concat(series or [pd.DataFrame()])
    table.to_csv(arguments.output / "speed.csv", index=False)
    curves.to_csv(arguments.output / "curves.csv", index=False)
    write_page(table, curves, arguments.output, machine(arguments, device))
    print(arguments.output / "speed.md")
    return 0


def wanted(name: str, only: Sequence[str] | None) -> bool:
    """Return whether a network is selected by `--only`."""
    return not only or any(part in name for part in only)


def parse() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--batch", type=int, default=64, help="examples in a batch")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    devices = ["auto", "cpu", "cuda"]
    parser.add_argument("--device", choices=devices, default="auto", help="a GPU if there is one")
    parser.add_argument("--only", nargs="*", help="networks whose names contain one of these")
    return parser.parse_args()


def machine(arguments: argparse.Namespace, device: str) -> str:
    """Describe the machine and the settings."""
    made_on = hardware(device)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"Measured on {made_on['gpu'] or made_on['cpu']}, {arguments.threads} threads, "
        f"torch {torch.__version__}, batch {arguments.batch}, {arguments.repetitions} repetitions; "
        f"load averages at the end: {load}."
    )


if __name__ == "__main__":
    sys.exit(main())
