"""Tables: results, costs and diagnostics, as plain data and as CSV, Markdown and LaTeX.

Belongs here: rows, columns, bold and footnotes. Does not: statistics, drawing, typesetting.
"""
