"""Scale each gradient by a released or public vector, then clip and add noise."""
