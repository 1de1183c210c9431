"""Datasets, one file per family. Every class with an `id` in this folder is registered.

Belongs here: formats, splits, caches, provenance. Does not: models, sampling of batches.
"""
