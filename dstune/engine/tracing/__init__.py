"""Records what every operation of the engine costs; the untraced engine knows nothing of it."""
