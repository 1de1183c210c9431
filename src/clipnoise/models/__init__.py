"""Models, one file per family. Being here is being registered.

Belongs here: architectures and their per-example losses. Does not: data, optimizers, training.
"""
