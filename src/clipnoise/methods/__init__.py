"""Optimizers, one small class each, in a file per family, or a folder where one file would be long.

Being here is being registered. Belongs here: what a paper's pseudo-code says. Does not: data,
models, devices, logging, accounting.
"""
