"""A grid of conversions and evaluations: a plan, its cells, and a run that can be taken up again."""
