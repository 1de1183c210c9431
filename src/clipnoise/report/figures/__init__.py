"""Figures: one module per kind, all drawn with the same looks, all written as SVG.

Belongs here: drawing. Does not: statistics, reading files, typesetting.
"""
