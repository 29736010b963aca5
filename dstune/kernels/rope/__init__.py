"""Rotary position embedding, in place, for both pairings of the dimensions."""
