"""What every loop of this folder trains: 512 handwritten digits, and a network of two layers."""

from __future__ import annotations

import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

EXAMPLES, FEATURES, CLASSES = 512, 64, 10
SIGMA, CLIP, BATCH, EPOCHS, DELTA = 1.0, 1.0, 64, 3, 1e-5
STEPS = EPOCHS * EXAMPLES // BATCH


def digits() -> TensorDataset:
    """Return 512 handwritten digits: inputs of 64 numbers in [0, 1], targets from 0 to 9."""
    found = load_digits()
    inputs = torch.tensor(found.data[:EXAMPLES], dtype=torch.float32) / 16
    return TensorDataset(inputs, torch.tensor(found.target[:EXAMPLES]))


def network() -> nn.Module:
    """Return a network of two layers and 1,210 parameters."""
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def variant(known: tuple[str, ...]) -> str:
    """Return what the environment variable VARIANT names, and the first one without it.

    Raises:
        ValueError: it is unknown.
    """
    name = os.environ.get("VARIANT", known[0])
    if name not in known:
        raise ValueError(f"VARIANT: {name!r}: one of {', '.join(known)}")
    return name
