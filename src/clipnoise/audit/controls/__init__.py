"""Deliberately broken variants, each a mistake that has been made: an audit must expose them all.

Belongs here: one small mistake each, what it is and which check finds it. Does not: methods;
nothing here is registered, and nothing here can be trained from a run spec.
"""
