"""The report of an experiment: from the CSV files of a run to a PDF."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipnoise.errors import unknown
from clipnoise.papers.base import Experiment, Results
from clipnoise.report.figures.styles import Style
from clipnoise.report.formats import significant
from clipnoise.studies.fidelity import open_settings
from clipnoise.studies.status import span
from clipnoise.studies.study import PUBLISHED

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clipnoise.report.claims import ClaimRow

SMALLER = (
    "This run is smaller than what is described below: the first settings at the end replace those "
    "of the experiment. Its numbers say nothing about the paper."
)


def build(
    experiment: type[Experiment], results: Results, template: Path, published: Path = PUBLISHED
) -> bytes:
    """Return the PDF of an experiment: the same bytes for the same input.

    The template is a Typst file; `published` is the folder with what each paper leaves open.

    Raises:
        UserError: a table or the template is missing.
    """
    from clipnoise.report.figures import canvas
    from clipnoise.report.pdf import typeset

    settings = results.folder / "settings.yaml"
    with tempfile.TemporaryDirectory() as name, canvas.look():
        images: dict[str, Path] = {}
        figures: list[dict[str, str]] = []
        for number, (title, caption, figure) in enumerate(experiment.figures(results)):
            image = f"{number}.svg"
            images[image] = Path(name) / image
            images[image].write_bytes(canvas.to_svg(figure))
            figures.append({"title": title, "caption": caption, "image": image})
        content = {
            "title": experiment.title,
            "name": experiment.id,
            "source": experiment.source,
            "setup": [*([SMALLER] if results.watermark else []), *experiment.setup],
            "figures": figures,
            "remarks": experiment.remarks(results),
            "claims": _claims(experiment, results),
            "claim-note": "",
            "comparison": _comparison(results.table("comparison")),
            "watermark": results.watermark,
            "provenance": _provenance(results.provenance),
            "settings": settings.read_text(encoding="utf-8") if settings.is_file() else "",
            "open-settings": open_settings(experiment.id, published),
        }
        return typeset(content, template, images)


def _claims(experiment: type[Experiment], results: Results) -> list[ClaimRow]:
    from clipnoise.report.claims import claim_row, quantity_found

    rows = []
    known = results.comparison.index
    for claim in experiment.claims:
        for name in filter(None, (claim.quantity, claim.minus)):
            if name not in known:
                raise unknown("quantity", name, known, file=experiment.id, key="claims")
        value = results.measured(claim.quantity)
        value -= results.measured(claim.minus) if claim.minus else 0.0
        sides = f"{claim.quantity} − {claim.minus}" if claim.minus else claim.quantity
        found, words = [quantity_found(sides, value)], (claim.text, claim.source)
        rows.append(claim_row(words, claim.bounds, found, results.watermark))
    return rows


def _comparison(table: pd.DataFrame) -> list[dict[str, str]]:
    return [
        {
            "quantity": str(row["quantity"]),
            **{name: significant(float(row[name])) for name in ("published", "measured")},
            "difference": _signed(float(row["difference"]), float(row["published"])),
        }
        for _, row in table.iterrows()
    ]


def _signed(difference: float, published: float) -> str:
    """Return a difference with its sign; a rounding error in the last bits counts as 0."""
    if abs(difference) <= 1e-12 * abs(published):
        return "0"
    return f"+{significant(difference, 2)}" if difference > 0 else significant(difference, 2)


def _provenance(run: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of the provenance table, as name and value."""
    if not run:
        return []
    return [
        ["Commit", run["git_commit"] or "unknown"],
        ["Versions", ", ".join(f"{name} {number}" for name, number in run["versions"].items())],
        ["CPU", f"{run['hardware']['cpu']}, {run['threads']} thread"],
        ["Started", run["started"]],
        ["Wall time", span(float(run["seconds"]))],
    ]


# What the figures of experiments share


def panels(
    table: pd.DataFrame, by: str | list[str], *, height: float, **options: Any
) -> tuple[Figure, list[tuple[Axes, Any, pd.DataFrame]]]:
    """Return a figure with axes side by side, one for each group of rows.

    Args:
        table: what the figure shows.
        by: the columns that tell the groups apart.
        height: of the axes, in inches.
        options: for `Figure.subplots`.

    Returns:
        The figure, and for each group its axes, its values of `by` and its rows, in table order.
    """
    from clipnoise.report.figures import canvas

    groups = list(table.groupby(by, sort=False))
    figure, axes = canvas.sheet(1, len(groups), height=height, **options)
    return figure, [(ax, key, rows) for ax, (key, rows) in zip(axes.flat, groups, strict=True)]


def draw_line(ax: Axes, x: Any, y: Any, look: Style, label: object, **options: Any) -> None:
    """Draw a line in the colour and dashes of a method; `options` are those of `Axes.plot`."""
    ax.plot(x, y, color=look.colour, linestyle=look.line, label=str(label), **options)


def logarithmic(ax: Axes, *names: str) -> None:
    """Make axes logarithmic ("x", "y" or both), with plain numbers as labels.

    Figures here have no math markup.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for name in names:
        ax.set(**{f"{name}scale": "log"})
        axis = ax.xaxis if name == "x" else ax.yaxis
        axis.set_major_locator(LogLocator(numticks=6))
        axis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
        axis.set_minor_formatter(NullFormatter())


def _plain(value: float) -> str:
    """Return a tick label in characters that the font of the figures has: 0.01, 1000, 1e−5."""
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−")


def legend_below(ax: Axes, distance: float, *, centre: float = 0.5, **options: Any) -> None:
    """Put a legend below axes; `distance` and `centre` are fractions of their height and width."""
    ax.legend(loc="upper center", bbox_to_anchor=(centre, -distance), **options)


def shared_legend(figure: Figure, ax: Axes, columns: int) -> None:
    """Put one legend for all axes, with the lines of these, below a figure."""
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=columns)
