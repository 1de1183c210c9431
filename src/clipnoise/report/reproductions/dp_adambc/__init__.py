"""Reports on artefacts of DP-AdamBC."""
