"""Noise: independent, correlated across steps, or from a cryptographic source."""
