"""Measure: the raw sample of a request, the run folder, and the environment's fingerprint."""
