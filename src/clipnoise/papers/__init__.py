"""Reproductions: the papers' exact experiments that need no dataset, one module each.

Belongs here: a class per artefact whose fields are its settings and whose `run` measures what the
paper published. Does not: published numbers (reports/published), values of settings
(workflow/reproductions), drawing (reporting.reproductions), optimizers of its own.
"""
