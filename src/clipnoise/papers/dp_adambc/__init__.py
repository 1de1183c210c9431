"""Experiments of DP-AdamBC."""
