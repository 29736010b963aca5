"""Target: what is under load; start, reconfigure, stop."""
