"""Measure how the workflow grows with the number of runs, and write scale.csv, .svg and .md.

Plans a study of n runs without training, then gives every run the result files of a finished one.
Run it from the repository: `make scale`, or `python benchmarks/scale.py --help`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import matplotlib
import pandas as pd
import yaml

from clipnoise.privacy.calibration import calibrate
from clipnoise.run.outcome import Metrics, Outcome
from clipnoise.run.provenance import Provenance, hardware
from clipnoise.run.results import run_folder, write_run
from clipnoise.studies.plan import Plan

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
SEEDS = 50
# A small process starts the measured command, because the peak memory of a child includes that of
# its parent at the time of the fork.
LAUNCH = """
import json, resource, subprocess, sys, time
begin = time.perf_counter()
code = subprocess.call(sys.argv[1:], stdout=sys.stderr)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
seconds = {"seconds": time.perf_counter() - begin, "cpu_seconds": used.ru_utime + used.ru_stime}
figures = {name: round(value, 2) for name, value in seconds.items()}
print(json.dumps({**figures, "memory_mb": round(used.ru_maxrss / 1024)}))
sys.exit(code)
"""
MARKERS = "osD^vP"  # lines differ without colour, too
MOST_TOUCHED = 10_000  # runs; to make Snakemake's records of more takes longer than all the rest
WHAT = {
    "dry run": "snakemake -n of the whole study, nothing done",
    "half done": "the same with the results of every other run, and Snakemake's records of them",
    "finished": "the same with all results",
    "one job": "what every cluster job does first: read the Snakefile and find one target",
    "collect": "clipnoise collect over the finished runs",
    "status": "clipnoise status of the finished runs",
}


def main() -> int:
    """Measure every size and write the results."""
    arguments = parse()
    arguments.output.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, object]] = []
    for runs in arguments.runs:
        with tempfile.TemporaryDirectory(prefix="clipnoise-scale-") as folder:
            print(f"{runs} runs", file=sys.stderr, flush=True)
            rows += measure(Path(folder), runs)
        table = pd.DataFrame(rows)
        table.to_csv(arguments.output / "scale.csv", index=False)
        write_page(table, arguments.output)
    print(arguments.output / "scale.md")
    return 0


def parse() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--runs", type=int, nargs="+", default=[1000, 10_000, 50_000])
    return parser.parse_args()


def measure(folder: Path, runs: int) -> list[dict[str, object]]:
    """Time one size.

    Args:
        folder: an empty folder.
        runs: a multiple of 50.

    Returns:
        One row per command: runs, what, seconds, cpu_seconds, memory_mb.
    """
    study = write_study(folder, runs)
    planned = Plan.from_values({"studies": [str(study)]}, ROOT / "workflow" / "studies")
    first = planned.study(planned.configured[0]).runs[0].spec
    inputs = [file for files in planned.inputs(first.hash).values() for file in files]
    for name in inputs:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    snakemake = ["snakemake", "--snakefile", str(ROOT / "Snakefile"), "--directory", str(folder)]
    snakemake += ["--cores", "1", "--quiet", "all"]
    results = planned.results(planned.configured[0])
    rows: list[dict[str, object]] = []

    def note(what: str, *words: str) -> None:
        rows.append({"runs": runs, "what": what, **timed([*words], folder)})

    note("dry run", *snakemake, "-n")
    note("one job", *snakemake, "-n", results[0], "--allowed-rules", "train")
    write_results(folder, planned)
    out = str(folder / "collected")
    note("collect", "clipnoise", "collect", str(study), "--results", "results", "--out", out)
    note("status", "clipnoise", "status")
    if runs <= MOST_TOUCHED:
        timed([*snakemake, "--touch", "--until", "train"], folder)  # makes the records
        note("finished", *snakemake, "-n")
        for result in results[::2]:
            (folder / result).unlink()
        note("half done", *snakemake, "-n")
    return rows


def write_study(folder: Path, runs: int) -> Path:
    """Write config.yaml and a study with so many runs."""
    rates = [round(0.001 * (1 + number), 6) for number in range(runs // SEEDS)]
    panel = {
        "datasets": ["digits"],
        "models": ["logistic"],
        "epsilons": [1],
        "seeds": list(range(1, SEEDS + 1)),
        "methods": [
            {"id": "dp-sgd", "label": f"rate {rate}", "learning_rate": rate, "clip_norm": 1}
            for rate in rates
        ],
        "training": {"expected_batch_size": 100, "steps": 100},
    }
    report = [{"kind": "table", "panels": "panel"}]
    values = {"title": "Scale", "panels": {"panel": panel}, "report": report}
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(values))
    (folder / "config.yaml").write_text(yaml.safe_dump({"studies": [str(path)]}))
    return path


def write_results(folder: Path, planned: Plan) -> None:
    """Give every run the files of a finished run, with made-up numbers."""
    os.fsync = lambda _: None  # durability costs time and does not matter here
    specs = {run.spec.hash: run.spec for run in planned.study(planned.configured[0]).runs}
    target = next(iter(specs.values())).budget
    assert target is not None
    calibration, provenance = calibrate(target), Provenance("cpu")
    for spec in specs.values():
        outcome = Outcome(
            provenance={"private": "digits"},
            status="completed",
            steps_done=spec.steps,
            metrics=[
                Metrics(step, calibration.spent[step], *[0.5] * 9)
                for step in spec.evaluation_steps()
            ],
            engine="factored: every layer allows it",
            parameters=650,
            physical_batch_size=256,
        )
        write_run(run_folder(folder / "results", spec), spec, outcome, calibration, provenance)


def timed(words: list[str], folder: Path) -> Mapping[str, float]:
    """Run a command and return its time and peak memory, including those of its children."""
    with (folder / "output.txt").open("w") as output:
        launch = [sys.executable, "-S", "-c", LAUNCH, *words]
        done = subprocess.run(launch, cwd=folder, stdout=subprocess.PIPE, stderr=output, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}\n{(folder / 'output.txt').read_text()[-2000:]}")
    used: dict[str, float] = json.loads(done.stdout)
    return used


def write_page(table: pd.DataFrame, folder: Path) -> None:
    """Write scale.svg and scale.md beside the CSV file."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for column, unit, panel in zip(
        ("cpu_seconds", "memory_mb"), ("CPU seconds", "MB"), axes, strict=True
    ):
        for what, marker in zip(WHAT, MARKERS, strict=True):
            rows = table[table["what"] == what]
            panel.plot(rows["runs"], rows[column], marker=marker, label=what)
        panel.set(xscale="log", yscale="log", xlabel="runs", ylabel=unit)
    axes[0].legend(frameon=False, fontsize="small")
    figure.savefig(folder / "scale.svg")
    plt.close(figure)
    made_on, load = hardware("cpu"), ", ".join(f"{value:.1f}" for value in os.getloadavg())
    lines = ["# Growth with the number of runs", ""]
    lines += [
        f"`make scale` makes this page. {datetime.now(tz=UTC):%Y-%m-%d}, {made_on['cpu']}, "
        f"{made_on['cores']} cores; load averages at the end: {load}.",
        "",
    ]
    lines += ["![Time and memory against runs](scale.svg)", ""]
    lines += [f"- {what}: {meaning}" for what, meaning in WHAT.items()]
    lines += ["", "| runs | what | seconds | CPU seconds | MB |", "|---:|---|---:|---:|---:|"]
    for row in table.itertuples():
        times = f"{row.seconds:.2f} | {row.cpu_seconds:.2f}"
        lines.append(f"| {row.runs:,} | {row.what} | {times} | {row.memory_mb:,} |")
    (folder / "scale.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    sys.exit(main())
