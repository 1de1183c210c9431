"""Artefacts of AdaDPS."""
