"""Studies: one YAML per table or figure, expanded into run specs.

Belongs here: grids, variants, selection. Does not: training, statistics, drawing. No torch.
"""
