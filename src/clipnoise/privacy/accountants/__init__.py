"""Accountants: from σ, q and T to ε and δ, one file per analysis."""
