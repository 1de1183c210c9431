"""Audits: whether a method's real code keeps the promise that its ε rests on.

Belongs here: attacks on releases, lower bounds on ε, deliberately broken variants that the attacks
must expose, and published ε computed again. Does not: new methods, accountants, typesetting.
"""
