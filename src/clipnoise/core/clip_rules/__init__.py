"""Clip rules: what each vector is multiplied by.

To add one, write its class in a file of this folder: a subclass of `ClipRule` with an `id`.
"""

from clipnoise.core.clip_rules.base import SHORTEST, ClipNorm, ClipRule
from clipnoise.core.clip_rules.hard import EACH_LAYER, HARD, HardClip
from clipnoise.core.clip_rules.own import OwnClipRule

__all__ = ["EACH_LAYER", "HARD", "SHORTEST", "ClipNorm", "ClipRule", "HardClip", "OwnClipRule"]
