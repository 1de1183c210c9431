"""Every numbered table and figure of the four papers, read off the captions in their texts."""

from __future__ import annotations

# Numbers of tables, then of figures. DP-AdamBC: the long version; the conference version has the
# first two tables and five figures.
TABLES_AND_FIGURES = {
    "adadps": ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [1, 2, 3, 4, 5, 6]),
    "design-principles": ([], [1, 2, 3, 4, 5, 6]),
    "dp-adambc": ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    "dp-pmlf": ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7]),
}
NUMBERED = {
    paper: [*(f"table{n}" for n in tables), *(f"fig{n}" for n in figures)]
    for paper, (tables, figures) in TABLES_AND_FIGURES.items()
}
COUNTS = {"adadps": 16, "design-principles": 6, "dp-adambc": 15, "dp-pmlf": 12}
WITHOUT_RESULTS = {("design-principles", "fig1"): "pseudo-code", ("dp-pmlf", "table5"): "notation"}
