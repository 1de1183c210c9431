"""What kinds of figures draw with: the same looks for all, axes, legends and rows; SVG.

Belongs here: drawing that several kinds share. Does not: a kind, statistics, reading files.
"""
