"""Per-example gradients: engines that turn a batch into a clipped sum, and the choice of one.

Belongs here: norms, clipping, sums. Does not: noise, sensitivity, optimizers.
"""
