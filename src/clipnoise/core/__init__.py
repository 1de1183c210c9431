"""The privacy boundary: what a method may ask of a batch, and the only way an answer gets out.

Belongs here: the types of query, clipping, method and state, and the one step. Does not: concrete
queries, optimizers, gradients, models, accounting.
"""
