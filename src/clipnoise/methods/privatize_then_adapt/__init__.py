"""Release the clipped mean gradient, then adapt: everything adaptive is post-processing."""
