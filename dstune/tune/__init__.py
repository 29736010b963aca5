"""Tune: search space, trials, sweep and recommendation."""
