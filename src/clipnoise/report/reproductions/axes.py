"""Logarithmic axes with plain numbers: labels in this suite are never math markup."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter


def logarithmic(ax: Axes, *names: str) -> None:
    """Make axes logarithmic.

    Args:
        ax: the axes.
        names: "x", "y" or both.
    """
    for name in names:
        ax.set(**{f"{name}scale": "log"})
        axis = ax.xaxis if name == "x" else ax.yaxis
        axis.set_major_locator(LogLocator(numticks=6))
        axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
        axis.set_minor_formatter(NullFormatter())


def plain(value: float) -> str:
    """Return a tick label in signs that the figures' font has: 0.01, 1000, 1e−5."""
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−")
