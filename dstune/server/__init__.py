"""Server: the engine as a child process, steered over a pipe."""
