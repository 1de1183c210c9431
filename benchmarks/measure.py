"""Measure time and peak memory of every way to take a step's gradient on one network."""

from __future__ import annotations

import ctypes
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
from networks import Case
from ways import NON_PRIVATE, STEPS, WAYS, WITHOUT_NORMS, Way

if TYPE_CHECKING:
    from ways import Sums

MEGABYTE = 2**20
SMALLEST_MB = 1.0  # below this a peak is a few pages, and its ratio says nothing
SHORTEST = 0.05  # seconds; shorter calls are repeated until they take as long, or noise runs out


@dataclass(frozen=True)
class Measurement:
    """One way on one network.

    Attributes:
        seconds: median over the repetitions; None where the way does not work.
        time_ratio: relative to the non-private gradient (or whole step) of the same batch.
        peak_mb: peak memory above what was allocated before the step.
        memory_ratio: relative to that of the non-private gradient.
        deviation: largest difference from the sum of vmap, relative to its largest entry; None
            where there is nothing to compare with.
        problem: why the way does not work; empty if it does.
    """

    network: str
    parameters: int
    batch: int
    query: str
    engine: str
    seconds: float | None = None
    time_ratio: float | None = None
    peak_mb: float | None = None
    memory_ratio: float | None = None
    deviation: float | None = None
    problem: str = ""


def measure(
    name: str,
    case: Case,
    *,
    batch: int,
    repetitions: int,
    device: str,
    ways: Sequence[Way] = WAYS,
) -> list[Measurement]:
    """Measure ways on one network.

    Ways take turns, so that other load on the machine affects all of them alike.
    """
    inputs, targets = case.batch(batch, device)
    running: dict[Way, Callable[[], Sums]] = {}
    problems: dict[Way, str] = {}
    sums: dict[Way, Sums] = {}
    parameters = 0
    for way in ways:
        torch.manual_seed(0)
        try:
            network = case.build(way.dropout).to(device).train()
            parameters = sum(p.numel() for p in network.parameters() if p.requires_grad)
            run = way.prepare(network, case.losses, inputs, targets)
            sums[way] = run()
        except Exception as error:  # that a library cannot do this is a result
            problems[way] = (str(error).strip() or type(error).__name__).splitlines()[0]
        else:
            running[way] = run
    peaks = {way: peak(run, device) for way, run in running.items()}
    most = max(1, (STEPS - 3) // repetitions)  # three calls have been made by then
    calls = {
        way: min(most, math.ceil(SHORTEST / timed(run, device))) for way, run in running.items()
    }
    seconds: dict[Way, list[float]] = {way: [] for way in running}
    for _ in range(repetitions):
        for way, run in running.items():
            seconds[way].append(timed(run, device, calls[way]))
    medians = {way: statistics.median(times) for way, times in seconds.items()}
    rows = []
    for way in ways:
        base = non_private(running, way.query)
        row: dict[str, Any] = {"network": name, "parameters": parameters, "batch": batch}
        row |= {"query": way.query, "engine": way.engine, "problem": problems.get(way, "")}
        if way in running:
            row |= {"seconds": medians[way], "time_ratio": medians[way] / medians[base]}
            row["peak_mb"] = peaks[way]
            measurable = peaks[base] >= SMALLEST_MB
            row["memory_ratio"] = peaks[way] / peaks[base] if measurable else math.nan
            row["deviation"] = deviation(way, sums)
        rows.append(Measurement(**row))
    return rows


def non_private(ways: Iterable[Way], query: str) -> Way:
    """Return the non-private way that a query is compared with; whole steps with a whole step."""
    others = {way.query: way for way in ways if way.engine == NON_PRIVATE}
    return others.get(query.partition(",")[0], others["plain"])


def deviation(way: Way, sums: dict[Way, Sums]) -> float | None:
    """Return the largest difference from vmap's sum of the same query, relative to its maximum."""
    reference = next((w for w in sums if w.engine == "vmap" and w.query == way.query), None)
    if reference is None or way.engine in (NON_PRIVATE, WITHOUT_NORMS, "vmap"):
        return None
    found, expected = (
        torch.cat([part.flatten() for part in sums[one]]) for one in (way, reference)
    )
    return float((found - expected).abs().max() / expected.abs().max())


def timed(run: Callable[[], Sums], device: str, calls: int = 1) -> float:
    """Return the seconds of one of several calls, including work that is queued on the device."""
    _synchronise(device)
    start = time.perf_counter()
    for _ in range(calls):
        run()
    _synchronise(device)
    return (time.perf_counter() - start) / calls


def peak(run: Callable[[], Sums], device: str) -> float:
    """Return the peak memory of one call above what was allocated before, in megabytes."""
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return (torch.cuda.max_memory_allocated() - before) / MEGABYTE
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the recorded peak to current use
    before = psutil.Process().memory_info().rss
    run()
    status = Path("/proc/self/status").read_text()
    most = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return (int(most.split()[1]) * 1024 - before) / MEGABYTE


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings of the libraries, which do not apply to a benchmark."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def as_mappings(rows: list[Measurement]) -> list[dict[str, Any]]:
    """Return the rows of the CSV file."""
    return [asdict(row) for row in rows]
