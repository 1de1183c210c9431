"""The looks of figures: fonts; and for each method its colour, marker and line style.

Methods that papers compare with each other have distinct colours here. Marker and line style
distinguish them too, so that a figure can be printed in grey. A method that is not listed gets its
look from a digest of its id: adding a method changes the look of no other.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NotRequired, TypedDict

FONTS = ("STIXGeneral", "DejaVu Serif")  # the second has powers of ten

# Okabe and Ito, Color Universal Design, 2008, without yellow, and wine from Tol's muted scheme.
BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
VERMILION, PINK, WINE, BLACK, GREY = "#D55E00", "#CC79A7", "#882255", "#222222", "#777777"
COLOURS = (BLUE, SKY, GREEN, ORANGE, VERMILION, PINK, WINE, BLACK)

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
Dash = tuple[float, ...]
SOLID, DASHED, DOTTED, DASHDOT, LONG = (), (4.0, 1.5), (1.0, 1.2), (5.0, 1.3, 1.0, 1.3), (8.0, 2.0)
DASHES: tuple[Dash, ...] = (SOLID, DASHED, DOTTED, DASHDOT, LONG)

LOOKS: dict[str, tuple[str, str, Dash]] = {
    # plain baselines
    "dp-sgd": (SKY, "o", DASHED),
    "dp-sgdm": (BLACK, "o", LONG),
    "dp-adam": (BLUE, "s", DASHDOT),
    "dp-adambc": (VERMILION, "^", SOLID),
    "clipped-adam-biased": (PINK, "^", DASHED),
    "dp-adam-noiseless": (BLUE, "s", DOTTED),
    "dp-rmsprop": (BLACK, "s", DASHED),
    "dp-adagrad": (GREEN, "s", LONG),
    # with a clip norm from released numbers
    "dp-sgd-slaclip": (VERMILION, "P", (2.0, 1.0)),
    "dp-sgd-quantile": (GREEN, "P", DASHED),
    "dp-adam-quantile": (ORANGE, "P", SOLID),
    # other update rules
    "dp-adamw-bc": (VERMILION, "^", DOTTED),
    "dp-adamw": (BLUE, "^", LONG),
    "dp-lion": (GREEN, "X", DASHDOT),
    "dp-adafactor": (BLACK, "<", DOTTED),
    "dp-ademamix": (PINK, "X", LONG),
    "dp-lssgd": (GREEN, "o", SOLID),
    "dp-microadam": (BLUE, "<", SOLID),
    "dp-muon": (BLACK, "P", DASHDOT),
    "dp-radam": (WINE, "o", DASHDOT),
    "dp-schedule-free": (PINK, "s", SOLID),
    "dp-schedule-free-adamw": (ORANGE, "^", DASHDOT),
    "dp-signsgd": (WINE, ">", LONG),
    # with public data
    "dp-r-pub": (GREEN, "p", DASHED),
    "dp-adam-pub": (PINK, "p", DASHDOT),
    "pda-dpmd": (BLACK, "P", LONG),
    "dp-sgd-warm": (WINE, "o", DOTTED),
    # scale, then privatize
    "adaclip": (ORANGE, "D", DASHDOT),
    "dp-macadam": (ORANGE, ">", SOLID),
    "tp-topk": (SKY, "*", (2.0, 1.0)),
    "stp-adam": (GREEN, "D", LONG),
    "stp-noiseless": (GREEN, "D", DOTTED),
    "adadps-rmsprop": (ORANGE, "v", SOLID),
    "adadps-adam": (VERMILION, "v", DASHED),
    "adadps-adagrad": (BLUE, "v", DASHDOT),
    "adadps-side": (WINE, "v", LONG),
    "adadps-ideal": (BLACK, "v", DOTTED),
    "dp2-rmsprop": (ORANGE, "X", DASHED),
    "adas": (GREY, "v", (2.0, 1.0)),
    "adas-side": (GREY, "v", (1.0, 2.5)),
    # moment estimation
    "ime-adam": (PINK, "<", DASHDOT),
    "ime-adagrad": (PINK, "<", LONG),
    "jme-adam": (ORANGE, "<", DASHED),
    # momentum and filter
    "dp-pmlf": (WINE, "*", SOLID),
    "dp-pmlf-released": (WINE, "*", DOTTED),
    "dp-pmlf-wo-lf": (PINK, "*", DASHED),
    "dp-pmlf-wo-pm": (ORANGE, "h", DASHDOT),
    "lp-dpsgd": (ORANGE, "h", LONG),
    "lp-dpadam": (ORANGE, "*", LONG),
    "dp-pmlf-adam": (WINE, "*", DASHDOT),
    "innerouter": (GREEN, ">", DASHED),
    # at public points
    "disk": (BLUE, "D", SOLID),
    "disk-adam": (VERMILION, "D", DASHED),
    "fiber": (GREEN, ">", DASHDOT),
    "dp-sat": (WINE, "h", SOLID),
    "dp-sat-momentum": (WINE, "h", DOTTED),
    "dpzero": (BLACK, "X", SOLID),
    # federated
    "dp-fedavg": (BLUE, "p", SOLID),
    "dp-fedadam": (GREEN, "p", LONG),
    "adadps-fed": (VERMILION, "h", DASHED),
    "fedavg": (BLUE, "p", DOTTED),
    "fedadam": (GREEN, "p", (2.0, 1.0)),
    "adas-fed": (VERMILION, "h", (6.0, 1.0, 1.0, 1.0)),
    # from one release
    "dp-prototypes": (BLACK, "*", (6.0, 1.0, 1.0, 1.0)),
    "dp-least-squares": (BLUE, "s", (6.0, 1.0, 1.0, 1.0)),
    "dp-objective-perturbation": (VERMILION, "X", (6.0, 1.0, 1.0, 1.0)),
    # references
    "sgd": (GREY, ">", DOTTED),
    "adam": (GREY, "X", DOTTED),
    "rmsprop": (GREY, "P", DOTTED),
}

# How the further variants of one method in a figure differ from the first: towards white or black.
TINTS = (0.0, -0.4, 0.35, -0.65, 0.5, -0.2, 0.2)


class PlotOptions(TypedDict):
    """Options for `Axes.plot`."""

    color: str
    linestyle: str | tuple[float, Dash]
    marker: NotRequired[str]


@dataclass(frozen=True)
class Style:
    """How one method is drawn.

    Attributes:
        colour: `#RRGGBB`.
        marker: a matplotlib marker.
        dash: lengths of dashes and gaps in line widths; empty for a solid line.
    """

    colour: str
    marker: str
    dash: Dash

    @property
    def line(self) -> str | tuple[float, Dash]:
        """The line style as matplotlib takes it."""
        return (0.0, self.dash) if self.dash else "-"

    @property
    def options(self) -> PlotOptions:
        """Colour, line style and marker, as options for `Axes.plot`."""
        return {"color": self.colour, "linestyle": self.line, "marker": self.marker}


def style(method: str, variant: int = 0) -> Style:
    """Return the look of a method.

    Args:
        method: its id.
        variant: 0, or the number of a further variant of the same method in the same figure; it
            keeps the hue and changes lightness, marker and line style.
    """
    colour, marker, dash = LOOKS.get(method) or _derived(method)
    if not variant:
        return Style(colour, marker, dash)
    return Style(
        _tinted(colour, TINTS[variant % len(TINTS)]),
        MARKERS[(MARKERS.index(marker) + variant) % len(MARKERS)],
        DASHES[(DASHES.index(dash) + variant if dash in DASHES else variant) % len(DASHES)],
    )


def _derived(method: str) -> tuple[str, str, Dash]:
    number = int.from_bytes(hashlib.sha256(method.encode()).digest()[:8], "big")
    number, colour = divmod(number, len(COLOURS))
    number, marker = divmod(number, len(MARKERS))
    return COLOURS[colour], MARKERS[marker], DASHES[number % len(DASHES)]


def _tinted(colour: str, amount: float) -> str:
    """Mix a colour with white (amount > 0) or black (amount < 0)."""
    target = 255 if amount > 0 else 0
    channels = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    mixed = [round(value + (target - value) * abs(amount)) for value in channels]
    return "#" + "".join(f"{value:02X}" for value in mixed)
