"""Engine: continuous batching over a paged KV cache."""
