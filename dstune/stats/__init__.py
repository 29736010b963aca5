"""Stats: the only definitions of metrics, intervals and comparisons."""
