"""Optimizers, one small class each, in a folder per family. Being here is being registered.

Belongs here: what a paper's pseudo-code says. Does not: data, models, devices, logging, accounting.
"""
