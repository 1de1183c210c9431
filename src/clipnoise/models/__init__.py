"""Models, one file per family. Every class with an `id` in this folder is registered.

Belongs here: architectures and their per-example losses. Does not: data, optimizers, training.
"""
