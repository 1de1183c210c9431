"""Reports: the tables of a study in; tables, figures and PDFs out.

Belongs here: statistics, drawing, typesetting. Does not: torch, training, MLflow.

In every module `runs` and `curves` are rows of the two tables of a study, as `records` reads them;
`metric` is what runs are compared by; `template` is a Typst file; `watermark` is printed on
everything that shows the results, and empty for none. Plain data is what templates lay out.
"""
