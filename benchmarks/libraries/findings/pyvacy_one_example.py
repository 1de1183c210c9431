"""PyVacy 0.0.32: how far one example of a batch moves a release, relative to the noise.

    python benchmarks/libraries/findings/pyvacy_one_example.py

DPSGD clips the gradient of the batch, so that the gradient of one example is not bounded by C / B.
Two steps with the same noise are compared, on batches of 64 that differ in one example. Prints the
noise multiplier that this difference leaves, beside the one that DPSGD was given.
"""

from __future__ import annotations

import torch
from pyvacy import optim

SIZE, CLIP, SIGMA, NUMBERS = 64, 1.0, 1.0, 1000


def release(inputs: torch.Tensor) -> torch.Tensor:
    """Return the gradient that one step of DPSGD releases, for a linear loss."""
    weight = torch.zeros(NUMBERS, requires_grad=True)
    optimizer = optim.DPSGD(
        params=[weight], l2_norm_clip=CLIP, noise_multiplier=SIGMA, batch_size=len(inputs), lr=0.1
    )
    (inputs @ weight).mean().backward()
    torch.manual_seed(0)  # the same noise in every call
    optimizer.step()
    assert weight.grad is not None
    return weight.grad


batch = torch.zeros(SIZE, NUMBERS)
without = release(batch)
batch[0, 0] = 1000.0  # the gradient of this example, far above the clip norm
moved = float((release(batch) - without).norm())
deviation = float(without.std())
print(f"one example of {SIZE} moves the release by {moved:.3g}")
print(f"the noise has a standard deviation of {deviation:.3g}")
print(f"noise multiplier: {deviation / moved:.3g}; given: {SIGMA:g}")
