"""Reports on artefacts of On Design Principles for Private Adaptive Optimizers."""
