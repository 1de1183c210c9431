"""Reports: the tables of a study in; tables, figures and PDFs out.

Belongs here: statistics, drawing, typesetting. Does not: torch, training, MLflow.
"""
