"""The engine: run specs, the training loop, result files and their MLflow view.

Belongs here: everything that happens in one run. Does not: studies over runs, tables, figures.
"""
