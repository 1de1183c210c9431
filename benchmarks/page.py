"""The benchmark's page: a figure and a table of ratios, from the CSV file alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    import pandas as pd

METHODS = """\
Each number is the median time of one call that forms the step's sum of gradients, relative to the
non-private gradient of the same batch: forward and backward pass, clipping and summing; no noise,
no update. Ways take turns within one process. Memory is the most that one call holds beyond what
was held before it. “—” marks a way that does not take the network; its reason is in speed.csv, as
is how far each clipped sum is from that of vmap. Two iterates take two forward and two backward
passes.
"""


def write_page(table: pd.DataFrame, folder: Path, machine: str) -> None:
    """Write speed.svg and speed.md beside the CSV file.

    Args:
        table: the CSV file's rows.
        folder: where to write.
        machine: what it was measured on, in words.
    """
    draw(table, folder / "speed.svg")
    parts = ["# Time and memory of clipped sums", "", machine, "", METHODS]
    parts += ["![Time relative to the non-private gradient](speed.svg)", ""]
    for column, title in (("time_ratio", "Time"), ("memory_ratio", "Peak memory")):
        parts += [f"## {title}, relative to non-private", "", as_markdown(table, column), ""]
    (folder / "speed.md").write_text("\n".join(parts))


def as_markdown(table: pd.DataFrame, column: str) -> str:
    """Return one column as a table: networks down, ways across."""
    ways = list(dict.fromkeys(zip(table["engine"], table["query"], strict=True)))[1:]
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
    wide.iloc[::-1].plot.barh(ax=axes, width=0.8, logx=True)
    axes.axvline(1, color="black", linewidth=0.8)
    ticks = [1, 2, 3, 5, 10, 20, 30, 50]
    axes.set_xticks([tick for tick in ticks if tick <= 1.2 * wide.max(axis=None)])
    axes.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes.set_xlabel("time relative to the non-private gradient (log scale)")
    axes.set_ylabel("")
    axes.legend(frameon=False, title="")
    figure.savefig(path)
    plt.close(figure)
