"""PyVacy: the training loop of its README.

    clipnoise judge --loop benchmarks/libraries/with_pyvacy.py

The claim is what DPSGD and moments_accountant are given, and the ε that moments_accountant returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyvacy import analysis, optim
from task import BATCH, CLIP, DELTA, EPOCHS, EXAMPLES, SIGMA, STEPS, digits, network
from torch import nn
from torch.utils.data import DataLoader

from clipnoise.audit import Claim

data = digits()
claim = Claim(
    epsilon=analysis.moments_accountant(
        N=EXAMPLES, batch_size=BATCH, noise_multiplier=SIGMA, epochs=EPOCHS, delta=DELTA
    ),
    delta=DELTA,
    noise_multiplier=SIGMA,
    clip_norm=CLIP,
    expected_batch_size=BATCH,
    steps=STEPS,
)


def train(data: Any, record: Callable[[Any], Any]) -> nn.Module:
    """Train as the README of PyVacy does."""
    model = network()
    optimizer = optim.DPSGD(
        params=model.parameters(),
        l2_norm_clip=CLIP,
        noise_multiplier=SIGMA,
        batch_size=BATCH,
        lr=0.1,
    )
    criterion = nn.CrossEntropyLoss()
    for _ in range(EPOCHS):
        for inputs, targets in DataLoader(data, batch_size=BATCH, shuffle=True):
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
            record([one.grad for one in model.parameters()])
    return model
