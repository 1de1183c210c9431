"""The accountant of batches of a fixed size, for replacing an example."""

from __future__ import annotations


def fixed_size_epsilon(
    *, noise_multiplier: float, examples: int, batch_size: int, steps: int, delta: float
) -> float:
    """Bound the ε of batches of a fixed size, for replacing an example.

    Args:
        noise_multiplier: σ, relative to the clip norm C; replacing moves the sum by 2C.
        examples: n.
        batch_size: B.
        steps: T.
        delta: δ.

    Returns:
        ε under replacement, by Rényi DP; not comparable with ε under add-remove adjacency.

    Source: Wang, Balle, Kasiviswanathan 2019, "Subsampled Rényi Differential Privacy and
    Analytical Moments Accountant" (as in dp-accounting).
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier / 2)
    sampled = dp_accounting.SampledWithoutReplacementDpEvent(examples, batch_size, gaussian)
    accountant.compose(sampled, steps)
    return float(accountant.get_epsilon(delta))
