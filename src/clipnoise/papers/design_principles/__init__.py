"""Experiments of On Design Principles for Private Adaptive Optimizers."""
