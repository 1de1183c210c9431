"""Opacus: the training loop of its README, in the modes that it offers.

    VARIANT=ghost clipnoise judge --loop benchmarks/libraries/with_opacus.py

The claim is what Opacus reports: σ, C and the sampling rate as they are given to PrivacyEngine, and
the ε of its default accountant.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant
from opacus.utils.batch_memory_manager import BatchMemoryManager
from task import BATCH, CLIP, DELTA, EPOCHS, EXAMPLES, SIGMA, digits, network, variant
from torch import nn
from torch.utils.data import DataLoader, Subset

from clipnoise.audit import Claim

# What is given to make_private beside σ and C, by variant.
OPTIONS: dict[str, dict[str, Any]] = {
    "hooks": {},
    "ghost": {"grad_sample_mode": "ghost"},
    "functorch": {"grad_sample_mode": "functorch"},
    "ew": {"grad_sample_mode": "ew"},
    "unwrapped": {"wrap_model": False},
    "loss-sum": {"loss_reduction": "sum"},
    "virtual-steps": {},
    "ghost-virtual-steps": {"grad_sample_mode": "ghost"},
    "bfloat16": {},
    "bfloat16-ghost": {"grad_sample_mode": "ghost"},
    "small-batches": {},
    "per-layer": {"clipping": "per_layer", "max_grad_norm": [CLIP / 2] * 4},
    "adaptive": {
        "clipping": "adaptive",
        "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": 0.2,
        "max_clipbound": 10.0,
        "min_clipbound": 0.01,
        "unclipped_num_std": 3.0,
    },
    "not-poisson": {"poisson_sampling": False},
}
VARIANT = variant(tuple(OPTIONS))
MODE = OPTIONS[VARIANT].get("grad_sample_mode", "hooks")
N, SIZE = (128, 2) if VARIANT == "small-batches" else (EXAMPLES, BATCH)
STEPS = EPOCHS * N // SIZE


def reported() -> float:
    """Return the ε that Opacus reports after the last step."""
    accountant = PRVAccountant()
    accountant.history = [(SIGMA, SIZE / N, STEPS)]
    return float(accountant.get_epsilon(delta=DELTA))


data = Subset(digits(), range(N))
claim = Claim(
    epsilon=reported(),
    delta=DELTA,
    noise_multiplier=SIGMA,
    clip_norm=CLIP,
    expected_batch_size=SIZE,
    steps=STEPS,
)


def train(data: Any, record: Callable[[Any], Any]) -> nn.Module:
    """Train as the README of Opacus does."""
    warnings.simplefilter("ignore")
    model = network()
    criterion: Any = nn.CrossEntropyLoss(reduction=OPTIONS[VARIANT].get("loss_reduction", "mean"))
    given = {
        "module": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "data_loader": DataLoader(data, batch_size=SIZE, shuffle=VARIANT == "not-poisson"),
        "noise_multiplier": SIGMA,
        "max_grad_norm": CLIP,
        **OPTIONS[VARIANT],
    }
    if MODE == "ghost":
        wrapped, optimizer, criterion, loader = PrivacyEngine().make_private(
            criterion=criterion, **given
        )
    else:
        wrapped, optimizer, loader = PrivacyEngine().make_private(**given)
    trained = model if VARIANT == "unwrapped" else wrapped
    # In full precision autocast does nothing.
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled="bfloat16" in VARIANT)
    for _ in range(EPOCHS):
        with batches(loader, optimizer) as parts:
            for inputs, targets in parts:
                optimizer.zero_grad()
                with autocast:
                    loss = criterion(trained(inputs), targets)
                loss.backward()
                scale = CLIP / float(optimizer.max_grad_norm)
                optimizer.step()
                if not optimizer._is_last_step_skipped:
                    # Adaptive clip norms are public; releases of one scale have noise of one scale.
                    record([scale * one.grad for one in model.parameters()])
    return model


@contextmanager
def batches(loader: DataLoader[Any], optimizer: Any) -> Iterator[Any]:
    """Hand out batches as they are drawn, or, of virtual steps, parts of up to 24 examples."""
    if "virtual-steps" not in VARIANT:
        yield loader
        return
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=24, optimizer=optimizer
    ) as parts:
        yield parts
