"""KV: what a precision or KV-cache configuration costs in memory and in quality."""
