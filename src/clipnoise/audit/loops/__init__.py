"""Judging training loops of any library: what they read, release and publish, and what refutes it.

Belongs here: running a loop on data that are watched, and the checks of its claim. Does not:
methods of the suite, which `clipnoise.audit.judge` judges, and accountants.
"""
