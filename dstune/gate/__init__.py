"""Gate: whether a candidate is worse than a baseline, from pairs of runs and from exact figures."""
