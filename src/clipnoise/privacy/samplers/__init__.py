"""Samplers: which examples take part in a step, one file per scheme."""
