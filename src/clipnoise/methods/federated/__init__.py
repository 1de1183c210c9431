"""Federated training: users train, their clipped updates are averaged with noise."""
