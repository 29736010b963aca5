"""Writing a step's keys and values into the cache, and reading latents back out of it."""
