"""The factored engine: clipped sums from what each layer took in and was told, layer by layer.

Belongs here: recording factors, norms and weighted sums from factors, one file per layer family.
Does not: other ways to per-example gradients, the choice between engines.
"""
