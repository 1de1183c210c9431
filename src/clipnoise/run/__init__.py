"""Runs: run specs, the training loop, checkpoints and result files.

Belongs here: everything that happens in one run. Does not: studies over runs, tables, figures.
"""
