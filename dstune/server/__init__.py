"""Server: the engine's process, steered over a pipe, and the HTTP front before it."""
