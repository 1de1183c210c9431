"""Write the benchmark's page from its CSV files: figures, tables of ratios, and the goals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from ways import DROPOUT, MECHANISMS, NOISE, STEPS, WHOLE_STEP, WITH_DROPOUT, WITHOUT_NORMS

matplotlib.use("Agg")
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    import pandas as pd

METHODS = """\
Each number is the median time of one call that forms the step's sum of gradients, relative to
`loss.backward()` on the same batch: forward and backward pass, clipping and summing, but no noise
and no update. A whole step adds both: dp-sgd relative to SGD with a fused optimizer. All ways take
turns within one process, and a call of less than 50 ms is timed as the mean of several in a row.
Memory is the peak of one call above what was allocated before it. “—” marks a way that does not
support the network; speed.csv gives the reason, and the difference of each clipped sum from that of
vmap. Two iterates take two forward and two backward passes. “Without norms” is the time of the same
passes and of the weighted sum, where every weight is 1: what is above it is the cost of the norms.
(Where a layer's gradients are kept while its norms are computed, their sum costs less than
without.) Bold marks a missed goal.
"""

MECHANISM_NOTE = f"""\
Of the factored engine, on three networks. A clipped sum, or the sum of clipped losses, is relative
to the plain sum; a whole step with correlated noise ({STEPS} steps) is relative to one with
independent noise. Gradients at a released point cost what they do at the iterate, and K views of an
example what micro-batches of K examples do.
"""

# Of every network, and of the two that are so small that the Python around a step counts.
GOALS = {"plain": 1.25, "scaled": 1.6, "two iterates": 2.4}
STEP_GOALS = {"logistic, digits": 2.0, "cnn-small, digits": 1.6}
MEMORY_GOAL = 1.3
DROPOUT_GOAL = 1.15
HATCHES = ("", "//", "..", "\\\\", "xx", "--")  # one for each way


def write_page(table: pd.DataFrame, curves: pd.DataFrame, folder: Path, machine: str) -> None:
    """Write speed.svg, curves.svg and speed.md beside the CSV files.

    Args:
        table: the rows of speed.csv.
        curves: the rows of curves.csv.
        folder: where to write.
        machine: description of the machine and of the settings.
    """
    parts = ["# Time and memory of clipped sums", "", machine, "", METHODS]
    if len(table):
        ways = table[table["engine"] != WITHOUT_NORMS]
        rest = ways[~ways["query"].isin([*MECHANISMS, *NOISE])]
        draw(ways, folder / "speed.svg")
        parts += ["![Time relative to the non-private gradient](speed.svg)", ""]
        parts += ["## Goals and results", "", goals(table), ""]
        parts += ["## Cost of dropout", "", dropout(table), ""]
        parts += ["## Cost of each mechanism", "", MECHANISM_NOTE, mechanisms(table), ""]
        for column, title in (("time_ratio", "Time"), ("memory_ratio", "Peak memory")):
            parts += [f"## {title}, relative to non-private", "", as_markdown(rest, column), ""]
    if len(curves):
        draw_curves(curves, folder / "curves.svg")
        parts += ["## Cost against size", "", "![Milliseconds against size](curves.svg)", ""]
    (folder / "speed.md").write_text("\n".join(parts))


def goals(table: pd.DataFrame) -> str:
    """Return a table of the ratios of the factored engine beside its goals."""
    heads = ["network", "query", "goal", "result", "without norms", "fastest mode of Opacus"]
    lines = [f"| {' | '.join(heads)} | memory (goal 1.3) |", "|---|---|---:|---:|---:|---:|---:|"]
    table = table[~table["query"].isin([*MECHANISMS, *NOISE])]
    for network, rows in table.groupby("network", sort=False):
        ours = rows[rows["engine"] == "factored"].set_index("query").dropna(subset="seconds")
        bare = rows[rows["engine"] == WITHOUT_NORMS].set_index("query")["time_ratio"]
        opacus = rows[rows["engine"].str.startswith("Opacus")].groupby("query")["time_ratio"].min()
        for query, row in ours.iterrows():
            whole_step = STEP_GOALS.get(str(network))
            goal = whole_step if query == WHOLE_STEP else GOALS.get(str(query))
            result = _ratio(row["time_ratio"], goal)
            least, fastest = (
                _ratio(of[query], None) if query in of else "" for of in (bare, opacus)
            )
            memory = _ratio(row["memory_ratio"], MEMORY_GOAL)
            goal_text = "" if goal is None else f"{goal:g}"
            cells = (network, query, goal_text, result, least, fastest, memory)
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def dropout(table: pd.DataFrame) -> str:
    """Return a table of the time of a step with dropout, relative to the step without."""
    lines = [f"| network | with dropout {DROPOUT:g} (goal {DROPOUT_GOAL}) |", "|---|---:|"]
    ours = table[table["engine"] == "factored"]
    for network, rows in ours.groupby("network", sort=False):
        seconds = rows.set_index("query")["seconds"]
        if seconds.get(WITH_DROPOUT, math.nan) > 0:
            ratio = seconds[WITH_DROPOUT] / seconds[WHOLE_STEP]
            lines.append(f"| {network} | {_ratio(ratio, DROPOUT_GOAL)} |")
    return "\n".join(lines)


def mechanisms(table: pd.DataFrame) -> str:
    """Return a table of the factored engine's time, relative to hard clipping or plain noise."""
    short = {query: query.removeprefix(f"{WHOLE_STEP}, ") for query in (*MECHANISMS, *NOISE)}
    lines = [f"| network | {' | '.join(short.values())} |", f"|---|{'---:|' * len(short)}"]
    networks = table.loc[table["query"].isin(short), "network"]
    ours = table[(table["engine"] == "factored") & table["network"].isin(networks)]
    for network, rows in ours.groupby("network", sort=False):
        seconds = rows.set_index("query")["seconds"]
        base = {query: "plain" if query in MECHANISMS else WHOLE_STEP for query in short}
        cells = [_ratio(seconds[query] / seconds[base[query]], None) for query in short]
        lines.append(f"| {network} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(value: float, goal: float | None) -> str:
    """Return a ratio as text: bold where it misses its goal, a dash if it was not measured."""
    if value != value:
        return "—"
    missed = goal is not None and round(value, 2) > goal
    return f"**{value:.2f}**" if missed else f"{value:.2f}"


def as_markdown(table: pd.DataFrame, column: str) -> str:
    """Return a table of one column, with a row per network and a column per way."""
    private = table[table["engine"] != "non-private"]
    ways = list(dict.fromkeys(zip(private["engine"], private["query"], strict=True)))
    names = [engine if query == "plain" else f"{engine}, {query}" for engine, query in ways]
    lines = [f"| network | {' | '.join(names)} |", f"|---|{'---:|' * len(ways)}"]
    for network, rows in table.groupby("network", sort=False):
        values = rows.set_index(["engine", "query"])[column]
        cells = [f"{values[way]:.2f}" if values[way] == values[way] else "—" for way in ways]
        lines.append(f"| {network} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw the time ratios of plain clipping, a group of bars for each network."""
    plain = table[(table["query"] == "plain") & (table["engine"] != "non-private")]
    wide = plain.pivot_table(
        index="network", columns="engine", values="time_ratio", sort=False, dropna=False
    )
    figure, axes = plt.subplots(figsize=(9, 0.75 * len(wide) + 1.2), layout="constrained")
    wide.iloc[::-1].plot.barh(ax=axes, width=0.8, logx=True, legend=False)
    for bars, hatch in zip(axes.containers, HATCHES, strict=False):  # told apart in grey
        plt.setp(bars, hatch=hatch, edgecolor="white")
    axes.axvline(1, color="black", linewidth=0.8)
    ticks = [1, 2, 3, 5, 10, 20, 30, 50]
    axes.set_xticks([tick for tick in ticks if tick <= 1.2 * wide.max(axis=None)])
    axes.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes.set_xlabel("time relative to the non-private gradient (log scale)")
    axes.set_ylabel("")
    figure.legend(frameon=False, loc="outside upper right", ncols=len(axes.containers))
    figure.savefig(path)
    plt.close(figure)


def draw_curves(curves: pd.DataFrame, path: Path) -> None:
    """Draw the time of one call against size, one panel per series."""
    panels = list(curves.groupby("network", sort=False))
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.6 * len(panels), 3.2), layout="constrained", squeeze=False
    )
    markers = dict(zip(curves["engine"].unique(), "osD^vx", strict=False))
    for ax, (network, rows) in zip(axes[0], panels, strict=True):
        for engine, marker in markers.items():
            line = rows[rows["engine"] == engine].dropna(subset="seconds")
            ax.plot(line["size"], 1000 * line["seconds"], marker=marker, label=engine)
        ax.set(xscale="log", yscale="log", title=network, xlabel=rows["over"].iloc[0])
        ax.set_xticks(sorted(rows["size"].unique()), minor=False)
        ax.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:g}"))
        ax.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes[0, 0].set_ylabel("time of one call (ms)")
    axes[0, 0].legend(frameon=False, fontsize="small")
    figure.savefig(path)
    plt.close(figure)
