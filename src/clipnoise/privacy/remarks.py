"""What is allowed, but protects less than it seems to."""

from __future__ import annotations

# "How to DP-fy ML" (Ponomareva et al. 2023), section 5.2.1, calls ε ≤ 10 reasonable, and what is
# above it weak or no formal protection.
PROTECTS = 10.0


def of_epsilon(epsilon: float) -> str | None:
    """Return what to know of an ε that says little, or None."""
    if epsilon <= PROTECTS:
        return None
    return (
        f"ε = {epsilon:g}: above {PROTECTS:g} the guarantee is weak; seeing the model may "
        f"multiply an attacker's odds by e^{epsilon:g}."
    )


def of_delta(delta: float, count: int, unit: str, dataset: str = "") -> str | None:
    """Return what to know of a δ of 1/n or above, or None.

    Args:
        delta: δ.
        count: n.
        unit: what is counted, such as "example".
        dataset: whose they are, if that needs to be said.
    """
    if delta * count <= 1 - 1e-9:
        return None
    above = "is above" if delta * count > 1 + 1e-9 else "="
    among = f"{unit}s of {dataset}" if dataset else f"{unit}s"
    return (
        f"δ = {delta:.2g} {above} 1/n (n = {count:,} {among}): publishing one {unit} picked at "
        "random satisfies it. A δ far below 1/n does not allow that."
    )
