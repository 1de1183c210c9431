"""Measure a step that one process or several take together: time, memory, bytes sent.

    python benchmarks/ranks.py                       # every network, one process and two
    python benchmarks/ranks.py --only lora --steps 3

Weights and data are random. Each measurement has processes of its own, of one thread each, and the
numbers of processes take turns, so that other load on the machine affects all of them alike. Wall
time says nothing where other programs use the cores; processor time is then what can be compared.
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

import torch
from networks import CASES, Case

import clipnoise
from clipnoise.data.signature import Signature
from clipnoise.run.ranks import Ranks, started

WORDS = Signature("tokens", (128,), 2, vocabulary=28_996)
LORA = {"pretrained": False, "train": "lora", "dropout": 0.0}
NETWORKS = {
    **{name: CASES[name] for name in CASES if name.startswith(("vit", "bert-base"))},
    "bert-base, lora": Case("bert-base", WORDS, LORA),
}
PROCESSES = (1, 2)


@dataclass(frozen=True)
class Steps:
    """What one process has measured of its steps.

    Attributes:
        wall, cpu: seconds of the median step, of the clock and of processors.
        peak_mb: the most memory that the process has held, 10^6 bytes.
        sent: bytes that all processes together have sent in a step.
        all_parameters, trained: numbers of parameters.
    """

    wall: float
    cpu: float
    peak_mb: float
    sent: int
    all_parameters: int
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
        sent.append(training._trainer.ranks.sent)
        mark = now
    counts = [parameter.numel() for parameter in network.parameters()]
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    own = Steps(
        wall=statistics.median(walls[1:]),  # the first one begins with what a process sets up once
        cpu=statistics.median(cpus[1:]),
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        sent=(sent[-1] - sent[0]) // (len(sent) - 1),
        all_parameters=sum(counts),
        trained=trained,
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
        [sys.executable, __file__, *words], env=threads, capture_output=True, text=True, check=True
    )
    return [Steps(**found) for found in json.loads(done.stdout.splitlines()[-1])]


def main() -> None:
    """Print a line for each network and number of processes, medians over the rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--batch", type=int, default=16, help="expected batch size")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each kind")
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "PROCESSES"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        one(given.one[0], int(given.one[1]), given.batch, given.steps)
        return
    print("load", *(f"{load:.1f}" for load in os.getloadavg()), "cores", os.cpu_count())
    for name in (name for name in NETWORKS if given.only in name):
        found: dict[int, list[list[Steps]]] = {count: [] for count in PROCESSES}
        for _ in range(given.rounds):
            for count in PROCESSES:
                found[count].append(apart(name, count, given.batch, given.steps))
        for count, rounds in found.items():
            wall = statistics.median(max(each.wall for each in ranks) for ranks in rounds)
            cpu = statistics.median(max(each.cpu for each in ranks) for ranks in rounds)
            peak = max(each.peak_mb for ranks in rounds for each in ranks)
            first = rounds[0][0]
            print(
                f"{name}: {count} of 1 thread: {1000 * wall:.0f} ms a step, processor "
                f"{1000 * cpu:.0f} ms a process, at most {peak:,.0f} MB a process, "
                f"{first.sent:,} bytes sent; {first.trained:,} of {first.all_parameters:,} "
                "parameters trained"
            )


if __name__ == "__main__":
    main()
