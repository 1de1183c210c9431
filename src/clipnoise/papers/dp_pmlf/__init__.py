"""Experiments of the paper on DP-PMLF."""
