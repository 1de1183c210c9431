"""What kinds of figures draw with: the same looks for all, axes, legends and rows; SVG.

Belongs here: drawing that several kinds share. Does not: a kind, statistics, reading files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clipnoise.report import modules_when_used

if not TYPE_CHECKING:
    __getattr__ = modules_when_used(__name__, __path__)
