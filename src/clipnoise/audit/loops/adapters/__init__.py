"""Adapters: the claim and the releases of a loop, found in what it calls, one library each.

Belongs here: watching a library while a loop runs. Does not: checks.
"""
