"""Experiments of AdaDPS."""
