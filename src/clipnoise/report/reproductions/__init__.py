"""Reports of reproductions: CSV files in, figures and a PDF out; one module per artefact.

Belongs here: what a reproduction's report shows and says. Does not: torch, running anything.
"""
