"""Per-sample momentum before the clip, low-pass filtering after the noise (DP-PMLF)."""
