"""Measure a step that one process or several take together: time, memory, bytes sent.

    python benchmarks/ranks.py                       # vit and bert-base, one process and two
    python benchmarks/ranks.py --only lora --steps 3

Weights and data are random. Each measurement has processes of its own, of one thread each, and the
numbers of processes take turns, so that other load on the machine affects all of them alike. Wall
time says nothing where other programs use the cores; processor time is then what can be compared.
Rows of ranks.csv of other networks and batch sizes stay, and ranks.md is made from all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from networks import CASES, Case

import clipnoise
from clipnoise.data.signature import Signature
from clipnoise.run.provenance import hardware
from clipnoise.run.ranks import Ranks, started

WORDS = Signature("tokens", (128,), 2, vocabulary=28_996)
LORA = {"pretrained": False, "train": "lora", "dropout": 0.0}
NETWORKS = {**CASES, "bert-base, lora": Case("bert-base", WORDS, LORA)}
PROCESSES = (1, 2)
MEASURED = ["network", "batch", "processes"]
OWN_LOAD = max(PROCESSES) + 0.5  # more is that of other programs

PAGE = """\
# A step that processes take together

One process of one thread, or two of one thread each, take the same steps of DP-Adam, batches \
and noise included. Wall time and processor time are those of a step: the median of the slower \
process, and the median over rounds in which the numbers of processes take turns. The ratio is \
that of wall time to one process. Both are left out where other programs used the machine, too. \
Memory is the most that a process has held, Python and torch included; bytes are those that all \
processes together have sent in a step. `python benchmarks/ranks.py` makes this page.

{table}
"""
HEADINGS = {
    "network": "network",
    "trained": "trained parameters",
    "parameters": "parameters",
    "batch": "batch",
    "processes": "processes",
    "wall": "wall time (s)",
    "ratio": "ratio",
    "cpu": "processor time of each (s)",
    "peak_mb": "memory of each (MB)",
    "sent": "bytes sent",
    "load": "load before",
    "machine": "machine",
}


@dataclass(frozen=True)
class Steps:
    """What one process has measured of its steps.

    Attributes:
        wall, cpu: seconds of the median step, of the clock and of processors.
        peak_mb: the most memory that the process has held, 10^6 bytes.
        sent: bytes that all processes together have sent in a step.
        parameters, trained: numbers of parameters, all and trained ones.
    """

    wall: float
    cpu: float
    peak_mb: float
    sent: int
    parameters: int
    trained: int


def measure(ranks: Ranks, name: str, batch: int, steps: int) -> list[Steps]:
    """Train a network for some steps as one of several processes; return what each measured."""
    case = NETWORKS[name]
    torch.manual_seed(0)
    network = case.build()
    training = clipnoise.private(
        network,
        case.losses,
        data=case.batch(8 * batch, "cpu"),
        method="dp-adam",
        noise_multiplier=1.0,
        delta=1e-5,
        expected_batch_size=batch,
        physical_batch_size=8,
        steps=steps + 1,
        learning_rate=1e-3,
        clip_norm=1.0,
        seed=1,
        device="cpu",
    )
    walls, cpus, sent = [], [], []
    mark = time.perf_counter(), time.process_time()
    for _ in training:
        now = time.perf_counter(), time.process_time()
        walls.append(now[0] - mark[0])
        cpus.append(now[1] - mark[1])
        sent.append(training.bytes_sent)
        mark = now
    own = Steps(
        wall=statistics.median(walls[1:]),  # the first one begins with what a process sets up once
        cpu=statistics.median(cpus[1:]),
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        sent=(sent[-1] - sent[0]) // (len(sent) - 1),
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        trained=sum(p.numel() for p in network.parameters() if p.requires_grad),
    )
    return ranks.each(own)


def one(name: str, processes: int, batch: int, steps: int) -> None:
    """Measure once, and print what each process found as a line of JSON."""
    torch.set_num_threads(1)
    with started(processes, "cpu", measure, name, batch, steps) as ranks:
        print(json.dumps([asdict(found) for found in measure(ranks, name, batch, steps)]))


def apart(name: str, processes: int, batch: int, steps: int) -> list[Steps]:
    """Measure in processes that end afterwards."""
    words = ["--one", name, str(processes), "--batch", str(batch), "--steps", str(steps)]
    threads = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, *words], env=threads, stdout=subprocess.PIPE, check=True
    )
    return [Steps(**found) for found in json.loads(done.stdout.splitlines()[-1])]


def compared(name: str, batch: int, steps: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each number of processes, medians over rounds in which they take turns."""
    load = os.getloadavg()[0]
    found: dict[int, list[list[Steps]]] = {count: [] for count in PROCESSES}
    for _ in range(rounds):
        for count in PROCESSES:
            found[count].append(apart(name, count, batch, steps))
    walls = {
        count: [max(each.wall for each in ranks) for ranks in measured]
        for count, measured in found.items()
    }
    rows = []
    for count, measured in found.items():
        ratios = [wall / alone for wall, alone in zip(walls[count], walls[1], strict=True)]
        of_each = [each for ranks in measured for each in ranks]
        rows.append(
            {
                "network": name,
                "trained": of_each[0].trained,
                "parameters": of_each[0].parameters,
                "batch": batch,
                "processes": count,
                "wall": round(statistics.median(walls[count]), 3),
                "ratio": round(statistics.median(ratios), 2),
                "cpu": round(statistics.median(max(e.cpu for e in r) for r in measured), 3),
                "peak_mb": round(max(each.peak_mb for each in of_each)),
                "sent": of_each[0].sent,
                "load": round(load, 1),
                "machine": hardware("cpu")["cpu"],
            }
        )
    return rows


def write(rows: list[dict[str, Any]], folder: Path) -> None:
    """Replace the rows of what was measured, and write the page of all rows."""
    path, table = folder / "ranks.csv", pd.DataFrame(rows)
    if path.exists():
        before = pd.read_csv(path)
        table = pd.concat([before, table]).drop_duplicates(MEASURED, keep="last")
    table.to_csv(path, index=False)
    shown = [" | ".join(HEADINGS.values()), " | ".join("---" for _ in HEADINGS)]
    shown += [" | ".join(cells(row)) for _, row in table.iterrows()]
    lines = "\n".join(f"| {line} |" for line in shown)
    (folder / "ranks.md").write_text(PAGE.format(table=lines))


def cells(row: pd.Series) -> list[str]:
    """Return the cells of a row of the page: no wall time where the machine had other work."""
    left_out = ("wall", "ratio") if row["load"] > OWN_LOAD else ()
    values = {key: "—" if key in left_out else row[key] for key in HEADINGS}
    return [text if isinstance(text, str) else f"{text:,}" for text in values.values()]


def main() -> None:
    """Measure the networks and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument(
        "--only",
        nargs="*",
        default=["vit", "bert-base"],
        help="networks whose names contain one of these",
    )
    parser.add_argument("--batch", type=int, default=16, help="expected batch size")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each kind")
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "PROCESSES"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        one(given.one[0], int(given.one[1]), given.batch, given.steps)
        return
    given.output.mkdir(parents=True, exist_ok=True)
    for name in NETWORKS:
        if any(part in name for part in given.only):
            print(name, file=sys.stderr, flush=True)
            rows = compared(name, given.batch, given.steps, given.rounds)
            write(rows, given.output)  # at once: a measurement can take long
    print(given.output / "ranks.md")


if __name__ == "__main__":
    main()
