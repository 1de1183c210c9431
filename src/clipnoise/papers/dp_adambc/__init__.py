"""Artefacts of DP-AdamBC."""
