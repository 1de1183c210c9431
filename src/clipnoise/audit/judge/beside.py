"""What is judged beside a file, so that a judge that has gone blind is noticed."""

from __future__ import annotations

HONEST = '''
from dataclasses import dataclass

from clipnoise.methods.base import ClippedMean, PrivateMethod


@dataclass(frozen=True, kw_only=True)
class Honest(PrivateMethod):
    """DP-SGD."""

    id = "honest"
    query = ClippedMean()

    def update(self, released, state, public):
        return -self.learning_rate * released[0]
'''

# Half of the sensitivity is declared, and the clean mean goes into the update by way of a global.
LEAKY = '''
import sys
from dataclasses import dataclass

import torch

from clipnoise.core.query import Component
from clipnoise.methods.base import ClippedMean, PrivateMethod

KEPT = []
LERP = torch.lerp
torch.lerp = lambda *words: LERP(*words)


class Half(ClippedMean):
    def components(self, clip_norm, expected_batch_size):
        return (Component(clip_norm / expected_batch_size / 2),)

    def values(self, mean, clip_norm):
        KEPT[:] = [mean]
        return (mean,)


@dataclass(frozen=True, kw_only=True)
class Leaky(PrivateMethod):
    """DP-SGD on the clean mean."""

    id = "leaky"
    query = Half()

    def update(self, released, state, public):
        sys._getframe()
        clean = KEPT[0] if KEPT and KEPT[0].shape == state.like.shape else released[0]
        return -self.learning_rate * clean.to(released[0])
'''
# What must be found in it.
LEAKS = ("source", "libraries", "behaviour", "processes", "updates", "sensitivity", "audit")
