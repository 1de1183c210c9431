"""The kinds of tables and figures that a report can have: one class each, in a file of its own.

Belongs here: what a study file may say of a kind, what it asks of the study, and how it is made.
Does not: what several kinds share, which is in `clipnoise.report` and its `figures`.
"""
