"""Datasets, one file per family. Being here is being registered.

Belongs here: formats, splits, caches, provenance. Does not: models, sampling of batches.
"""
