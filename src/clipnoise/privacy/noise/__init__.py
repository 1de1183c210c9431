"""Kinds of noise: independent, or correlated across the steps of a run.

To add one, write its class in a file of this folder: a subclass of `NoiseCorrelation` with an `id`.
"""

from clipnoise.privacy.noise.base import NoiseCorrelation
from clipnoise.privacy.noise.independent import IndependentNoise
from clipnoise.privacy.noise.own import OwnNoise
from clipnoise.privacy.noise.source import NoiseSource

__all__ = ["IndependentNoise", "NoiseCorrelation", "NoiseSource", "OwnNoise"]
