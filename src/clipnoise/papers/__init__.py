"""The papers' experiments that need no dataset: one module per artefact, experiment and report.

A paper is a folder, or a module where it has one artefact here. Belongs here: a class per artefact
whose fields are its settings, whose `run` measures what the paper published, and whose `figures`
and `remarks` make its report. Does not: published numbers (reports/published), values of settings
(workflow/reproductions), optimizers.
"""
