"""Per-example gradients: engines that turn a batch into a clipped sum, and the choice between them.

Belongs here: norms, clipping, sums. Does not: noise, sensitivity, optimizers.
"""
