"""The judge: whether anything refutes what a method in a file of the user's claims."""
