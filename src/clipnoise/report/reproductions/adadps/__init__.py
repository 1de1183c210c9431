"""Reports on artefacts of AdaDPS."""
