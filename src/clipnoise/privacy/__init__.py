"""Privacy: queries with declared sensitivity, samplers, noise, accountants and calibration.

Belongs here: everything that a guarantee rests on. Does not: gradients of models, optimizers.
"""
