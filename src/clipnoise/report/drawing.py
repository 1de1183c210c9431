"""The figures of a report as files."""

from __future__ import annotations

from clipnoise.report.figures import canvas
from clipnoise.report.items import FigureItem, ItemData


def draw_figure(data: ItemData) -> bytes:
    """Draw a figure of a study.

    Args:
        data: of an item that is a figure.

    Returns:
        SVG; the same bytes for the same tables. Without a completed run it says so.
    """
    assert isinstance(data.item, FigureItem)
    with canvas.look():
        if canvas.completed(data.runs, data.metric).empty:
            panel = data.placed.panel
            figure = canvas.blank(f"{panel}: no completed run (0/{len(data.runs)})")
        else:
            figure = data.item.draw(data)
        return canvas.to_svg(figure, data.watermark)
