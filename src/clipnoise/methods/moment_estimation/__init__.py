"""Release the mean gradient and its square with noise of their own, then adapt."""
