"""The factored engine: clipped sums from each layer's inputs and output gradients.

Belongs here: recording factors, norms and weighted sums from factors, one file per layer family.
Does not: other ways to compute per-example gradients, the choice between engines.
"""
